#include <stdio.h>
#include <string.h>

#include "cli/status.h"

static const struct pgstmt stmt_positions = {
    "status_positions",
    "SELECT p.part, p.next_off, p.owner IS NOT NULL AND p.lease_until > clock_timestamp()"
    " FROM postrider.consumer_partition p JOIN postrider.consumer c USING (consumer)"
    " WHERE c.name = $1::text AND p.topic = $2::text ORDER BY p.part",
};
/* By state, and the age of the oldest: no event is counted. */
static const struct pgstmt stmt_parked = {
    "status_parked",
    "SELECT s.state, (SELECT coalesce(sum(k.n), 0)::bigint FROM postrider.parked_count k"
    "     WHERE k.side = 'consumer' AND k.reader = c.consumer AND k.state = s.state),"
    "  (SELECT extract(epoch FROM clock_timestamp() - min(p.first_at))::bigint"
    "     FROM postrider.parked p"
    "     WHERE p.side = 'consumer' AND p.reader = c.consumer AND p.state = s.state)"
    " FROM postrider.consumer c CROSS JOIN unnest(ARRAY['waiting', 'retry', 'dead'])"
    "   WITH ORDINALITY s(state, n)"
    " WHERE c.name = $1::text ORDER BY s.n",
};
static const struct pgstmt stmt_rejected = {
    "status_rejected",
    "SELECT count(*), (array_agg(r.sqlstate ORDER BY r.at DESC))[1],"
    "  (array_agg(r.message ORDER BY r.at DESC))[1]"
    " FROM (SELECT t.at, t.sqlstate, t.message FROM postrider.attempt t"
    "   JOIN postrider.consumer c ON c.consumer = t.reader AND c.name = $1::text"
    "   WHERE t.side = 'consumer' AND t.class = 'rejected'"
    "     AND t.at > clock_timestamp() - interval '1 day' ORDER BY t.at DESC LIMIT 10000) r",
};
static const struct pgstmt stmt_heads = {
    "status_heads",
    "SELECT part, next_off, first_off FROM postrider.log_head WHERE topic = $1::text",
};
/* How long the oldest message from these positions on has been in the log. */
static const struct pgstmt stmt_age = {
    "status_age",
    "SELECT round(extract(epoch FROM clock_timestamp() - min(l.at)) * 1000)::bigint"
    " FROM unnest($2::int[], $3::bigint[]) AS u(part, off) CROSS JOIN LATERAL"
    "  (SELECT g.at FROM postrider.log g WHERE g.topic = $1::text AND g.part = u.part"
    "     AND g.off >= u.off ORDER BY g.off LIMIT 1) l",
};

static const struct pgstmt stmt_reconciled = {
    "status_reconciled",
    "SELECT extract(epoch FROM clock_timestamp() - r.at)::bigint, r.lost, r.foreign_events"
    " FROM postrider.reconciled r JOIN postrider.consumer c USING (consumer)"
    " WHERE c.name = $1::text",
};

enum { WAITING, RETRY, DEAD, STATES };

struct seen {
    PGresult *heads, *positions, *parked, *rejected, *reconciled;
    struct workers workers;
    int64_t owned, lag, age_ms; /* -1: nothing waits */
};

static bool
ask(struct pgconn *conn, const struct pgstmt *stmt, const char *a, const char *b, PGresult **ret,
    struct error *err)
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

/* Where reading goes on in a partition; without a position, at the log's begin. */
static int64_t
position_of(const struct seen *seen, int head, bool *ret_owned)
{
    int64_t part = pgresult_i64(seen->heads, head, 0);

    *ret_owned = false;
    for (int row = 0; row < PQntuples(seen->positions); row++) {
        if (pgresult_i64(seen->positions, row, 0) != part)
            continue;
        *ret_owned = pgresult_bool(seen->positions, row, 2);
        return pgresult_i64(seen->positions, row, 1);
    }
    return pgresult_i64(seen->heads, head, 2);
}

/* Messages between the positions and the log's heads, and how long the oldest waits. */
static bool
measure_lag(struct seen *seen, struct pgconn *bus, const char *topic, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    struct pgarray parts = {0}, offs = {0};
    PGresult *res = NULL;
    bool owned, ok = true;

    pgarray_start(&parts, PG_INT4);
    pgarray_start(&offs, PG_INT8);
    for (int i = 0; i < PQntuples(seen->heads); i++) {
        int64_t next = position_of(seen, i, &owned);
        seen->owned += owned;
        if (next < pgresult_i64(seen->heads, i, 1)) /* above it: the log went back */
            seen->lag += pgresult_i64(seen->heads, i, 1) - next;
        pgarray_i32(&parts, (int32_t) pgresult_i64(seen->heads, i, 0));
        pgarray_i64(&offs, next);
    }
    pgparams_text(&p, topic);
    pgparams_array(&p, &parts);
    pgparams_array(&p, &offs);
    seen->age_ms = -1;
    if (seen->lag > 0)
        ok = pgconn_query(bus, &stmt_age, &p, &res, err);
    if (ok && res && !PQgetisnull(res, 0, 0))
        seen->age_ms = pgresult_i64(res, 0, 0);
    PQclear(res);
    pgarray_release(&parts);
    pgarray_release(&offs);
    arena_release(&arena);
    return ok;
}

