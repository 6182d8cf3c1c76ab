#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"
#include "config/values.h"
#include "core/jsonw.h"
#include "pg/pgconn.h"
#include "pg/schema.h"

/* The server reads the JSON itself, so that numbers keep every digit. */
static const struct pgstmt stmt_unknown = {
    "event",
    "SELECT string_agg(k, ', ') FROM jsonb_object_keys($1::jsonb) k WHERE k <> ALL "
    "('{aggregate_type,"
    "aggregate_id,aggregate_version,event_type,payload,body_base64,content_type,event_id,headers,"
    "occurred_at}')",
};
static const struct pgstmt stmt_emit = {
    "write",
    "SELECT CASE WHEN l ? 'body_base64' THEN postrider.emit_bytes(l->>'aggregate_type',"
    "  l->>'aggregate_id', (l->>'aggregate_version')::bigint, l->>'event_type',"
    "  decode(l->>'body_base64', 'base64'), coalesce(l->>'content_type', "
    "'application/octet-stream'),"
    "  coalesce((l->>'event_id')::uuid, postrider.uuidv7()), nullif(l->'headers', 'null'),"
    "  coalesce((l->>'occurred_at')::timestamptz, now()))"
    " ELSE postrider.emit(l->>'aggregate_type', l->>'aggregate_id', "
    "(l->>'aggregate_version')::bigint,"
    "  l->>'event_type', l->'payload', coalesce((l->>'event_id')::uuid, postrider.uuidv7()),"
    "  nullif(l->'headers', 'null'), coalesce((l->>'occurred_at')::timestamptz, now())) END"
    " FROM (SELECT $1::jsonb AS l) line",
};

/* ------------------------------------------------------------------ one event */

/* What the input did wrong is refused input, whatever class its SQLSTATE has. */
static bool
refused(const char *where, struct error *err)
{
    if (err->scope == SCOPE_EVENT) {
        err->exit = EXIT_REFUSED;
        if (strcmp(err->sqlstate, "22P05") == 0)
            error_hint(
                err, "the text holds a NUL (\\u0000), which PostgreSQL cannot store; take it out, "
                     "or send bytes with body_base64");
    }
    return error_wrap(err, "%s: nothing was written", where);
}

static bool
emit_line(struct pgconn *conn, const char *line, const char *where, char id[UUID_TEXT],
          struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    PGresult *res = NULL;
    bool ok = false;

    pgparams_text(&p, line);
    if (!pgconn_query(conn, &stmt_unknown, &p, &res, err)) {
        refused(where, err);
        goto out;
    }
    if (!PQgetisnull(res, 0, 0)) {
        error_set_exit(err, ERR_PERMANENT, EXIT_REFUSED, "emit.unknown_key",
                       "%s: unknown key %s, nothing was written", where, PQgetvalue(res, 0, 0));
        error_hint(err, "postrider emit --help lists the keys");
        goto out;
    }
    PQclear(res);
    if (!pgconn_query(conn, &stmt_emit, &p, &res, err)) {
        refused(where, err);
        goto out;
    }
    snprintf(id, UUID_TEXT, "%s", PQgetvalue(res, 0, 0));
    ok = true;

out:
    PQclear(res);
    arena_release(&arena);
    return ok;
}

static bool
add_headers(struct jsonw *w, struct error *err)
{
    const char *const *headers = command_option_all("header");

    if (!*headers)
        return true;
    jsonw_object(w, "headers");
    for (; *headers; headers++) {
        char name[256];
        const char *equals = strchr(*headers, '=');
        if (!equals || equals == *headers || equals - *headers >= (long) sizeof(name)) {
            error_set_exit(err, ERR_PERMANENT, EXIT_USAGE, "emit.header",
                           "--header takes NAME=VALUE, not \"%s\"", *headers);
            return false;
        }
        snprintf(name, sizeof(name), "%.*s", (int) (equals - *headers), *headers);
        jsonw_str(w, name, equals + 1);
    }
    jsonw_end(w);
    return true;
}

