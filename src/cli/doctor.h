/*
 * doctor.h — what `postrider doctor` looks at.
 *
 * A check is a statement that returns a row for each thing it finds; no row: all is well.
 * The numbers stay what they are, since people look them up (docs/guide/doctor.md).
 */
#ifndef PR_CLI_DOCTOR_H
#define PR_CLI_DOCTOR_H

#include "cli/command.h"
#include "core/jsonw.h"
#include "pg/pgconn.h"

/* What a database is to the configuration; it may be all of it at once. */
enum doctor_side { DOCTOR_OUTBOX = 1, DOCTOR_LOG = 2, DOCTOR_CONSUMER = 4, DOCTOR_ANY = 7 };

/* Numbers of the checks that are no statement of doctor_checks.c. */
enum doctor_number {
    DOCTOR_REACH = 1,
    DOCTOR_SCHEMA = 2,
    DOCTOR_CLUSTER = 3,
    DOCTOR_SEQUENCE = 4,
    DOCTOR_AHEAD = 25,
    DOCTOR_FUTURE = 26,
    DOCTOR_SKIPS = 40,
    DOCTOR_MAPPED = 41,
    DOCTOR_ROUTES = 42,
    DOCTOR_HANDLERS = 50,
    DOCTOR_POSITIONS = 51,
    DOCTOR_FLOOR = 52,
};

/* The names a statement is about, as its one parameter $1::text[]. */
enum doctor_names { DOCTOR_NO_NAMES, DOCTOR_RELAYS, DOCTOR_CONSUMERS };

struct doctor_check {
    int number;
    unsigned sides; /* of which databases it is asked */
    const char *name;
    const char *why; /* it matters */
    enum doctor_names names;
    struct pgstmt stmt; /* returns what, remedy, and whether it must be mended */
};

extern const struct doctor_check doctor_checks[]; /* a NULL name ends them */

struct doctor {
    const struct command_env *env;
    const struct config *config;
    struct jsonw *json;
    const char *target; /* the database at hand, for people */
    int found;          /* things to mend */
    bool away;          /* a server could not be reached */
};

void doctor_ok(struct doctor *d, int number, const char *name);
void doctor_skipped(struct doctor *d, int number, const char *name, const char *why);
/* `must`: it is to be mended; else it is for information. */
void doctor_finding(struct doctor *d, int number, const char *name, bool must, const char *what,
                    const char *why, const char *remedy);
/* Something could not even be looked at, or an error says all that there is to say. */
void doctor_error(struct doctor *d, int number, const char *name, const char *why,
                  const struct error *err);

/* Checks that need more than one statement or database (doctor_more.c). */
void doctor_outboxes(struct doctor *d, struct pgconn *conn, const char *dsn);
void doctor_routes(struct doctor *d, struct pgconn *conn, const char *dsn);
void doctor_consumers(struct doctor *d, struct pgconn *conn, const char *dsn);

#endif
