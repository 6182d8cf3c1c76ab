/*
 * pgerror.h — turns what libpq and the server report into a struct error: class,
 * scope, our code, one line of text and a remedy.  Never a user name's password, a
 * parameter's value or a row's content.
 *
 * Threads: any.
 */
#ifndef PR_PGERROR_H
#define PR_PGERROR_H

#include <libpq-fe.h>
#include <stdbool.h>

#include "core/error.h"

/* All return false. */
bool pgerror_dsn(const char *purpose, const char *why, struct error *err);
bool pgerror_connect(PGconn *pg, const char *purpose, const char *target, struct error *err);
bool pgerror_lost(PGconn *pg, const char *purpose, const char *target, const char *what,
                  struct error *err);
bool pgerror_silent(const char *purpose, const char *target, int waited_ms, struct error *err);

/* A failed result; `what` names the statement and may be NULL. */
bool pgerror_result(const PGresult *res, const char *purpose, const char *target, const char *what,
                    struct error *err);

/* Whether the server gave this code. */
bool pgerror_is(const struct error *err, const char *sqlstate);

#endif
