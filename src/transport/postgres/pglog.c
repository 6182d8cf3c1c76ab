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
#include "transport/transport.h"

enum {
    MAX_QUEUE = 16384,
    UNIT_MESSAGES = 2000,
    UNIT_BYTES = 4 * 1024 * 1024,
    MAX_BYTES = 2 * UNIT_BYTES,
    LANES = 16,
};

struct pglog {
    struct transport base;
    struct pgconn *conn;
    struct uuid writer;
    unsigned entry_type; /* postrider.log_entry's number in this database */

    const struct message *queue[MAX_QUEUE]; /* sent by the worker, in order */
    size_t head, count;
    size_t in_flight; /* of them, in the statement under way; the first ones */

    struct arena arena; /* parameters of the statement under way */
    struct pgarray entries, names, values;
};

static const struct pgstmt stmt_append = {
    "log_append",
    "SELECT postrider.log_append($1::uuid, $2::smallint[], $3::bigint[], "
    "$4::postrider.log_entry[])",
};
static const struct pgstmt stmt_topic = {
    "log_create_topic",
    "SELECT postrider.log_create_topic($1::text, $2::int)",
};
static const struct pgstmt stmt_entry_type = {
    "log_entry_type",
    "SELECT 'postrider.log_entry'::regtype::oid",
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
    arena_release(&t->arena);
    pgarray_release(&t->entries);
    pgarray_release(&t->names);
    pgarray_release(&t->values);
    free(t);
}

static bool
find_entry_type(struct pglog *t, struct error *err)
{
    PGresult *res;

    if (!pgconn_query(t->conn, &stmt_entry_type, NULL, &res, err))
        return false;
    t->entry_type = (unsigned) pgresult_i64(res, 0, 0);
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
    if (!pgconn_open(config->database, &options, &t->conn, err) || !find_entry_type(t, err)) {
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

static void
add_field(struct strbuf *out, unsigned type, const void *data, size_t len)
{
    strbuf_add_u32(out, type);
    strbuf_add_u32(out, (uint32_t) len);
    strbuf_add(out, data, len);
}

/* One element of the array: a postrider.log_entry in binary form, length in front. */
static void
add_entry(struct pglog *t, const struct message *m)
{
    struct strbuf *out = &t->entries.data;
    size_t length_at = out->len;

    pgarray_start(&t->names, PG_TEXT);
    pgarray_start(&t->values, PG_BYTEA);
    for (int i = 0; i < m->header_count; i++) {
        pgarray_text(&t->names, m->headers[i].name);
        pgarray_bytes(&t->values, m->headers[i].value.data, m->headers[i].value.len);
    }
    strbuf_add_u32(out, 0);
    strbuf_add_u32(out, 7); /* fields */
    add_field(out, PG_TEXT, m->topic, strlen(m->topic));
    strbuf_add_u32(out, PG_INT4);
    strbuf_add_u32(out, 4);
    strbuf_add_u32(out, (uint32_t) m->part);
    add_field(out, PG_BYTEA, m->key.data, m->key.len);
    add_field(out, PG_UUID, m->event_id.b, sizeof(m->event_id.b));
    strbuf_add_u32(out, PG_TEXT_ARRAY);
    pgarray_append_field(out, &t->names);
    strbuf_add_u32(out, PG_BYTEA_ARRAY);
    pgarray_append_field(out, &t->values);
    add_field(out, PG_BYTEA, m->body.data, m->body.len);

    uint32_t length = (uint32_t) (out->len - length_at - 4);
    for (int i = 0; i < 4; i++)
        out->data[length_at + (size_t) i] = (char) (length >> (24 - 8 * i));
    t->entries.count++;
}

static void
add_lanes(struct pgparams *p, const int64_t epochs[LANES])
{
    struct pgarray lanes = {0}, values = {0};

    pgarray_start(&lanes, PG_INT2);
    pgarray_start(&values, PG_INT8);
    for (int lane = 0; lane < LANES; lane++) {
        if (epochs[lane] < 0)
            continue;
        pgarray_i16(&lanes, (int16_t) lane);
        pgarray_i64(&values, epochs[lane]);
    }
    pgparams_array(p, &lanes);
    pgparams_array(p, &values);
    pgarray_release(&lanes);
    pgarray_release(&values);
}

static bool
start_unit(struct pglog *t, struct error *err)
{
    int64_t epochs[LANES];
    struct pgparams p = {.arena = &t->arena};

    arena_reset(&t->arena);
    memset(epochs, -1, sizeof(epochs));
    pgarray_start(&t->entries, t->entry_type);
    t->in_flight = 0;
    while (t->in_flight < t->count && t->in_flight < UNIT_MESSAGES &&
           t->entries.data.len < UNIT_BYTES) {
        const struct message *m = t->queue[(t->head + t->in_flight++) % MAX_QUEUE];
        epochs[m->lane] = m->epoch;
        add_entry(t, m);
    }
    pgparams_uuid(&p, &t->writer);
    add_lanes(&p, epochs);
    pgparams_array(&p, &t->entries);
    return pgconn_send(t->conn, &stmt_append, &p, err);
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
