#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "core/jsonw.h"
#include "daemon/janitor.h"
#include "pg/pgconn.h"
#include "pg/schema.h"

static const struct pgstmt stmt_relay = {
    "register_relay",
    "SELECT postrider.register_relay($1::text, $4::text, $2::text, $3::jsonb)",
};
static const struct pgstmt stmt_consumer = {
    "register_consumer",
    "SELECT postrider.register_consumer($1::text)",
};
static const struct pgstmt stmt_topic = {
    "create_topic",
    "SELECT postrider.log_create_topic($1::text, $2::int)",
};

struct install {
    const struct command_env *env;
    const struct config *config;
    const char *dsn; /* the database being prepared */
    struct pgconn *conn;
    struct jsonw *json;
};

static void
say(struct install *in, const char *what, const char *name, const char *how)
{
    if (in->env->json) {
        jsonw_object(in->json, NULL);
        jsonw_str(in->json, "database", pgconn_target(in->conn));
        jsonw_str(in->json, what, name);
        jsonw_str(in->json, "result", how);
        jsonw_end(in->json);
    } else {
        printf("%s: %s %s %s\n", pgconn_target(in->conn), what, name, how);
    }
}

static bool
call(struct install *in, const struct pgstmt *stmt, const char *name, int number, bool *ret_made,
     struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    PGresult *res;

    pgparams_text(&p, name);
    if (number)
        pgparams_i32(&p, number);
    bool ok = pgconn_query(in->conn, stmt, &p, &res, err);
    if (ok) {
        *ret_made = pgresult_bool(res, 0, 0);
        PQclear(res);
    }
    arena_release(&arena);
    return ok;
}

static bool
register_relay(struct install *in, const struct relay_config *r, bool *ret_made, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    struct strbuf filter = {0};
    PGresult *res;

    pgparams_text(&p, r->name);
    pgparams_text(&p, r->start == START_NOW ? "now" : "earliest");
    pgparams_text(&p, filter_json(&r->filter, &filter));
    pgparams_text(&p, outbox_table(r->outbox));
    bool ok = pgconn_query(in->conn, &stmt_relay, &p, &res, err);
    if (ok) {
        *ret_made = pgresult_bool(res, 0, 0);
        PQclear(res);
    }
    strbuf_release(&filter);
    arena_release(&arena);
    return ok;
}

static bool
register_relays(struct install *in, struct error *err)
{
    bool made;

    for (size_t i = 0; i < in->config->relay_count; i++) {
        const struct relay_config *r = &in->config->relays[i];
        if (strcmp(r->outbox->database, in->dsn) != 0)
            continue;
        if (!register_relay(in, r, &made, err))
            return false;
        say(in, "relay", r->name, made ? "registered" : "is registered");
    }
    return true;
}

static bool
register_consumers(struct install *in, struct error *err)
{
    bool made;

    for (size_t i = 0; i < in->config->consumer_count; i++) {
        const struct consumer_config *c = &in->config->consumers[i];
        if (strcmp(c->database, in->dsn) == 0) {
            if (!call(in, &stmt_consumer, c->name, 0, &made, err))
                return false;
            say(in, "consumer", c->name, made ? "registered" : "is registered");
        }
        if (c->destination->database && strcmp(c->destination->database, in->dsn) == 0) {
            if (!call(in, &stmt_topic, c->topic, c->destination->partitions, &made, err))
                return false;
            say(in, "topic", c->topic, "is there");
        }
    }
    return true;
}

static bool
prepare_database(struct install *in, struct error *err)
{
    struct pgconn_options options = {.purpose = "init", .system_search_path = true};
    bool changed, ok;

    if (!pgconn_open(in->dsn, &options, &in->conn, err))
        return false;
    ok = schema_install(in->conn, &changed, err);
    if (ok) {
        char version[16];
        snprintf(version, sizeof(version), "%d", schema_latest());
        say(in, "schema", version, changed ? "installed" : "is up to date");
        ok = pgconn_exec(in->conn, "SET ROLE postrider_owner", err) && register_relays(in, err) &&
             register_consumers(in, err);
    }
    pgconn_close(in->conn);
    return ok;
}

int
cmd_init(const struct command_env *env, int argc, char **argv)
{
    const char *databases[256];
    struct strbuf out = {0};
    struct jsonw json = {.out = &out};
    struct config *config;
    struct error err;
    bool ok = true;

    (void) argc;
    (void) argv;
    if (command_option("dry-run")) {
        schema_print(stdout);
        return EXIT_OK;
    }
    if (!cli_config(env, &config, &err))
        return cli_fail(env, &err);
    size_t count = janitor_databases(config, databases, PR_LENGTH(databases));
    jsonw_array(&json, NULL);
    for (size_t i = 0; ok && i < count; i++) {
        struct install in = {.env = env, .config = config, .dsn = databases[i], .json = &json};
        ok = prepare_database(&in, &err);
    }
    jsonw_end(&json);
    if (env->json && ok)
        puts(strbuf_str(&out));
    strbuf_release(&out);
    config_free(config);
    return ok ? EXIT_OK : cli_fail(env, &err);
}
