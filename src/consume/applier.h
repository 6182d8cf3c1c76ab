/*
 * applier.h — what the applying of messages works with: the connection to the consumer's
 * database with its handlers, and one message on its way through a transaction.
 *
 * Threads: one worker owns an applier.
 * Memory:  handlers live until applier_close(); a work lies in the batch's arena.
 */
#ifndef PR_APPLIER_H
#define PR_APPLIER_H

#include <stdbool.h>
#include <stdint.h>

#include "config/config.h"
#include "consume/handler.h"
#include "consume/incoming.h"
#include "consume/partitions.h"
#include "core/error.h"
#include "pg/pgconn.h"

struct consumer_state;

struct applier {
    const struct consumer_config *config;
    struct consumer_state *state;
    struct pgconn *conn;
    int16_t consumer;
    unsigned entry_type; /* postrider.parked_entry's number in this database */
    struct handler *handlers;
    int handler_count;
    struct partitions partitions;
    struct arena arena; /* parameters of the transaction under way */

    /* An event whose handler breaks the connection again and again is found by going one at a time.
     */
    bool careful;
    struct uuid suspect;
    int losses; /* in a row, with the suspect alone in its transaction */

    int64_t parked_since; /* events, since limits_look() */
    int relearned;        /* statements prepared anew on another connection, in a row */

    /* The last failure that may be the handler's or the server's; a second stream proves it. */
    struct evidence {
        const struct handler *handler; /* NULL: none */
        char sqlstate[6];
        uint32_t stream;
        bool proven;
    } evidence;
};

/* Why an event is parked, or rejected, after its handler failed. */
struct failure {
    bool dead; /* else it is tried again; of one that is rejected: neither */
    enum error_class cls;
    char code[32];
    char message[768];
};

/* One message on its way. */
struct work {
    const struct incoming *in;
    const struct handler *handler; /* NULL: ignored or unhandled */
    char kind;                     /* h handled, i ignored, u nobody can handle it, r rejected */
    struct pgparams params;        /* bound, if it is handled */
    const struct failure *failure; /* do not try it, park or reject it for this */
    char decision;                 /* of postrider.consume_batch(); 0: foreign */
    int64_t last;                  /* the stream's version before it */
    bool hit;                      /* the handler said: already done */
};

/* Compiles the handlers.  Errors: those of handler_compile(). */
bool applier_init(struct applier *a, const struct consumer_config *config,
                  struct consumer_state *state, struct error *err) PR_MUSTCHECK;
void applier_release(struct applier *a);

/* Connects, finds the consumer's number, prepares everything.  Errors: consumer.unknown. */
bool applier_open(struct applier *a, struct error *err) PR_MUSTCHECK;
void applier_close(struct applier *a);

/* Whose handler, what kind, and its parameters; one that cannot be bound gets its failure. */
void applier_prepare(const struct applier *a, const struct incoming *in, struct arena *arena,
                     struct work *ret);

/* How the error is kept with an event: the server's own words, without our prefixes. */
void applier_failure(const struct applier *a, const struct error *err, bool dead,
                     struct failure *ret);

/* The event's handler has said no: it will be decided as rejected, for this reason. */
void applier_reject(struct work *work, const struct failure *failure);

/* Keeps the reason, in the transaction that decides; `parked_id` 0: it never was parked. */
void applier_reject_params(const struct applier *a, const struct work *work, int64_t parked_id,
                           struct pgparams *ret);

const char *applier_order(const struct applier *a); /* "stream", "latest", "none" */

/* Undoes a failed transaction; closes the connection if even that fails. */
void applier_rollback(struct applier *a);

/* COMMIT's answer: false if the transaction was rolled back instead. */
bool applier_committed(PGresult *res, struct error *err) PR_MUSTCHECK;

extern const struct pgstmt stmt_begin, stmt_commit, stmt_settle, stmt_reject;

#endif
