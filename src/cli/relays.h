/*
 * relays.h — walking the databases that hold outboxes, for commands about relays.
 */
#ifndef PR_CLI_RELAYS_H
#define PR_CLI_RELAYS_H

#include "cli/command.h"
#include "pg/pgconn.h"

/* So many events behind a position are counted; there may be more. */
#define RELAYS_MOST "10000"

/* One database after the other; `outbox` is the first in the file that lies in it. */
typedef bool (*relays_visit)(struct pgconn *conn, const struct outbox_config *outbox, void *arg,
                             struct error *err);

/* Visits each database of config->outboxes once; the schema has been checked. */
bool relays_each_database(const struct config *config, const char *purpose, relays_visit on,
                          void *arg, struct error *err) PR_MUSTCHECK;

/* NULL if the configuration has no such relay. */
const struct relay_config *relays_find(const struct config *config, const char *name);

/* How long the oldest event of a table of the user's own waits, in ms; -1: none does. */
bool relays_mark_age(struct pgconn *conn, const struct outbox_config *outbox, int64_t *ret,
                     struct error *err) PR_MUSTCHECK;

/* "4.2 s", "3 min", "2 h", "5 d": for people. */
void relays_duration(int64_t ms, char *ret, size_t size);

#endif
