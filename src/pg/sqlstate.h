/*
 * sqlstate.h — what an SQLSTATE means for us: one table, first match wins.
 *
 * The rules are in docs/internals/errors.md.  A code only suggests a scope: whoever
 * would pause a consumer or a handler proves it with a second statement first.
 *
 * Threads: constant.
 */
#ifndef PR_SQLSTATE_H
#define PR_SQLSTATE_H

#include <stdbool.h>

#include "core/error.h"

struct sqlstate_rule {
    const char *prefix; /* a whole code or the beginning of one */
    enum error_class cls;
    enum error_scope scope;
    bool at_once; /* repeat without delay: nobody is at fault (deadlock, lost statement) */
    enum exit_code exit;
    const char *code; /* ours: "pg.rights" */
    const char *hint; /* NULL: the server's own words say it */
};

/* The rule for a code; "" and unknown codes have one too. */
const struct sqlstate_rule *sqlstate_find(const char *sqlstate);

#endif
