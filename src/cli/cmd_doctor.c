#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/doctor.h"
#include "daemon/janitor.h"
#include "pg/schema.h"

/* ------------------------------------------------------------------ statements */

/* Names of the configuration's relays or consumers in this database. */
static void
add_names(struct pgparams *p, const struct config *c, enum doctor_names which, const char *dsn)
{
    struct pgarray names = {0};
    size_t count = which == DOCTOR_RELAYS ? c->relay_count : c->consumer_count;

    pgarray_start(&names, PG_TEXT);
    for (size_t i = 0; i < count; i++) {
        const char *database =
            which == DOCTOR_RELAYS ? c->relays[i].outbox->database : c->consumers[i].database;
        if (strcmp(database, dsn) == 0)
            pgarray_text(&names, which == DOCTOR_RELAYS ? c->relays[i].name : c->consumers[i].name);
    }
    pgparams_array(p, &names);
    pgarray_release(&names);
}

static void
run_check(struct doctor *d, struct pgconn *conn, const char *dsn, const struct doctor_check *check)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    struct error err;
    PGresult *res;

    if (check->names != DOCTOR_NO_NAMES)
        add_names(&p, d->config, check->names, dsn);
    bool ok = pgconn_query(conn, &check->stmt, &p, &res, &err);
    arena_release(&arena);
    if (!ok) {
        doctor_error(d, check->number, check->name, check->why, &err);
        return;
    }
    for (int row = 0; row < PQntuples(res); row++)
        doctor_finding(d, check->number, check->name, pgresult_bool(res, row, 2),
                       PQgetvalue(res, row, 0), check->why, PQgetvalue(res, row, 1));
    if (PQntuples(res) == 0)
        doctor_ok(d, check->number, check->name);
    PQclear(res);
}

/* ------------------------------------------------------------------ the schema, as a start sees it
 */

static const struct {
    int number;
    const char *name, *code, *why, *remedy;
} schema_steps[] = {
    {DOCTOR_SCHEMA, "schema version", NULL,
     "a program and a schema that do not know each other cannot keep each other's rules", NULL},
    {DOCTOR_CLUSTER, "cluster and database", "schema.other_cluster",
     "a position is a transaction snapshot of one server; on a copy it skips events, or sends the "
     "original's events again",
     "BEGIN; SET LOCAL ROLE postrider_owner; UPDATE postrider.lane SET done_snap = '1:1:', "
     "open_snap "
     "= NULL, open_pos = 0; UPDATE postrider.outbox SET xid = DEFAULT; UPDATE postrider.meta SET "
     "system_identifier = (SELECT system_identifier FROM pg_control_system()), database_oid = "
     "(SELECT oid FROM pg_database WHERE datname = current_database()); COMMIT; -- publishes all "
     "that is in the outbox; not on a copy for tests that shares the original's destinations"},
    {DOCTOR_SEQUENCE, "sequence of the outbox", "schema.sequence_cache",
     "each session then takes a block of numbers, and version 8 of a stream may stand before 7",
     NULL},
};

/* False: there is no schema to look at further. */
static bool
check_schema(struct doctor *d, struct pgconn *conn)
{
    struct error err;
    bool ok = schema_check(conn, &err), passed = false;
    size_t at = 0;

    for (size_t i = 1; i < PR_LENGTH(schema_steps) && !ok; i++)
        if (strcmp(err.code, schema_steps[i].code) == 0)
            at = i;
    for (size_t i = 0; i < PR_LENGTH(schema_steps); i++) {
        int number = schema_steps[i].number;
        const char *name = schema_steps[i].name;
        if (passed) {
            doctor_skipped(d, number, name, "not looked at: mend what is above first");
        } else if (ok || i < at) {
            doctor_ok(d, number, name);
        } else {
            doctor_finding(d, number, name, true, err.text, schema_steps[i].why,
                           schema_steps[i].remedy ? schema_steps[i].remedy : err.hint);
            passed = true;
        }
    }
    return ok || at > 0;
}

/* ------------------------------------------------------------------ one database */

