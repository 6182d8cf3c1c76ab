/*
 * cmd_consumer_rewind.c — sets a consumer back.  The log says where the positions are and
 * what would be read again; the act is one call of postrider.consumer_rewind() in the
 * consumer's own database.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/consumers.h"
#include "config/values.h"
#include "core/alloc.h"
#include "core/jsonw.h"
#include "pg/pgerror.h"
#include "pg/pgparams.h"

static const struct pgstmt stmt_source = {
    "rewind_source",
    "SELECT log_id FROM postrider.meta",
};
static const struct pgstmt stmt_positions = {
    "rewind_positions",
    "SELECT array_agg(p.part ORDER BY p.part), array_agg(p.next_off ORDER BY p.part)"
    " FROM postrider.consumer_partition p JOIN postrider.consumer c USING (consumer)"
    " WHERE c.name = $1::text AND p.source = $2::text AND p.topic = $3::text",
};
/*
 * $2, $3 partitions and where they are, $4 what is wanted as text: earliest, a time, or
 * {part,part},{off,off} in $5 and $6.  One row; arrays in order of the partitions.
 */
static const struct pgstmt stmt_targets = {
    "rewind_targets",
    "SELECT array_agg(t.part ORDER BY t.part), array_agg(t.off ORDER BY t.part),"
    "  array_agg(t.first_off ORDER BY t.part), array_agg(t.next_off ORDER BY t.part),"
    "  array_agg((SELECT l.event_id FROM postrider.log l WHERE l.topic = $1::text"
    "    AND l.part = t.part AND l.off = t.off - 1) ORDER BY t.part),"
    "  min((SELECT min(nullif(postrider.event_day(l.event_id), '-infinity')) FROM postrider.log l"
    "    WHERE l.topic = $1::text AND l.part = t.part AND l.off >= t.off AND l.off < t.at)),"
    "  string_agg(format('partition %s holds offsets %s to %s, not %s', t.part, t.first_off,"
    "    t.next_off, t.off), '; ' ORDER BY t.part)"
    "    FILTER (WHERE t.off < t.first_off OR t.off > t.next_off),"
    "  (SELECT string_agg(w.part::text, ', ' ORDER BY w.part) FROM unnest($5::int[]) w(part)"
    "    WHERE NOT w.part = ANY ($2::int[]))"
    " FROM (SELECT h.part, h.first_off, h.next_off, u.at,"
    "   CASE WHEN $5::int[] IS NOT NULL THEN w.off WHEN $4::text = 'earliest' THEN h.first_off"
    "    ELSE greatest(h.first_off, least(u.at, coalesce((SELECT l.off FROM postrider.log l"
    "      WHERE l.topic = $1::text AND l.part = h.part"
    "        AND l.at >= nullif($4::text, 'earliest')::timestamptz ORDER BY l.off LIMIT 1),"
    "      h.next_off))) END AS off"
    "  FROM unnest($2::int[], $3::bigint[]) AS u(part, at)"
    "  JOIN postrider.log_head h ON h.topic = $1::text AND h.part = u.part"
    "  LEFT JOIN unnest($5::int[], $6::bigint[]) AS w(part, off) ON w.part = h.part"
    "  WHERE $5::int[] IS NULL OR w.part IS NOT NULL) t",
};
static const struct pgstmt stmt_rewind = {
    "consumer_rewind",
    "SELECT * FROM postrider.consumer_rewind($1::text, $2::text, $3::text, $4::int[], $5::bigint[],"
    " $6::bigint[], $7::bigint[], $8::uuid[], $9::date, $10::boolean, $11::text, $12::text,"
    " $13::text, $14::boolean)",
};

struct rewinding {
    const struct command_env *env;
    const struct consumer_config *consumer;
    const char *to;
    struct strbuf parts, offs; /* "{0,3}" and "{120,88}" of PART=OFFSET,…; else empty */
    struct pgconn *conn, *bus;
    PGresult *source, *positions, *targets; /* a row each */
};

/* ------------------------------------------------------------------ where to */

