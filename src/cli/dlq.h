/*
 * dlq.h — whose dead letters a command is about: relays and consumers, each in its own
 * database.
 */
#ifndef PR_DLQ_H
#define PR_DLQ_H

#include "cli/command.h"
#include "core/jsonw.h"
#include "pg/pgconn.h"
#include "pg/pgparams.h"

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

/* What an operator asks for, and about which dead letters. */
struct dlq_asking {
    const char *request; /* "replay" or "discard" */
    int64_t *ids;        /* NULL: all that pass the filters of the command line */
    int count;
    struct jsonw *json;
};

/* The filters as $3 to $6, and the condition they make on postrider.parked p. */
#define DLQ_FILTER                                                                                 \
    "($3::text IS NULL OR p.event_type = $3::text)"                                                \
    " AND ($4::text IS NULL OR p.class = $4::text)"                                                \
    " AND ($5::text IS NULL OR p.aggregate_type || ':' || p.aggregate_id = $5::text)"              \
    " AND ($6::timestamptz IS NULL OR p.first_at < $6::timestamptz)"

/* $1 the reader's name, $2 the IDs or NULL, and the filters. */
void dlq_selection(const struct dlq_asking *asking, const struct dlq_reader *reader,
                   struct pgparams *p);

/* The IDs as a parameter. */
void dlq_ids(struct pgparams *p, const int64_t *ids, int count);

/* Replays or discards dead letters of a consumer; a dlq_visit whose `arg` is a struct dlq_asking.
 */
bool dlq_mend(const struct command_env *env, struct pgconn *conn, const struct dlq_reader *reader,
              void *arg, struct error *err) PR_MUSTCHECK;

#endif
