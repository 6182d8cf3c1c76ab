/*
 * handler.h — an SQL statement with named parameters, and how an event becomes their
 * values.
 *
 * Parameters are bound, never spliced.  Each occurrence is a parameter of its own and is
 * sent as text without a type, so the server takes it for what the statement needs there.
 *
 * Threads: one worker owns its handlers.
 * Memory:  handler_release() frees; what handler_bind() makes lies in the arena.
 */
#ifndef PR_HANDLER_H
#define PR_HANDLER_H

#include <stdbool.h>

#include "config/config.h"
#include "consume/incoming.h"
#include "core/error.h"
#include "pg/pgconn.h"
#include "pg/pgparams.h"

struct handler_value; /* what one parameter stands for */

struct handler {
    const struct handler_config *config;
    const char *consumer;
    struct pgstmt stmt; /* with $1, $2, … */
    struct handler_value *values;
    int count;
    bool answers; /* returns one boolean: false says "already done" */
};

/*
 * Finds the parameters.  `number` tells the handlers of one connection apart.  Errors (stop, exit
 * 78): handler.parameter (an unknown name), handler.statement (not one that can be a handler).
 */
bool handler_compile(const struct handler_config *config, const char *consumer, int number,
                     struct handler *ret, struct error *err) PR_MUSTCHECK;
void handler_release(struct handler *handler);

/*
 * Prepares the statement on the connection and learns what it returns.  An error names the
 * consumer, the event type and the remedy; its class is the server's.
 */
bool handler_prepare(struct handler *handler, struct pgconn *conn, struct error *err) PR_MUSTCHECK;

/*
 * The event as the statement's parameters.  Errors (permanent): payload.missing (no such
 * member), payload.json (no JSON), payload.text (cannot be a text in PostgreSQL).
 */
bool handler_bind(const struct handler *handler, const struct incoming *in, struct pgparams *ret,
                  struct error *err) PR_MUSTCHECK;

#endif
