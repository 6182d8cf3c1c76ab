#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/dlq.h"
#include "config/values.h"
#include "core/jsonw.h"

/* The number of a relay or consumer, by parameters that hold the side and its name. */
#define READER(side, name)                                                                         \
    "CASE WHEN " side "::text = 'relay'"                                                           \
    " THEN (SELECT relay FROM postrider.relay WHERE name = " name "::text)"                        \
    " ELSE (SELECT consumer FROM postrider.consumer WHERE name = " name "::text) END"

static const struct pgstmt stmt_list = {
    "dlq_list",
    "SELECT p.id, $4::text, p.state, p.class, p.code, p.event_type, p.aggregate_type, "
    "p.aggregate_id,"
    "  p.version, p.event_id, p.owner, to_char(p.first_at AT TIME ZONE 'UTC',"
    "  'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), p.tries, p.message"
    " FROM postrider.parked p WHERE p.side = $1::text AND p.reader = " READER(
        "$1", "$4") "   AND ($2::text IS NULL OR p.state = $2::text)"
                    "   AND (p.state <> 'discarded' OR $2::text = 'discarded') ORDER BY p.id LIMIT "
                    "$3::bigint",
};
static const struct pgstmt stmt_show = {
    "dlq_show",
    "SELECT p.id, p.side, $3::text AS reader, p.state, p.class, p.code, p.message, p.event_type, "
    "p.aggregate_type,"
    "  p.aggregate_id, p.version, p.prev, p.event_id, p.occurred_at, p.source, p.topic, p.part AS "
    "partition,"
    "  p.off AS \"offset\", p.lane, p.owner, p.first_at, p.last_at, p.tries, p.due_at,"
    "  octet_length(p.body) AS bytes, p.content_type, array_to_string(p.header_names, ', ') AS "
    "headers,"
    "  (SELECT count(*) FROM postrider.parked b WHERE b.side = p.side AND b.reader = p.reader"
    "   AND b.aggregate_type = p.aggregate_type AND b.aggregate_id = p.aggregate_id"
    "   AND b.version > p.version AND b.state IN ('waiting', 'retry')) AS waiting_behind,"
    "  p.request, p.request_by, p.request_reason,"
    "  (SELECT s.version FROM postrider.stream s WHERE p.side = 'consumer' AND s.consumer = "
    "p.reader"
    "   AND s.aggregate_type = p.aggregate_type AND s.aggregate_id = p.aggregate_id) AS stream_at"
    " FROM postrider.parked p WHERE p.side = $1::text AND p.id = $2::bigint"
    "   AND p.reader = " READER("$1", "$3"),
};
static const struct pgstmt stmt_payload = {
    "dlq_payload",
    "SELECT encode(body, 'escape') FROM postrider.parked WHERE id = $1::bigint",
};
static const struct pgstmt stmt_attempts = {
    "dlq_attempts",
    "SELECT at, class, sqlstate, message FROM postrider.attempt WHERE parked_id = $1::bigint ORDER "
    "BY at",
};

/* ------------------------------------------------------------------ list */

struct listing {
    struct jsonw *json;
    const char *state;
    int64_t limit;
    int count;
};

static void
list_json(struct jsonw *w, const char *side, const PGresult *res, int row)
{
    const char *const names[] = {
        "id",           side,      "state",    "class", "code",     "event_type", "aggregate_type",
        "aggregate_id", "version", "event_id", "owner", "first_at", "tries",      "message"};

    jsonw_object(w, NULL);
    for (int col = 0; col < (int) PR_LENGTH(names); col++) {
        bool number = (col == 0 || col == 8 || col == 12) && !PQgetisnull(res, row, col);
        if (number)
            jsonw_i64(w, names[col], pgresult_i64(res, row, col));
        else
            jsonw_str(w, names[col], pgresult_str(res, row, col));
    }
    jsonw_end(w);
}

static void
list_text(const PGresult *res, int row)
{
    printf("%-6s %-12s %-8s %-10s ", PQgetvalue(res, row, 0), PQgetvalue(res, row, 1),
           PQgetvalue(res, row, 2), PQgetvalue(res, row, 3));
    cli_print_safe(PQgetvalue(res, row, 5));
    putchar(' ');
    cli_print_safe(PQgetvalue(res, row, 6));
    putchar(':');
    cli_print_safe(PQgetvalue(res, row, 7));
    printf(" v%s  since %s, tries %s, owner ", PQgetvalue(res, row, 8), PQgetvalue(res, row, 11),
           PQgetvalue(res, row, 12));
    cli_print_safe(PQgetvalue(res, row, 10));
    fputs("\n       ", stdout);
    cli_print_safe(PQgetvalue(res, row, 13));
    putchar('\n');
}

static bool
list_reader(const struct command_env *env, struct pgconn *conn, const struct dlq_reader *reader,
            void *arg, struct error *err)
{
    struct listing *listing = arg;
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    PGresult *res;

    pgparams_text(&p, reader->side);
    pgparams_text(&p, listing->state);
    pgparams_i64(&p, listing->limit);
    pgparams_text(&p, reader->name);
    bool ok = pgconn_query(conn, &stmt_list, &p, &res, err);
    arena_release(&arena);
    if (!ok)
        return false;
    for (int row = 0; row < PQntuples(res); row++) {
        if (env->json)
            list_json(listing->json, reader->side, res, row);
        else
            list_text(res, row);
    }
    listing->count += PQntuples(res);
    PQclear(res);
    return true;
}

