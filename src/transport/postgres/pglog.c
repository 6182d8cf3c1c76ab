/*
 * pglog.c — the log in a PostgreSQL database: one postrider.log_append() per unit, and
 * only one of them under way.  Two pipelined appends are not prefix-failing: the first
 * can fail on a lock and the second commit, which was seen to leave version 9 without 7.
 *
 * The server takes a unit whole or not at all, so a failure with an SQLSTATE is "not
 * stored" and only a lost connection leaves the question open.
 */
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/failpoint.h"
#include "pg/pgconn.h"
#include "transport/postgres/unit.h"
#include "transport/transport.h"

enum { MAX_QUEUE = 16384, MAX_BYTES = 2 * UNIT_BYTES };

struct pglog {
    struct transport base;
    struct pgconn *conn;
    struct uuid writer;

    const struct message *queue[MAX_QUEUE]; /* sent by the worker, in order */
    size_t head, count;
    size_t in_flight; /* of them, in the statement under way; the first ones */

    struct unit *unit; /* the next statement, made ready while one is under way */
    struct pgparams params;
};

static const struct pgstmt stmt_append = {
    "log_append",
    "SELECT postrider.log_append($1::uuid, $2::smallint[], $3::bigint[], $4::text[], $5::int[],"
    " $6::int[], $7::bytea[], $8::uuid[], $9::postrider.log_names[], $10::smallint[],"
    " $11::postrider.log_values[], $12::bytea[])",
};
static const struct pgstmt stmt_topic = {
    "log_create_topic",
    "SELECT postrider.log_create_topic($1::text, $2::int)",
};
static const struct pgstmt stmt_types = {
    "log_types",
    "SELECT 'postrider.log_names'::regtype::oid, 'postrider.log_values'::regtype::oid",
};
static const struct pgstmt stmt_fence = {
    "log_fence",
    "SELECT epoch FROM postrider.log_writer WHERE writer = $1::uuid AND lane = $2::smallint",
};

static void
pglog_close(struct transport *base)
{
    struct pglog *t = (struct pglog *) base;

    pgconn_close(t->conn);
    unit_free(t->unit);
    free(t);
}

static bool
prepare(struct pglog *t, struct error *err)
{
    PGresult *res;

    if (!pgconn_query(t->conn, &stmt_types, NULL, &res, err))
        return false;
    t->unit = unit_new((unsigned) pgresult_i64(res, 0, 0), (unsigned) pgresult_i64(res, 0, 1));
    PQclear(res);
    return true;
}

static bool
pglog_open(const struct destination_config *config, const char *purpose, const struct uuid *writer,
           struct transport **ret, struct error *err)
{
    struct pgconn_options options = {.purpose = purpose, .system_search_path = true};
    struct pglog *t = xcalloc(1, sizeof(*t));

    t->base.ops = &transport_postgres;
    t->base.caps = (struct transport_caps){.fail_model = TRANSPORT_PREFIX,
                                           .durability = DURABLE_FSYNC,
                                           .max_queue = MAX_QUEUE,
                                           .max_bytes = MAX_BYTES};
    t->writer = *writer;
    if (!pgconn_open(config->database, &options, &t->conn, err) || !prepare(t, err)) {
        pglog_close(&t->base);
        return false;
    }
    *ret = &t->base;
    return true;
}

static bool
pglog_topic(struct transport *base, const char *topic, int *partitions, struct error *err)
{
    struct pglog *t = (struct pglog *) base;
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};

    pgparams_text(&p, topic);
    pgparams_i32(&p, *partitions);
    bool ok = pgconn_run(t->conn, &stmt_topic, &p, err);
    arena_release(&arena);
    return ok;
}

static bool
pglog_send(struct transport *base, const struct message *message, struct error *err)
{
    struct pglog *t = (struct pglog *) base;

    (void) err;
    PR_CHECK(t->count < MAX_QUEUE);
    t->queue[(t->head + t->count++) % MAX_QUEUE] = message;
    return true;
}

/* ------------------------------------------------------------------ one unit */

/* Makes the next unit from what waits behind the one under way. */
static void
fill_unit(struct pglog *t)
{
    if (unit_count(t->unit) > 0 || t->in_flight == t->count)
        return;
    for (size_t i = t->in_flight; i < t->count; i++)
        if (!unit_add(t->unit, t->queue[(t->head + i) % MAX_QUEUE]))
            break;
    t->params = (struct pgparams){0};
    unit_params(t->unit, &t->writer, &t->params);
}

/* libpq has its own copy of what was sent, so the unit is free for the next messages. */
static bool
start_unit(struct pglog *t, struct error *err)
{
    fill_unit(t);
    t->in_flight = unit_count(t->unit);
    bool ok = pgconn_send(t->conn, &stmt_append, &t->params, err);
    unit_start(t->unit);
    return ok;
}

static void
report(struct pglog *t, size_t count, enum error_class cls, struct receipts *ret)
{
    for (size_t i = 0; i < count; i++) {
        const struct message *m = t->queue[t->head];
        t->head = (t->head + 1) % MAX_QUEUE;
        ret->list[ret->count++] = (struct receipt){.cookie = m->cookie, .cls = cls};
    }
    t->count -= count;
}

/* The unit under way failed: it has err's class, what was never sent is merely not stored. */
static bool
fail(struct pglog *t, struct receipts *ret, struct error *err)
{
    size_t rest = t->count - t->in_flight;

    if (!pgconn_ok(t->conn))
        err->cls = ERR_UNKNOWN;
    report(t, t->in_flight, err->cls, ret);
    report(t, rest, ERR_TRANSIENT, ret);
    t->in_flight = 0;
    unit_start(t->unit);
    return error_wrap(err, "appending to the log");
}

static bool
pglog_settle(struct transport *base, int64_t until_us, struct receipts *ret, struct error *err)
{
    struct pglog *t = (struct pglog *) base;
    PGresult *res;

    while (t->count > 0) {
        if (t->in_flight == 0 && !start_unit(t, err))
            return fail(t, ret, err);
        fill_unit(t);
        if (!pgconn_wait(t->conn, until_us))
            return true;
        if (!pgconn_receive(t->conn, &res, err))
            return fail(t, ret, err);
        PQclear(res);
        FAILPOINT("relay.confirmed");
        report(t, t->in_flight, ERR_NONE, ret);
        t->in_flight = 0;
    }
    return true;
}

static bool
pglog_fence(struct transport *base, int lane, int64_t *ret, struct error *err)
{
    struct pglog *t = (struct pglog *) base;
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    PGresult *res;

    pgparams_uuid(&p, &t->writer);
    pgparams_i16(&p, (int16_t) lane);
    bool ok = pgconn_query(t->conn, &stmt_fence, &p, &res, err);
    if (ok) {
        *ret = PQntuples(res) > 0 ? pgresult_i64(res, 0, 0) : 0;
        PQclear(res);
    }
    arena_release(&arena);
    return ok;
}

const struct transport_ops transport_postgres = {
    .kind = "postgres",
    .open = pglog_open,
    .topic = pglog_topic,
    .send = pglog_send,
    .settle = pglog_settle,
    .fence = pglog_fence,
    .close = pglog_close,
};