/* "0=120,3=88".  False: it is no such list. */
static bool
parse_offsets(struct rewinding *r)
{
    char *copy = xstrdup(r->to), *rest = NULL;
    bool ok = true;

    for (char *item = strtok_r(copy, ",", &rest); ok && item; item = strtok_r(NULL, ",", &rest)) {
        char *equals = strchr(item, '=');
        int64_t part, off;
        if (equals)
            *equals = '\0';
        ok = equals && value_integer(item, &part) && value_integer(equals + 1, &off) && part >= 0 &&
             part < INT32_MAX && off >= 0;
        if (!ok)
            break;
        strbuf_addf(&r->parts, "%c%lld", r->parts.len ? ',' : '{', (long long) part);
        strbuf_addf(&r->offs, "%c%lld", r->offs.len ? ',' : '{', (long long) off);
    }
    strbuf_addf(&r->parts, "}");
    strbuf_addf(&r->offs, "}");
    free(copy);
    return ok;
}

static bool
find_positions(struct rewinding *r, struct arena *arena, struct error *err)
{
    const struct consumer_config *c = r->consumer;
    struct pgparams p = {.arena = arena};

    if (!consumers_has_log(c,
                           "stop the consumer, then UPDATE postrider.consumer_partition SET "
                           "next_off = OFFSET, last_id = NULL, reread_to = next_off, epoch = epoch "
                           "+ 1 for its topic and part",
                           err) ||
        !consumers_open(c->database, "rewind", &r->conn, err) ||
        !consumers_open(c->destination->database, "rewind, source", &r->bus, err) ||
        !pgconn_query(r->bus, &stmt_source, NULL, &r->source, err))
        return false;
    pgparams_text(&p, c->name);
    pgparams_text(&p, PQgetvalue(r->source, 0, 0));
    pgparams_text(&p, c->topic);
    if (!pgconn_query(r->conn, &stmt_positions, &p, &r->positions, err))
        return false;
    if (!PQgetisnull(r->positions, 0, 0))
        return true;
    error_set_exit(err, ERR_PERMANENT, EXIT_DIFFERS, "consumer.refused",
                   "consumer %s has read nothing of topic %s in %s yet: it has no positions",
                   c->name, c->topic, pgconn_target(r->bus));
    return error_hint(err, "postrider consumer list");
}

static bool
find_targets(struct rewinding *r, struct arena *arena, struct error *err)
{
    struct pgparams p = {.arena = arena};
    bool list = r->parts.len > 0;

    pgparams_text(&p, r->consumer->topic);
    pgparams_text(&p, PQgetvalue(r->positions, 0, 0));
    pgparams_text(&p, PQgetvalue(r->positions, 0, 1));
    pgparams_text(&p, list ? "earliest" : r->to);
    pgparams_text(&p, list ? strbuf_str(&r->parts) : NULL);
    pgparams_text(&p, list ? strbuf_str(&r->offs) : NULL);
    if (!pgconn_query(r->bus, &stmt_targets, &p, &r->targets, err)) {
        if (strncmp(err->sqlstate, "22", 2) == 0)
            error_set_exit(err, ERR_PERMANENT, EXIT_USAGE, "cli.usage",
                           "--to takes earliest, PART=OFFSET,… or a time like "
                           "2026-12-01T05:00:00Z, not \"%s\"",
                           r->to);
        return false;
    }
    const char *outside = pgresult_str(r->targets, 0, 6), *unknown = pgresult_str(r->targets, 0, 7);
    if (!outside && !unknown && !PQgetisnull(r->targets, 0, 0))
        return true;
    if (unknown)
        error_set_exit(err, ERR_PERMANENT, EXIT_DIFFERS, "consumer.refused",
                       "nothing was done: consumer %s has no partition %s of topic %s",
                       r->consumer->name, unknown, r->consumer->topic);
    else
        error_set_exit(err, ERR_PERMANENT, EXIT_DIFFERS, "consumer.refused",
                       "nothing was done: topic %s in %s: %s", r->consumer->topic,
                       pgconn_target(r->bus), outside ? outside : "it is not there");
    return error_hint(err, "postrider consumer list --consumer %s", r->consumer->name);
}

/* ------------------------------------------------------------------ the act */

enum { PART, WAS, NOW, OWNER };

