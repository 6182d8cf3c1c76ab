/*
 * consumers.h — what commands about consumers share.
 *
 * Threads: the main thread.
 */
#ifndef PR_CLI_CONSUMERS_H
#define PR_CLI_CONSUMERS_H

#include "cli/command.h"
#include "pg/pgconn.h"

/* The consumer of this name; NULL with err if the configuration has none. */
const struct consumer_config *consumers_find(const struct config *config, const char *name,
                                             struct error *err);

/* Connects and checks the schema; the caller closes *ret, also on failure. */
bool consumers_open(const char *dsn, const char *purpose, struct pgconn **ret,
                    struct error *err) PR_MUSTCHECK;

/* False, and says so with this hint, of a consumer that reads from Kafka. */
bool consumers_has_log(const struct consumer_config *c, const char *hint,
                       struct error *err) PR_MUSTCHECK;

/* What a function of ours said when it waited too long for a lock, in words for an operator. */
bool consumers_refused(const char *consumer, struct error *err);

#endif
