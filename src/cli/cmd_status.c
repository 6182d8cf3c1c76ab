#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/relays.h"
#include "core/jsonw.h"
#include "pg/pgconn.h"
#include "pg/schema.h"

/*
 * Bounded: the lanes' positions tell where to look, and one row not yet passed is
 * enough to know that something is due.
 */
static const struct pgstmt stmt_relay = {
    "status_relay",
    "SELECT count(*) FILTER (WHERE l.owner IS NOT NULL AND l.lease_until > clock_timestamp()),"
    "  (SELECT string_agg(DISTINCT i.host, ', ') FROM postrider.instance i JOIN postrider.lane o"
    "    ON o.owner = i.id WHERE o.relay = r.relay AND o.lease_until > clock_timestamp()),"
    "  round(extract(epoch FROM clock_timestamp() - min(due.inserted_at)) * 1000)::bigint,"
    "  (SELECT count(*) FROM postrider.parked p WHERE p.side = 'relay' AND p.reader = r.relay"
    "    AND p.state = 'dead'), count(*)"
    " FROM postrider.relay r JOIN postrider.lane l USING (relay)"
    " LEFT JOIN LATERAL (SELECT o.inserted_at FROM postrider.outbox o WHERE o.lane = l.lane"
    "   AND o.xid >= pg_snapshot_xmin(l.done_snap) AND NOT pg_visible_in_snapshot(o.xid, "
    "l.done_snap)"
    "   AND NOT coalesce(o.id <= l.open_pos AND pg_visible_in_snapshot(o.xid, l.open_snap), false)"
    "   ORDER BY o.xid LIMIT 1) due ON r.outbox = 'postrider.outbox'"
    " WHERE r.name = $1::text GROUP BY r.relay",
};
static const struct pgstmt stmt_positions = {
    "status_positions",
    "SELECT p.part, p.next_off, p.owner IS NOT NULL AND p.lease_until > clock_timestamp()"
    " FROM postrider.consumer_partition p JOIN postrider.consumer c USING (consumer)"
    " WHERE c.name = $1::text AND p.topic = $2::text",
};
static const struct pgstmt stmt_parked = {
    "status_parked",
    "SELECT count(*) FILTER (WHERE state = 'waiting'), count(*) FILTER (WHERE state = 'retry'),"
    "  count(*) FILTER (WHERE state = 'dead')"
    " FROM postrider.parked p JOIN postrider.consumer c ON c.consumer = p.reader"
    " WHERE p.side = 'consumer' AND c.name = $1::text",
};
static const struct pgstmt stmt_heads = {
    "status_heads",
    "SELECT part, next_off, first_off FROM postrider.log_head WHERE topic = $1::text",
};

enum { LATE_MS = 10000 };

struct status {
    const struct command_env *env;
    struct jsonw *json;
    int code; /* EXIT_OK until something is not right; the worst wins */
};

/* One line for one worker, with the next thing to do when it is not right. */
static void
say(struct status *s, const char *kind, const char *name, const char *facts, const char *todo,
    int code)
{
    if (s->code == EXIT_OK || code == EXIT_AWAY)
        s->code = code != EXIT_OK ? code : s->code;
    if (s->env->json) {
        jsonw_object(s->json, NULL);
        jsonw_str(s->json, kind, name);
        jsonw_bool(s->json, "ok", code == EXIT_OK);
        jsonw_str(s->json, "facts", facts);
        jsonw_str(s->json, "todo", *todo ? todo : NULL);
        jsonw_end(s->json);
        return;
    }
    printf("%-8s %-28s %-4s %s\n", kind, name, code == EXIT_OK ? "ok" : "NOT", facts);
    if (*todo)
        printf("%44s → %s\n", "", todo);
}

static bool
open_checked(const char *dsn, struct pgconn **ret, struct error *err)
{
    struct pgconn_options options = {.purpose = "status", .system_search_path = true};

    return pgconn_open(dsn, &options, ret, err) && schema_check(*ret, err);
}

static bool
query_name(struct pgconn *conn, const struct pgstmt *stmt, const char *a, const char *b,
           PGresult **ret, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};

    pgparams_text(&p, a);
    if (b)
        pgparams_text(&p, b);
    bool ok = pgconn_query(conn, stmt, &p, ret, err);
    arena_release(&arena);
    return ok;
}

static void
say_error(struct status *s, const char *kind, const char *name, const struct error *err)
{
    say(s, kind, name, err->text, err->hint, (int) err->exit);
}

/* ------------------------------------------------------------------ relays */

static void
judge_relay(struct status *s, const struct relay_config *r, const PGresult *res, int64_t age_ms)
{
    int64_t owned = pgresult_i64(res, 0, 0), dead = pgresult_i64(res, 0, 3);
    bool due = age_ms >= 0;
    const char *host = pgresult_str(res, 0, 1);
    const char *todo = "";
    char facts[256], dlq[128];

    snprintf(facts, sizeof(facts), "%lld of %lld lanes owned%s%s, ", (long long) owned,
             (long long) pgresult_i64(res, 0, 4), host ? " by " : "", host ? host : "");
    size_t len = strlen(facts);
    if (due)
        snprintf(facts + len, sizeof(facts) - len, "oldest pending %.1f s", (double) age_ms / 1000);
    else
        snprintf(facts + len, sizeof(facts) - len, "nothing pending");
    len = strlen(facts);
    if (dead > 0)
        snprintf(facts + len, sizeof(facts) - len, ", refused: %lld dead", (long long) dead);
    snprintf(dlq, sizeof(dlq), "postrider dlq list --relay %s", r->name);
    if (owned == 0)
        todo = "no process runs this relay: start `postrider run`";
    else if (dead > 0 && r->outbox->table) /* it is among the pending, and may be all of them */
        todo = dlq;
    else if (due && age_ms > LATE_MS)
        todo = "see its log, or /readyz: it says what the relay waits for";
    else if (dead > 0)
        todo = dlq;
    say(s, "relay", r->name, facts, todo, *todo ? EXIT_DIFFERS : EXIT_OK);
}