/* The options of the command line as one line of JSON. */
static bool
line_from_options(struct strbuf *out, struct error *err)
{
    struct jsonw w = {.out = out};
    const char *aggregate = command_option("aggregate"),
               *version = command_option("aggregate-version");
    const char *type = command_option("type"), *payload = command_option("payload");
    const char *colon = aggregate ? strchr(aggregate, ':') : NULL;
    json_error_t why;
    int64_t number;

    if (!colon || !version || !type || !payload)
        return error_set_exit(
            err, ERR_PERMANENT, EXIT_USAGE, "emit.usage",
            "emit needs --aggregate TYPE:ID, --aggregate-version, --type and --payload, or JSON "
            "lines on standard input with \"-\"");
    if (!value_integer(version, &number))
        return error_set_exit(err, ERR_PERMANENT, EXIT_USAGE, "emit.version",
                              "--aggregate-version takes a number, not \"%s\"", version);
    json_t *parsed = json_loads(payload, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (!parsed)
        return error_set_exit(err, ERR_PERMANENT, EXIT_REFUSED, "emit.payload",
                              "--payload is no JSON (column %d: %s), nothing was written",
                              why.column, why.text);
    json_decref(parsed);
    jsonw_object(&w, NULL);
    jsonw_strn(&w, "aggregate_type", aggregate, (size_t) (colon - aggregate));
    jsonw_str(&w, "aggregate_id", colon + 1);
    jsonw_i64(&w, "aggregate_version", number);
    jsonw_str(&w, "event_type", type);
    jsonw_raw(&w, "payload", payload);
    if (command_option("id"))
        jsonw_str(&w, "event_id", command_option("id"));
    if (!add_headers(&w, err))
        return false;
    jsonw_end(&w);
    return true;
}

/* ------------------------------------------------------------------ all of them, or none */

static bool
emit_options(struct pgconn *conn, struct strbuf *ids, struct error *err)
{
    struct strbuf line = {0};
    char id[UUID_TEXT];
    bool ok = line_from_options(&line, err) &&
              emit_line(conn, strbuf_str(&line), "the event is refused", id, err);

    if (ok)
        strbuf_addf(ids, "%s\n", id);
    strbuf_release(&line);
    return ok;
}

static bool
emit_stdin(struct pgconn *conn, struct strbuf *ids, struct error *err)
{
    char *line = NULL, id[UUID_TEXT], where[48];
    size_t cap = 0;
    ssize_t len;
    bool ok = true;

    for (int number = 1; ok && (len = getline(&line, &cap, stdin)) >= 0; number++) {
        if (len > 0 && line[len - 1] == '\n')
            line[--len] = '\0';
        if (len == 0)
            continue;
        snprintf(where, sizeof(where), "line %d of standard input", number);
        if (strlen(line) != (size_t) len)
            ok = error_set_exit(err, ERR_PERMANENT, EXIT_REFUSED, "emit.nul",
                                "%s holds a NUL byte, nothing was written", where);
        else if ((ok = emit_line(conn, line, where, id, err)))
            strbuf_addf(ids, "%s\n", id);
    }
    free(line);
    return ok;
}

static const struct outbox_config *
choose_outbox(const struct config *config, struct error *err)
{
    const char *name = command_option("outbox");

    for (size_t i = 0; i < config->outbox_count; i++)
        if (!name ? config->outbox_count == 1 : strcmp(config->outboxes[i].name, name) == 0)
            return &config->outboxes[i];
    if (name)
        error_set_exit(err, ERR_PERMANENT, EXIT_USAGE, "emit.outbox",
                       "the configuration has no outbox \"%s\"", name);
    else
        error_set_exit(err, ERR_PERMANENT, EXIT_USAGE, "emit.outbox",
                       "the configuration has %zu outboxes: say which with --outbox",
                       config->outbox_count);
    return NULL;
}

int
cmd_emit(const struct command_env *env, int argc, char **argv)
{
    struct pgconn_options options = {.purpose = "emit", .system_search_path = true};
    const struct outbox_config *outbox;
    struct config *config = NULL;
    struct pgconn *conn = NULL;
    struct strbuf ids = {0};
    struct error err;
    bool from_stdin = argc == 1 && strcmp(argv[0], "-") == 0;
    bool ok = false;

    if (argc > 0 && !from_stdin)
        return cli_usage("emit takes \"-\" for standard input, not \"%s\"", argv[0]);
    if (cli_config(env, &config, &err) && (outbox = choose_outbox(config, &err)) &&
        pgconn_open(outbox->database, &options, &conn, &err) && schema_check(conn, &err) &&
        pgconn_exec(conn, "BEGIN", &err))
        ok = (from_stdin ? emit_stdin(conn, &ids, &err) : emit_options(conn, &ids, &err)) &&
             pgconn_exec(conn, "COMMIT", &err);
    if (ok)
        fputs(strbuf_str(&ids), stdout);
    pgconn_close(conn);
    config_free(config);
    strbuf_release(&ids);
    return ok ? EXIT_OK : cli_fail(env, &err);
}
