#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "config/values.h"
#include "core/alloc.h"
#include "core/jsonw.h"
#include "pg/pgconn.h"
#include "pg/schema.h"

enum { DEFAULT_LIMIT = 20, FOLLOW_WAIT_MS = 200 };

/* How far this command has shown each partition. */
struct tail {
    const struct command_env *env;
    struct pgconn *conn;
    bool payload;
    int64_t left; /* messages still to be shown; -1: no end */
    struct place {
        char *topic;
        int part;
        int64_t next;
    } * places;
    size_t count, cap;
};

static const struct pgstmt stmt_heads = {
    "tail_heads",
    "SELECT topic, part, first_off, next_off FROM postrider.log_head"
    " WHERE $1::text IS NULL OR topic = $1::text ORDER BY topic, part",
};
static const struct pgstmt stmt_messages = {
    "tail_messages",
    "SELECT l.topic, l.part, l.off, to_char(l.at AT TIME ZONE 'UTC', "
    "'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'),"
    "  l.event_id, h.type, h.aggregate_type, h.aggregate_id, h.version, octet_length(l.body),"
    "  CASE WHEN $5::boolean THEN encode(l.body, 'escape') END"
    " FROM unnest($1::text[], $2::int[], $3::bigint[]) p(topic, part, off)"
    " CROSS JOIN LATERAL (SELECT * FROM postrider.log g WHERE g.topic = p.topic AND g.part = p.part"
    "   AND g.off >= p.off ORDER BY g.off LIMIT $4::bigint) l"
    " CROSS JOIN LATERAL (SELECT"
    "   max(encode(v, 'escape')) FILTER (WHERE n = 'postrider-type') AS type,"
    "   max(encode(v, 'escape')) FILTER (WHERE n = 'postrider-aggregate-type') AS aggregate_type,"
    "   max(encode(v, 'escape')) FILTER (WHERE n = 'postrider-aggregate-id') AS aggregate_id,"
    "   max(encode(v, 'escape')) FILTER (WHERE n = 'postrider-version') AS version"
    "   FROM unnest(l.header_names, l.header_values) u(n, v)) h"
    " ORDER BY l.at, l.topic, l.part, l.off LIMIT $4::bigint",
};

static struct place *
find_place(struct tail *tail, const char *topic, int part)
{
    for (size_t i = 0; i < tail->count; i++)
        if (tail->places[i].part == part && strcmp(tail->places[i].topic, topic) == 0)
            return &tail->places[i];
    GROW(tail->places, tail->count, tail->cap);
    tail->places[tail->count] = (struct place){xstrdup(topic), part, -1};
    return &tail->places[tail->count++];
}

/* `back`: how many messages before the end to begin with; -1: all. */
static bool
look_for_partitions(struct tail *tail, const char *topic, int64_t back, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    PGresult *res;

    pgparams_text(&p, topic);
    bool ok = pgconn_query(tail->conn, &stmt_heads, &p, &res, err);
    arena_release(&arena);
    if (!ok)
        return false;
    for (int row = 0; row < PQntuples(res); row++) {
        struct place *place =
            find_place(tail, PQgetvalue(res, row, 0), (int) pgresult_i64(res, row, 1));
        int64_t first = pgresult_i64(res, row, 2), next = pgresult_i64(res, row, 3);
        if (place->next < 0)
            place->next = back < 0 || next - back < first ? first : next - back;
    }
    PQclear(res);
    return true;
}

static void
show_json(const struct tail *tail, const PGresult *res, int row)
{
    static const char *const names[] = {"topic",    "partition",  "offset",         "at",
                                        "event_id", "event_type", "aggregate_type", "aggregate_id",
                                        "version",  "bytes"};
    struct strbuf out = {0};
    struct jsonw w = {.out = &out};

    jsonw_object(&w, NULL);
    for (int col = 0; col < (int) PR_LENGTH(names); col++) {
        if (col == 1 || col == 2 || col == 9)
            jsonw_i64(&w, names[col], pgresult_i64(res, row, col));
        else
            jsonw_str(&w, names[col], pgresult_str(res, row, col));
    }
    if (tail->payload)
        jsonw_str(&w, "payload", pgresult_str(res, row, 10));
    jsonw_end(&w);
    puts(strbuf_str(&out));
    strbuf_release(&out);
}

static void
show_text(const struct tail *tail, const PGresult *res, int row)
{
    printf("%s ", PQgetvalue(res, row, 3));
    cli_print_safe(PQgetvalue(res, row, 0));
    printf("/%s@%s  ", PQgetvalue(res, row, 1), PQgetvalue(res, row, 2));
    cli_print_safe(PQgetvalue(res, row, 5));
    putchar(' ');
    cli_print_safe(PQgetvalue(res, row, 6));
    putchar(':');
    cli_print_safe(PQgetvalue(res, row, 7));
    printf(" v%s  %s  %s bytes\n", PQgetvalue(res, row, 8), PQgetvalue(res, row, 4),
           PQgetvalue(res, row, 9));
    if (tail->payload) {
        fputs("    ", stdout);
        cli_print_safe(PQgetvalue(res, row, 10));
        putchar('\n');
    }
}