static void
say_text(const PGresult *res)
{
    bool dry = command_option("dry-run") != NULL;

    for (int row = 0; row < PQntuples(res); row++) {
        int64_t again = pgresult_i64(res, row, WAS) - pgresult_i64(res, row, NOW);
        printf("partition %s: %s to %s, ", PQgetvalue(res, row, PART), PQgetvalue(res, row, WAS),
               PQgetvalue(res, row, NOW));
        if (again >= 0)
            printf("%lld messages %s again", (long long) again, dry ? "would be read" : "are read");
        else
            printf("%lld messages that the log has dropped are passed over", (long long) -again);
        if (!PQgetisnull(res, row, OWNER))
            printf(" (by %s, which goes on from there)", PQgetvalue(res, row, OWNER));
        putchar('\n');
    }
    if (command_option("reset-streams"))
        printf("streams and dedupe records %s forgotten: what is read again is applied again\n",
               dry ? "would be" : "are");
}

static void
say_json(const PGresult *res)
{
    struct strbuf out = {0};
    struct jsonw w = {.out = &out};

    jsonw_object(&w, NULL);
    jsonw_bool(&w, "done", command_option("dry-run") == NULL);
    jsonw_bool(&w, "reset", command_option("reset-streams") != NULL);
    jsonw_array(&w, "partitions");
    for (int row = 0; row < PQntuples(res); row++) {
        jsonw_object(&w, NULL);
        jsonw_i64(&w, "partition", pgresult_i64(res, row, PART));
        jsonw_i64(&w, "was", pgresult_i64(res, row, WAS));
        jsonw_i64(&w, "now", pgresult_i64(res, row, NOW));
        jsonw_str(&w, "owner", pgresult_str(res, row, OWNER));
        jsonw_end(&w);
    }
    jsonw_end(&w);
    jsonw_end(&w);
    puts(strbuf_str(&out));
    strbuf_release(&out);
}

static bool
act(struct rewinding *r, struct arena *arena, struct error *err)
{
    struct pgparams p = {.arena = arena};
    PGresult *res;

    pgparams_text(&p, r->consumer->name);
    pgparams_text(&p, PQgetvalue(r->source, 0, 0));
    pgparams_text(&p, r->consumer->topic);
    for (int col = 0; col < 6; col++)
        pgparams_text(&p, pgresult_str(r->targets, 0, col));
    pgparams_text(&p, command_option("reset-streams") ? "t" : "f");
    pgparams_text(&p, command_option("actor"));
    pgparams_text(&p, command_option("reason"));
    pgparams_text(&p, command_option("ticket"));
    pgparams_text(&p, command_option("dry-run") ? "t" : "f");
    if (!pgconn_query(r->conn, &stmt_rewind, &p, &res, err)) {
        if (pgerror_is(err, "PR025") && !err->hint[0])
            return error_hint(err, "postrider consumer list --consumer %s", r->consumer->name);
        return consumers_refused(r->consumer->name, err);
    }
    if (r->env->json)
        say_json(res);
    else
        say_text(res);
    PQclear(res);
    return true;
}

static bool
rewind_it(struct rewinding *r, struct error *err)
{
    struct arena arena = {0};
    bool ok = find_positions(r, &arena, err) && find_targets(r, &arena, err) && act(r, &arena, err);

    PQclear(r->source);
    PQclear(r->positions);
    PQclear(r->targets);
    pgconn_close(r->conn);
    pgconn_close(r->bus);
    arena_release(&arena);
    return ok;
}

int
cmd_consumer_rewind(const struct command_env *env, int argc, char **argv)
{
    struct rewinding r = {.env = env, .to = command_option("to")};
    const char *name = command_option("consumer");
    struct config *config = NULL;
    struct error err;

    (void) argc;
    (void) argv;
    if (!name || !cli_option_given("to"))
        return cli_usage("consumer rewind needs --consumer NAME and --to POSITION");
    if (!cli_option_given("actor") || !cli_option_given("reason"))
        return cli_usage(
            "consumer rewind needs --actor NAME and --reason TEXT: both go to the audit");
    bool listed = !strchr(r.to, '=') || parse_offsets(&r);
    int code = EXIT_OK;
    if (!listed)
        code = cli_usage("--to takes PART=OFFSET,PART=OFFSET,…, not \"%s\"", r.to);
    else if (!cli_config(env, &config, &err) ||
             !(r.consumer = consumers_find(config, name, &err)) || !rewind_it(&r, &err))
        code = cli_fail(env, &err);
    strbuf_release(&r.parts);
    strbuf_release(&r.offs);
    config_free(config);
    return code;
}
