#include "pg/pgerror.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "core/utf8.h"
#include "pg/sqlstate.h"

bool
pgerror_dsn(const char *purpose, const char *why, struct error *err)
{
    error_set_exit(err, ERR_STOP, EXIT_CONFIG, "pg.dsn",
                   "%s: cannot read the connection string: %s", purpose, why);
    return error_hint(err,
                      "write it as postgresql://user@host:5432/database or \"host=… dbname=…\"");
}

/* The five characters between ": " and ": " in libpq's verbose text, if there are such. */
static void
find_sqlstate(const char *text, char ret[6])
{
    ret[0] = '\0';
    for (const char *at = strstr(text, ":  "); at; at = strstr(at + 1, ":  ")) {
        const char *code = at + 3;
        int n = 0;
        while (n < 5 && (isdigit((unsigned char) code[n]) || isupper((unsigned char) code[n])))
            n++;
        if (n == 5 && code[5] == ':') {
            memcpy(ret, code, 5);
            ret[5] = '\0';
            return;
        }
    }
}

static void
apply_rule(const struct sqlstate_rule *rule, const char *sqlstate, struct error *err)
{
    err->cls = rule->cls;
    err->scope = rule->scope;
    err->exit = rule->exit;
    snprintf(err->code, sizeof(err->code), "%s", rule->code);
    snprintf(err->sqlstate, sizeof(err->sqlstate), "%s", sqlstate);
    if (rule->hint && !err->hint[0])
        error_hint(err, "%s", rule->hint);
}

/* Keeps the line that says why; the verbose text goes on with LOCATION lines. */
static void
first_line(const char *text, char *ret, size_t size)
{
    const char *fatal = strstr(text, "FATAL:");
    size_t len;

    if (!fatal)
        fatal = text;
    len = strcspn(fatal, "\n");
    snprintf(ret, size, "%.*s", (int) len, fatal);
}

bool
pgerror_connect(PGconn *pg, const char *purpose, const char *target, struct error *err)
{
    const char *text = PQerrorMessage(pg);
    char sqlstate[6], line[400];

    find_sqlstate(text, sqlstate);
    first_line(text, line, sizeof(line));
    error_set(err, ERR_TRANSIENT, "pg.away", "%s: cannot connect to %s: %s", purpose, target,
              *line ? line : "no answer in time");
    if (strstr(text, "session is read-only") || strstr(text, "hot standby"))
        snprintf(sqlstate, sizeof(sqlstate), "25006");
    apply_rule(sqlstate_find(sqlstate[0] ? sqlstate : "08001"), sqlstate, err);
    err->scope = SCOPE_SERVER;
    return false;
}

bool
pgerror_lost(PGconn *pg, const char *purpose, const char *target, const char *what,
             struct error *err)
{
    char line[400];

    first_line(PQerrorMessage(pg), line, sizeof(line));
    error_set_exit(err, ERR_TRANSIENT, EXIT_AWAY, "pg.lost",
                   "%s: connection to %s lost while %s: %s", purpose, target, what, line);
    err->scope = SCOPE_SERVER;
    return error_hint(err,
                      "the program connects again by itself; see the server's log for the cause");
}

bool
pgerror_silent(const char *purpose, const char *target, int waited_ms, struct error *err)
{
    error_set_exit(err, ERR_TRANSIENT, EXIT_AWAY, "pg.silent",
                   "%s: no answer from %s for %d s, the connection is given up", purpose, target,
                   waited_ms / 1000);
    err->scope = SCOPE_SERVER;
    return error_hint(err, "check the network path and the server's load");
}

bool
pgerror_result(const PGresult *res, const char *purpose, const char *target, const char *what,
               struct error *err)
{
    const char *sqlstate = PQresultErrorField(res, PG_DIAG_SQLSTATE);
    const char *primary = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
    const char *detail = PQresultErrorField(res, PG_DIAG_MESSAGE_DETAIL);
    const char *hint = PQresultErrorField(res, PG_DIAG_MESSAGE_HINT);

    if (!sqlstate) {
        error_set_exit(err, ERR_TRANSIENT, EXIT_AWAY, "pg.lost", "%s: connection to %s lost: %s",
                       purpose, target, PQresultErrorMessage(res));
        err->scope = SCOPE_SERVER;
        return false;
    }
    error_set(err, ERR_UNKNOWN, "pg.error", "%s%s%s: %s", purpose, what ? ": " : "",
              what ? what : "", primary ? primary : "(no message)");
    /* Only our own functions' details: another's may quote a row. */
    if (detail && strncmp(sqlstate, "PR", 2) == 0) {
        size_t len = strlen(err->text);
        snprintf(err->text + len, sizeof(err->text) - len, " (%s)", detail);
        utf8_mend(err->text);
    }
    if (hint)
        error_hint(err, "%s", hint);
    apply_rule(sqlstate_find(sqlstate), sqlstate, err);
    if (strncmp(sqlstate, "0A000", 5) == 0 && primary && strstr(primary, "cached plan"))
        err->cls = ERR_TRANSIENT;
    return false;
}

bool
pgerror_is(const struct error *err, const char *sqlstate)
{
    return strcmp(err->sqlstate, sqlstate) == 0;
}