static unsigned
sides_of(const struct config *c, const char *dsn)
{
    unsigned sides = 0;

    for (size_t i = 0; i < c->outbox_count; i++)
        sides |= strcmp(c->outboxes[i].database, dsn) == 0 ? DOCTOR_OUTBOX : 0;
    for (size_t i = 0; i < c->destination_count; i++)
        sides |= c->destinations[i].database && strcmp(c->destinations[i].database, dsn) == 0
                     ? DOCTOR_LOG
                     : 0;
    for (size_t i = 0; i < c->consumer_count; i++)
        sides |= strcmp(c->consumers[i].database, dsn) == 0 ? DOCTOR_CONSUMER : 0;
    return sides;
}

/* What to call a database that cannot be asked for its name, and whose DSN may hold a password. */
static const char *
name_of(const struct config *c, const char *dsn)
{
    for (size_t i = 0; i < c->outbox_count; i++)
        if (strcmp(c->outboxes[i].database, dsn) == 0)
            return c->outboxes[i].name;
    for (size_t i = 0; i < c->destination_count; i++)
        if (c->destinations[i].database && strcmp(c->destinations[i].database, dsn) == 0)
            return c->destinations[i].name;
    for (size_t i = 0; i < c->consumer_count; i++)
        if (strcmp(c->consumers[i].database, dsn) == 0)
            return c->consumers[i].name;
    return "?";
}

static void
print_heading(const struct doctor *d, unsigned sides)
{
    static const struct {
        unsigned side;
        const char *word;
    } words[] = {{DOCTOR_OUTBOX, "outbox"}, {DOCTOR_LOG, "log"}, {DOCTOR_CONSUMER, "consumers"}};
    const char *comma = "";

    if (d->env->json)
        return;
    printf("%s (", d->target);
    for (size_t i = 0; i < PR_LENGTH(words); i++) {
        if (sides & words[i].side) {
            printf("%s%s", comma, words[i].word);
            comma = ", ";
        }
    }
    puts(")");
}

static void
look_at_all(struct doctor *d, struct pgconn *conn, const char *dsn, unsigned sides)
{
    for (const struct doctor_check *check = doctor_checks; check->name; check++)
        if (check->sides & sides)
            run_check(d, conn, dsn, check);
    if (sides & DOCTOR_OUTBOX) {
        doctor_outboxes(d, conn, dsn);
        doctor_routes(d, conn, dsn);
    }
    if (sides & DOCTOR_CONSUMER)
        doctor_consumers(d, conn, dsn);
}

static void
examine(struct doctor *d, const char *dsn)
{
    /* As the relay reads: by the index. */
    static const char *const setup[] = {"SET enable_seqscan = off; SET jit = off", NULL};
    struct pgconn_options options = {
        .purpose = "doctor", .system_search_path = true, .setup = setup};
    unsigned sides = sides_of(d->config, dsn);
    struct pgconn *conn;
    struct error err;

    if (!pgconn_open(dsn, &options, &conn, &err)) {
        d->target = name_of(d->config, dsn);
        print_heading(d, sides);
        doctor_error(d, DOCTOR_REACH, "server", "nothing works without it", &err);
        return;
    }
    d->target = pgconn_target(conn);
    print_heading(d, sides);
    doctor_ok(d, DOCTOR_REACH, "server");
    if (check_schema(d, conn))
        look_at_all(d, conn, dsn, sides);
    pgconn_close(conn);
}

int
cmd_doctor(const struct command_env *env, int argc, char **argv)
{
    const char *databases[256];
    struct strbuf out = {0};
    struct jsonw json = {.out = &out};
    struct doctor d = {.env = env, .json = &json};
    struct config *config;
    struct error err;

    (void) argc;
    (void) argv;
    if (!cli_config(env, &config, &err))
        return cli_fail(env, &err);
    d.config = config;
    jsonw_array(&json, NULL);
    size_t count = janitor_databases(config, databases, PR_LENGTH(databases));
    for (size_t i = 0; i < count; i++)
        examine(&d, databases[i]);
    jsonw_end(&json);
    if (env->json)
        puts(strbuf_str(&out));
    else if (d.found == 0)
        puts("all right");
    else
        printf("%d to mend: do what the arrows say\n", d.found);
    strbuf_release(&out);
    config_free(config);
    return d.away ? EXIT_AWAY : d.found ? EXIT_DIFFERS : EXIT_OK;
}