/* How long the oldest event waits: -1: none does. */
static bool
find_age(struct pgconn *conn, const struct relay_config *r, const PGresult *relay, int64_t *ret,
         struct error *err)
{
    *ret = PQgetisnull(relay, 0, 2) ? -1 : pgresult_i64(relay, 0, 2);
    return !r->outbox->table || relays_mark_age(conn, r->outbox, ret, err);
}

static void
show_relay(struct status *s, const struct relay_config *r)
{
    struct pgconn *conn = NULL;
    PGresult *res = NULL;
    struct error err;
    int64_t age_ms;

    if (!open_checked(r->outbox->database, &conn, &err) ||
        !query_name(conn, &stmt_relay, r->name, NULL, &res, &err))
        say_error(s, "relay", r->name, &err);
    else if (PQntuples(res) == 0)
        say(s, "relay", r->name, "not registered", "postrider init", EXIT_DIFFERS);
    else if (!find_age(conn, r, res, &age_ms, &err))
        say_error(s, "relay", r->name, &err);
    else
        judge_relay(s, r, res, age_ms);
    PQclear(res);
    pgconn_close(conn);
}

/* ------------------------------------------------------------------ consumers */

/* Messages between the positions and the log's heads; partitions without a position count whole. */
static int64_t
lag_of(const PGresult *heads, const PGresult *positions, int64_t *ret_owned)
{
    int64_t lag = 0;

    *ret_owned = 0;
    for (int i = 0; i < PQntuples(heads); i++) {
        int64_t next = pgresult_i64(heads, i, 2);
        for (int j = 0; j < PQntuples(positions); j++) {
            if (pgresult_i64(heads, i, 0) != pgresult_i64(positions, j, 0))
                continue;
            next = pgresult_i64(positions, j, 1);
            *ret_owned += pgresult_bool(positions, j, 2);
        }
        lag += pgresult_i64(heads, i, 1) - next;
    }
    return lag;
}

static void
judge_consumer(struct status *s, const struct consumer_config *c, const PGresult *heads,
               const PGresult *positions, const PGresult *parked)
{
    int64_t owned, lag = lag_of(heads, positions, &owned);
    int64_t waiting = pgresult_i64(parked, 0, 0), retry = pgresult_i64(parked, 0, 1);
    int64_t dead = pgresult_i64(parked, 0, 2);
    char facts[256], todo[160] = "";

    snprintf(
        facts, sizeof(facts),
        "%lld of %d partitions owned, %lld behind, parked: %lld waiting, %lld retry, %lld dead",
        (long long) owned, PQntuples(heads), (long long) lag, (long long) waiting,
        (long long) retry, (long long) dead);
    if (owned == 0)
        snprintf(todo, sizeof(todo), "no process runs this consumer: start `postrider run`");
    else if (dead > 0)
        snprintf(todo, sizeof(todo), "postrider dlq list --consumer %s", c->name);
    else if (waiting > 0 && retry == 0)
        snprintf(todo, sizeof(todo), "a version is missing: postrider gaps list --consumer %s",
                 c->name);
    say(s, "consumer", c->name, facts, todo, *todo ? EXIT_DIFFERS : EXIT_OK);
}

static void
show_consumer(struct status *s, const struct consumer_config *c)
{
    struct pgconn *conn = NULL, *bus = NULL;
    PGresult *heads = NULL, *positions = NULL, *parked = NULL;
    struct error err;

    if (!open_checked(c->database, &conn, &err) ||
        !open_checked(c->destination->database, &bus, &err) ||
        !query_name(bus, &stmt_heads, c->topic, NULL, &heads, &err) ||
        !query_name(conn, &stmt_positions, c->name, c->topic, &positions, &err) ||
        !query_name(conn, &stmt_parked, c->name, NULL, &parked, &err))
        say_error(s, "consumer", c->name, &err);
    else
        judge_consumer(s, c, heads, positions, parked);
    PQclear(heads);
    PQclear(positions);
    PQclear(parked);
    pgconn_close(conn);
    pgconn_close(bus);
}

int
cmd_status(const struct command_env *env, int argc, char **argv)
{
    struct strbuf out = {0};
    struct jsonw json = {.out = &out};
    struct status s = {.env = env, .json = &json, .code = EXIT_OK};
    struct config *config;
    struct error err;

    (void) argc;
    (void) argv;
    if (!cli_config(env, &config, &err))
        return cli_fail(env, &err);
    jsonw_array(&json, NULL);
    for (size_t i = 0; i < config->relay_count; i++)
        show_relay(&s, &config->relays[i]);
    for (size_t i = 0; i < config->consumer_count; i++)
        show_consumer(&s, &config->consumers[i]);
    jsonw_end(&json);
    if (env->json)
        puts(strbuf_str(&out));
    else
        puts(s.code == EXIT_OK ? "all right" : "not all right: do what the arrows say");
    strbuf_release(&out);
    config_free(config);
    return s.code;
}
