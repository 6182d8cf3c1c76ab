#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/relays.h"
#include "cli/status.h"
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
void
status_say(struct status *s, const struct finding *f)
{
    int code = f->code != EXIT_OK ? f->code : *f->todo ? EXIT_DIFFERS : EXIT_OK;

    if (s->code == EXIT_OK || code == EXIT_AWAY)
        s->code = code != EXIT_OK ? code : s->code;
    if (s->env->json) {
        jsonw_object(s->json, NULL);
        jsonw_str(s->json, f->kind, f->name);
        jsonw_bool(s->json, "ok", code == EXIT_OK);
        jsonw_str(s->json, "state", f->state && *f->state ? f->state : NULL);
        jsonw_str(s->json, "facts", f->facts);
        jsonw_str(s->json, "why", f->why && *f->why ? f->why : NULL);
        jsonw_str(s->json, "todo", *f->todo ? f->todo : NULL);
        jsonw_end(s->json);
        return;
    }
    printf("%-8s %-28s %-4s ", f->kind, f->name, code == EXIT_OK ? "ok" : "NOT");
    cli_print_safe(f->facts);
    if (f->why && *f->why) {
        printf("\n%43s", "");
        cli_print_safe(f->why);
    }
    if (*f->todo) {
        printf("\n%43s→ ", "");
        cli_print_safe(f->todo);
    }
    putchar('\n');
}

bool
status_open(const char *dsn, struct pgconn **ret, struct error *err)
{
    struct pgconn_options options = {.purpose = "status", .system_search_path = true};

    return pgconn_open(dsn, &options, ret, err) && schema_check(*ret, err);
}

void
status_say_error(struct status *s, const char *kind, const char *name, const struct error *err)
{
    status_say(s, &(struct finding){.kind = kind,
                                    .name = name,
                                    .facts = err->text,
                                    .todo = err->hint,
                                    .code = (int) err->exit});
}

/* ------------------------------------------------------------------ relays */

/* The worst thing first: what a person does about it, "" if nothing. */
static const char *
todo_of(const struct relay_config *r, const struct workers *workers, int64_t owned, int64_t dead,
        int64_t age_ms, char *dlq, size_t size)
{
    snprintf(dlq, size, "postrider dlq list --relay %s", r->name);
    if (!workers->well)
        return workers->todo;
    if (workers->live == 0 && owned == 0)
        return "no process runs this relay: start `postrider run`";
    if (dead > 0 && r->outbox->table) /* it is among the pending, and may be all of them */
        return dlq;
    if (age_ms > LATE_MS)
        return "see its log, or /readyz: it says what the relay waits for";
    return dead > 0 ? dlq : "";
}

static void
judge_relay(struct status *s, const struct relay_config *r, const PGresult *res,
            const struct workers *workers, int64_t age_ms)
{
    int64_t owned = pgresult_i64(res, 0, 0), dead = pgresult_i64(res, 0, 2);
    char dlq[128];
    struct strbuf facts = {0};

    strbuf_addf(&facts, "%lld of %lld lanes owned%s%s, ", (long long) owned,
                (long long) pgresult_i64(res, 0, 3), workers->live ? " by " : "", workers->hosts);
    if (age_ms >= 0)
        strbuf_addf(&facts, "oldest pending %.1f s", (double) age_ms / 1000);
    else
        strbuf_adds(&facts, "nothing pending");
    if (dead > 0)
        strbuf_addf(&facts, ", refused: %lld dead", (long long) dead);
    status_say(
        s, &(struct finding){.kind = "relay",
                             .name = r->name,
                             .state = workers->state,
                             .facts = strbuf_str(&facts),
                             .why = workers->why,
                             .todo = todo_of(r, workers, owned, dead, age_ms, dlq, sizeof(dlq))});
    strbuf_release(&facts);
}

/* How long the oldest event waits: -1: none does. */
static bool
find_age(struct pgconn *conn, const struct relay_config *r, const PGresult *relay, int64_t *ret,
         struct error *err)
{
    *ret = PQgetisnull(relay, 0, 1) ? -1 : pgresult_i64(relay, 0, 1);
    return !r->outbox->table || relays_mark_age(conn, r->outbox, ret, err);
}

static bool
ask_relay(struct pgconn *conn, const struct relay_config *r, PGresult **ret, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};

    pgparams_text(&p, r->name);
    bool ok = pgconn_query(conn, &stmt_relay, &p, ret, err);
    arena_release(&arena);
    return ok;
}

static void
show_relay(struct status *s, const struct relay_config *r)
{
    struct pgconn *conn = NULL;
    PGresult *res = NULL;
    struct workers workers;
    struct error err;
    int64_t age_ms;

    if (!status_open(r->outbox->database, &conn, &err) || !ask_relay(conn, r, &res, &err))
        status_say_error(s, "relay", r->name, &err);
    else if (PQntuples(res) == 0)
        status_say(s, &(struct finding){.kind = "relay",
                                        .name = r->name,
                                        .facts = "not registered",
                                        .todo = "postrider init"});
    else if (!find_age(conn, r, res, &age_ms, &err) ||
             !workers_find(conn, "relay", r->name, &workers, &err))
        status_say_error(s, "relay", r->name, &err);
    else
        judge_relay(s, r, res, &workers, age_ms);
    PQclear(res);
    pgconn_close(conn);
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
        status_consumer(&s, &config->consumers[i]);
    jsonw_end(&json);
    if (env->json)
        puts(strbuf_str(&out));
    else
        puts(s.code == EXIT_OK ? "all right" : "not all right: do what the arrows say");
    strbuf_release(&out);
    config_free(config);
    return s.code;
}
