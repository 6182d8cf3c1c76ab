/*
 * dlq.h — whose dead letters a command is about: relays and consumers, each in its own
 * database.
 */
#ifndef PR_DLQ_H
#define PR_DLQ_H

#include "cli/command.h"
#include "pg/pgconn.h"

struct dlq_reader {
    const char *side; /* "relay" or "consumer" */
    const char *name;
    const char *database;
};

/* One reader after the other, on its own connection. */
typedef bool (*dlq_visit)(const struct command_env *env, struct pgconn *conn,
                          const struct dlq_reader *reader, void *arg, struct error *err);

/*
 * Visits the relay and the consumer of these names, or all if both are NULL; returns the
 * exit code.  The configuration is read here.
 */
int dlq_each(const struct command_env *env, const char *relay, const char *consumer, dlq_visit on,
             void *arg);

#endif
