/*
 * janitor.h — keeps day partitions made ahead, and drops those past their retention,
 * in every database of the configuration.  Any number of processes may do it: the
 * server lets one at a time, and every step is a short transaction of its own.
 *
 * Threads: janitor_run() is the body of a thread; the other calls are for commands.
 * Memory:  lends the configuration.
 */
#ifndef PR_JANITOR_H
#define PR_JANITOR_H

#include <stdbool.h>
#include <stddef.h>

#include "config/config.h"

/* Distinct databases of the configuration, in the order of the file. */
size_t janitor_databases(const struct config *config, const char **ret, size_t cap);

/* Until stop_fd is readable: partitions every minute, retention every hour. */
void janitor_run(const struct config *config, int stop_fd);

struct pruned {
    const char *table; /* "outbox", "log", "consumed" */
    char partition[64];
    char held_by[256]; /* "" if it was, or would be, dropped */
};

/*
 * Drops what is past its retention in one database; tells each partition through `on`.
 */
bool janitor_prune(const struct config *config, const char *dsn, bool dry_run,
                   void (*on)(const struct pruned *pruned, void *arg), void *arg,
                   struct error *err) PR_MUSTCHECK;

#endif