int
cmd_dlq_list(const struct command_env *env, int argc, char **argv)
{
    const char *state = command_option("state"), *limit = command_option("limit");
    struct strbuf out = {0};
    struct jsonw json = {.out = &out};
    struct listing listing = {.json = &json, .state = state ? state : "dead", .limit = 100};

    (void) argc;
    (void) argv;
    if (state && value_word_index("waiting|retry|dead|discarded", state) < 0)
        return cli_usage("--state takes waiting, retry, dead or discarded, not \"%s\"", state);
    if (limit && (!value_integer(limit, &listing.limit) || listing.limit < 1))
        return cli_usage("--limit takes a number above 0, not \"%s\"", limit);
    if (command_option("all"))
        listing.state = NULL;
    jsonw_array(&json, NULL);
    int code =
        dlq_each(env, command_option("relay"), command_option("consumer"), list_reader, &listing);
    jsonw_end(&json);
    if (code == EXIT_OK && env->json)
        puts(strbuf_str(&out));
    else if (code == EXIT_OK && listing.count == 0)
        puts(listing.state && strcmp(listing.state, "dead") == 0 ? "no dead letters"
                                                                 : "nothing parked");
    else if (code == EXIT_OK)
        puts("postrider dlq show ID says everything about one of them");
    strbuf_release(&out);
    return code;
}

/* ------------------------------------------------------------------ show */

struct showing {
    const char *id;
    bool payload;
    bool found;
};

static void
show_fields(const PGresult *res, struct jsonw *w, bool json)
{
    for (int col = 0; col < PQnfields(res); col++) {
        if (json) {
            jsonw_str(w, PQfname(res, col), pgresult_str(res, 0, col));
        } else if (!PQgetisnull(res, 0, col)) {
            printf("%-15s ", PQfname(res, col));
            cli_print_safe(PQgetvalue(res, 0, col));
            putchar('\n');
        }
    }
}

static void
show_attempts(const PGresult *res, struct jsonw *w, bool json)
{
    if (json)
        jsonw_array(w, "attempts");
    for (int row = 0; row < PQntuples(res); row++) {
        if (json) {
            jsonw_object(w, NULL);
            for (int col = 0; col < PQnfields(res); col++)
                jsonw_str(w, PQfname(res, col), pgresult_str(res, row, col));
            jsonw_end(w);
        } else {
            printf("%-15s %s %s %s ", "attempt", PQgetvalue(res, row, 0), PQgetvalue(res, row, 1),
                   PQgetvalue(res, row, 2));
            cli_print_safe(PQgetvalue(res, row, 3));
            putchar('\n');
        }
    }
    if (json)
        jsonw_end(w);
}

static bool
show_one(struct pgconn *conn, const PGresult *event, const struct command_env *env,
         const struct showing *showing, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    struct strbuf out = {0};
    struct jsonw w = {.out = &out};
    PGresult *attempts = NULL, *payload = NULL;
    bool ok = false;

    pgparams_text(&p, showing->id);
    if (!pgconn_query(conn, &stmt_attempts, &p, &attempts, err) ||
        (showing->payload && !pgconn_query(conn, &stmt_payload, &p, &payload, err)))
        goto out;
    jsonw_object(&w, NULL);
    show_fields(event, &w, env->json);
    show_attempts(attempts, &w, env->json);
    if (payload && env->json)
        jsonw_str(&w, "payload", pgresult_str(payload, 0, 0));
    jsonw_end(&w);
    if (env->json) {
        puts(strbuf_str(&out));
    } else if (payload) {
        printf("%-15s ", "payload");
        cli_print_safe(PQgetvalue(payload, 0, 0));
        putchar('\n');
    }
    ok = true;

out:
    PQclear(attempts);
    PQclear(payload);
    strbuf_release(&out);
    arena_release(&arena);
    return ok;
}

static bool
show_reader(const struct command_env *env, struct pgconn *conn, const struct dlq_reader *reader,
            void *arg, struct error *err)
{
    struct showing *showing = arg;
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    PGresult *res;

    if (showing->found)
        return true;
    pgparams_text(&p, reader->side);
    pgparams_text(&p, showing->id);
    pgparams_text(&p, reader->name);
    bool ok = pgconn_query(conn, &stmt_show, &p, &res, err);
    arena_release(&arena);
    if (!ok)
        return false;
    if (PQntuples(res) > 0) {
        showing->found = true;
        ok = show_one(conn, res, env, showing, err);
    }
    PQclear(res);
    return ok;
}

int
cmd_dlq_show(const struct command_env *env, int argc, char **argv)
{
    struct showing showing = {.payload = command_option("payload") != NULL};
    int64_t id;

    if (argc != 1 || !value_integer(argv[0], &id))
        return cli_usage("dlq show takes one ID, as `postrider dlq list` shows it");
    showing.id = argv[0];
    int code =
        dlq_each(env, command_option("relay"), command_option("consumer"), show_reader, &showing);
    if (code == EXIT_OK && !showing.found) {
        struct error err;
        error_set_exit(&err, ERR_PERMANENT, EXIT_DIFFERS, "dlq.unknown",
                       "there is no parked event %s", argv[0]);
        error_hint(&err, "postrider dlq list --all");
        return cli_fail(env, &err);
    }
    return code;
}