static void
add_facts(struct strbuf *out, const struct seen *seen)
{
    char age[32];

    strbuf_addf(out, "%lld of %d partitions owned%s%s, %lld behind", (long long) seen->owned,
                PQntuples(seen->heads), seen->workers.live ? " by " : "", seen->workers.hosts,
                (long long) seen->lag);
    if (seen->age_ms >= 0)
        strbuf_addf(out, ", oldest pending %.1f s", (double) seen->age_ms / 1000);
    strbuf_adds(out, ", parked:");
    for (int i = 0; i < PQntuples(seen->parked); i++) {
        strbuf_addf(out, "%s %s %s", i ? "," : "", PQgetvalue(seen->parked, i, 1),
                    PQgetvalue(seen->parked, i, 0));
        if (!PQgetisnull(seen->parked, i, 2))
            strbuf_addf(out, " (%s)", age_text(pgresult_i64(seen->parked, i, 2), age, sizeof(age)));
    }
    if (pgresult_i64(seen->rejected, 0, 0) > 0)
        strbuf_addf(out, ", rejected: %s in 24 h (%s \"%.100s\")", PQgetvalue(seen->rejected, 0, 0),
                    PQgetvalue(seen->rejected, 0, 1), PQgetvalue(seen->rejected, 0, 2));
}

/* How many differences the last reconciliation found. */
static int64_t
differences(const struct seen *seen)
{
    return PQntuples(seen->reconciled) == 0
               ? 0
               : pgresult_i64(seen->reconciled, 0, 1) + pgresult_i64(seen->reconciled, 0, 2);
}

static void
add_reconciled(struct strbuf *out, const struct seen *seen)
{
    char age[32];

    if (PQntuples(seen->reconciled) == 0)
        return;
    strbuf_addf(out, ", reconciled %s ago: ",
                age_text(pgresult_i64(seen->reconciled, 0, 0), age, sizeof(age)));
    if (differences(seen) == 0)
        strbuf_adds(out, "agrees");
    else
        strbuf_addf(out, "%s lost, %s foreign", PQgetvalue(seen->reconciled, 0, 1),
                    PQgetvalue(seen->reconciled, 0, 2));
}

/* The worst thing first: what a person does about it, "" if nothing. */
static void
find_todo(const struct consumer_config *c, const struct seen *seen, char *ret, size_t size)
{
    int64_t count[STATES];

    for (int i = 0; i < STATES; i++)
        count[i] = pgresult_i64(seen->parked, i, 1);
    *ret = '\0';
    if (!seen->workers.well)
        snprintf(ret, size, "%s", seen->workers.todo);
    else if (seen->workers.live == 0 && seen->owned == 0)
        snprintf(ret, size, "no process runs this consumer: start `postrider run`");
    else if (count[DEAD] > 0)
        snprintf(ret, size, "postrider dlq list --consumer %s", c->name);
    else if (count[WAITING] > 0 && count[RETRY] == 0)
        snprintf(ret, size, "a version is missing: postrider gaps list --consumer %s", c->name);
    else if (seen->age_ms > LATE_MS)
        snprintf(ret, size, "see its log, or /readyz: it says what the consumer waits for");
    else if (differences(seen) > 0)
        snprintf(ret, size, "postrider reconcile %s", c->name);
}

static void
judge(struct status *s, const struct consumer_config *c, const struct seen *seen)
{
    struct strbuf facts = {0};
    char todo[400];

    add_facts(&facts, seen);
    add_reconciled(&facts, seen);
    find_todo(c, seen, todo, sizeof(todo));
    status_say(s, &(struct finding){.kind = "consumer",
                                    .name = c->name,
                                    .state = seen->workers.state,
                                    .facts = strbuf_str(&facts),
                                    .why = seen->workers.why,
                                    .todo = todo});
    strbuf_release(&facts);
}

void
status_consumer(struct status *s, const struct consumer_config *c)
{
    struct pgconn *conn = NULL, *bus = NULL;
    struct seen seen = {0};
    struct error err;

    if (!c->destination->database) {
        error_set_exit(&err, ERR_PERMANENT, EXIT_REFUSED, "consumer.refused",
                       "it reads from Kafka, which this command cannot look at yet");
        error_hint(&err, "/readyz and the metrics of its process tell state and lag");
        status_say_error(s, "consumer", c->name, &err);
        return;
    }
    if (!status_open(c->database, &conn, &err) ||
        !status_open(c->destination->database, &bus, &err) ||
        !ask(bus, &stmt_heads, c->topic, NULL, &seen.heads, &err) ||
        !ask(conn, &stmt_positions, c->name, c->topic, &seen.positions, &err) ||
        !ask(conn, &stmt_parked, c->name, NULL, &seen.parked, &err) ||
        !ask(conn, &stmt_rejected, c->name, NULL, &seen.rejected, &err) ||
        !ask(conn, &stmt_reconciled, c->name, NULL, &seen.reconciled, &err) ||
        !workers_find(conn, "consumer", c->name, &seen.workers, &err) ||
        !measure_lag(&seen, bus, c->topic, &err))
        status_say_error(s, "consumer", c->name, &err);
    else if (PQntuples(seen.parked) == 0)
        status_say(s, &(struct finding){.kind = "consumer",
                                        .name = c->name,
                                        .facts = "not registered",
                                        .todo = "postrider init"});
    else
        judge(s, c, &seen);
    PQclear(seen.heads);
    PQclear(seen.positions);
    PQclear(seen.parked);
    PQclear(seen.rejected);
    PQclear(seen.reconciled);
    pgconn_close(conn);
    pgconn_close(bus);
}