static bool
show_messages(struct tail *tail, int64_t limit, int *ret_shown, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    struct pgarray topics = {0}, parts = {0}, offsets = {0};
    PGresult *res;

    pgarray_start(&topics, PG_TEXT);
    pgarray_start(&parts, PG_INT4);
    pgarray_start(&offsets, PG_INT8);
    for (size_t i = 0; i < tail->count; i++) {
        pgarray_text(&topics, tail->places[i].topic);
        pgarray_i32(&parts, tail->places[i].part);
        pgarray_i64(&offsets, tail->places[i].next);
    }
    pgparams_array(&p, &topics);
    pgparams_array(&p, &parts);
    pgparams_array(&p, &offsets);
    pgparams_i64(&p, limit);
    pgparams_text(&p, tail->payload ? "t" : "f");
    bool ok = pgconn_query(tail->conn, &stmt_messages, &p, &res, err);
    pgarray_release(&topics);
    pgarray_release(&parts);
    pgarray_release(&offsets);
    arena_release(&arena);
    if (!ok)
        return false;
    *ret_shown = PQntuples(res);
    for (int row = 0; row < *ret_shown; row++) {
        struct place *place =
            find_place(tail, PQgetvalue(res, row, 0), (int) pgresult_i64(res, row, 1));
        place->next = pgresult_i64(res, row, 2) + 1;
        if (tail->env->json)
            show_json(tail, res, row);
        else
            show_text(tail, res, row);
    }
    PQclear(res);
    fflush(stdout);
    return true;
}

static bool
run(struct tail *tail, const char *topic, bool follow, int64_t back, struct error *err)
{
    while (!ferror(stdout)) {
        int shown = 0;
        int64_t limit = tail->left >= 0 && tail->left < 1000 ? tail->left : 1000;
        if (!look_for_partitions(tail, topic, back, err) ||
            !show_messages(tail, limit, &shown, err))
            return false;
        back = -1; /* a partition that appears later is shown from its beginning */
        if (tail->left >= 0)
            tail->left -= shown;
        if (tail->left == 0 || (shown == 0 && !follow))
            break;
        struct pollfd reader = {.fd = STDOUT_FILENO};
        if (shown == 0 && poll(&reader, 1, FOLLOW_WAIT_MS) > 0)
            break; /* it has gone: nobody is left to follow for */
    }
    return true;
}

static const struct destination_config *
choose_destination(const struct config *config, struct error *err)
{
    const char *name = command_option("destination");
    const struct destination_config *found = NULL;
    int count = 0;

    for (size_t i = 0; i < config->destination_count; i++) {
        const struct destination_config *d = &config->destinations[i];
        if (!d->database || (name && strcmp(d->name, name) != 0))
            continue;
        found = d;
        count++;
    }
    if (count == 1)
        return found;
    error_set_exit(err, ERR_PERMANENT, EXIT_USAGE, "tail.destination",
                   "%d postgres destinations fit: say which with --destination", count);
    return NULL;
}

int
cmd_tail(const struct command_env *env, int argc, char **argv)
{
    struct pgconn_options options = {.purpose = "tail", .system_search_path = true};
    const char *from = command_option("from"), *limit = command_option("limit");
    bool follow = command_option("follow") != NULL;
    struct tail tail = {.env = env, .payload = command_option("payload") != NULL};
    const struct destination_config *destination;
    struct config *config = NULL;
    struct error err;
    int64_t back;

    (void) argc;
    (void) argv;
    tail.left = follow ? -1 : DEFAULT_LIMIT;
    if (limit && (!value_integer(limit, &tail.left) || tail.left < 1))
        return cli_usage("--limit takes a number above 0, not \"%s\"", limit);
    if (from && strcmp(from, "earliest") != 0 && strcmp(from, "now") != 0)
        return cli_usage("--from takes earliest or now, not \"%s\"", from);
    back = !from ? (tail.left > 0 ? tail.left : DEFAULT_LIMIT) : strcmp(from, "now") == 0 ? 0 : -1;
    bool ok = cli_config(env, &config, &err) && (destination = choose_destination(config, &err)) &&
              pgconn_open(destination->database, &options, &tail.conn, &err) &&
              schema_check(tail.conn, &err) &&
              run(&tail, command_option("topic"), follow, back, &err);
    pgconn_close(tail.conn);
    config_free(config);
    for (size_t i = 0; i < tail.count; i++)
        free(tail.places[i].topic);
    free(tail.places);
    return ok ? EXIT_OK : cli_fail(env, &err);
}
