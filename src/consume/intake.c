#include "consume/intake.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "consume/source.h"
#include "core/alloc.h"
#include "core/bytes.h"
#include "core/timetext.h"

static const struct pgstmt stmt_log = {
    "log_id",
    "SELECT log_id, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint FROM postrider.meta",
};
static const struct pgstmt stmt_bounds = {
    "log_bounds",
    "SELECT part, first_off, next_off, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    " FROM postrider.log_head WHERE topic = $1::text ORDER BY part",
};
static const struct pgstmt stmt_time = {
    "log_time",
    "SELECT l.off FROM postrider.log l WHERE l.topic = $1::text AND l.part = $2::int"
    " AND l.at >= 'epoch'::timestamptz + $3::bigint * interval '1 microsecond'"
    " ORDER BY l.off LIMIT 1",
};
static const struct pgstmt stmt_check = {
    "log_check",
    "SELECT u.part, u.off, h.first_off, h.next_off,"
    "  u.off > h.first_off AND l.event_id IS DISTINCT FROM u.last_id AND u.last_id IS NOT NULL"
    " FROM unnest($2::int[], $3::bigint[], $4::uuid[]) AS u(part, off, last_id)"
    " LEFT JOIN postrider.log_head h ON h.topic = $1::text AND h.part = u.part"
    " LEFT JOIN LATERAL (SELECT l.event_id FROM postrider.log l WHERE l.topic = $1::text"
    "   AND l.part = u.part AND l.off = u.off - 1) l ON true",
};
/* The head is asked first: for a partition without news it is all that is read. */
static const struct pgstmt stmt_read = {
    "log_read",
    "SELECT l.part, l.off, l.at, l.event_id, l.key, l.header_names, l.header_values, l.body"
    " FROM unnest($2::int[], $3::bigint[]) AS u(part, off)"
    " JOIN postrider.log_head h ON h.topic = $1::text AND h.part = u.part AND h.next_off > u.off"
    " CROSS JOIN LATERAL (SELECT * FROM postrider.log g WHERE g.topic = $1::text"
    "   AND g.part = u.part AND g.off >= u.off ORDER BY g.off LIMIT $4::bigint) l"
    " LIMIT $4::bigint",
};
/* The rows are few and known by key; hashing whole heads or logs never pays. */
static const char *const setup[] = {
    "SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off;"
    " SET default_transaction_read_only = on",
    NULL,
};

struct intake {
    struct source base;
    struct pgconn *conn;
    int limit; /* of the reading under way */
    int turn;  /* which partition is asked first, so that none starves */
};

static struct intake *
of(struct source *s)
{
    return (struct intake *) s;
}

/* ------------------------------------------------------------------ opening */

static void
intake_close(struct source *s)
{
    pgconn_close(of(s)->conn);
    free(s);
}

static bool
intake_open(const struct consumer_config *config, struct source **ret, struct error *err)
{
    char purpose[128];
    struct pgconn_options options = {
        .purpose = purpose, .system_search_path = true, .setup = setup};
    struct intake *intake = xcalloc(1, sizeof(*intake));
    PGresult *res;

    intake->base = (struct source){.ops = &source_postgres, .config = config};
    snprintf(purpose, sizeof(purpose), "consumer %s, source %s", config->name,
             config->destination->name);
    if (!pgconn_open(config->destination->database, &options, &intake->conn, err) ||
        !pgconn_query(intake->conn, &stmt_log, NULL, &res, err)) {
        intake_close(&intake->base);
        return false;
    }
    snprintf(intake->base.id, sizeof(intake->base.id), "%s", PQgetvalue(res, 0, 0));
    intake->base.server_us = pgresult_i64(res, 0, 1);
    PQclear(res);
    *ret = &intake->base;
    return true;
}

static bool
intake_ok(const struct source *s)
{
    return pgconn_ok(((const struct intake *) s)->conn);
}

static void
intake_stop_on(struct source *s, int stop_fd, int grace_ms)
{
    pgconn_stop_on(of(s)->conn, stop_fd, grace_ms);
}

static bool
intake_bounds(struct source *s, struct partition_bounds **ret, int *ret_count, struct error *err)
{
    struct intake *intake = of(s);
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    PGresult *res;

    pgparams_text(&p, intake->base.config->topic);
    bool ok = pgconn_query(intake->conn, &stmt_bounds, &p, &res, err);
    *ret_count = ok ? PQntuples(res) : 0;
    *ret = ok ? xcalloc((size_t) *ret_count + 1, sizeof(**ret)) : NULL;
    if (*ret_count > 0)
        intake->base.server_us = pgresult_i64(res, 0, 3);
    for (int row = 0; row < *ret_count; row++)
        (*ret)[row] = (struct partition_bounds){.part = (int32_t) pgresult_i64(res, row, 0),
                                                .first_off = pgresult_i64(res, row, 1),
                                                .next_off = pgresult_i64(res, row, 2)};
    if (ok)
        PQclear(res);
    arena_release(&arena);
    return ok;
}

static bool
intake_find_time(struct source *s, int64_t us, struct partition_bounds *bounds, int count,
                 struct error *err)
{
    struct arena arena = {0};
    bool ok = true;

    for (int i = 0; ok && i < count; i++) {
        struct pgparams p = {.arena = &arena};
        PGresult *res = NULL;
        pgparams_text(&p, s->config->topic);
        pgparams_i32(&p, bounds[i].part);
        pgparams_i64(&p, us);
        ok = pgconn_query(of(s)->conn, &stmt_time, &p, &res, err);
        if (ok && PQntuples(res) > 0)
            bounds[i].start_off = pgresult_i64(res, 0, 0);
        PQclear(res);
    }
    arena_release(&arena);
    return ok;
}

/* ------------------------------------------------------------------ positions against the log */

/* Offsets are given without a hole, and retention moves first_off before it drops. */
static bool
hole(const struct intake *intake, int64_t part, int64_t ours, int64_t found, struct error *err)
{
    error_set_exit(err, ERR_STOP, EXIT_DIFFERS, "consumer.hole",
                   "partition %" PRId64 " of topic %s: the log has no message at offset %" PRId64
                   ", and one at %" PRId64,
                   part, intake->base.config->topic, ours, found);
    return error_hint(err, "rows were taken out of postrider.log by hand; see "
                           "docs/internals/consume.md, \"A hole\"");
}

static bool
twins(const struct intake *intake, int64_t part, int64_t off, struct error *err)
{
    error_set_exit(err, ERR_STOP, EXIT_DIFFERS, "consumer.twins",
                   "partition %" PRId64 " of topic %s: the log has two messages at offset %" PRId64,
                   part, intake->base.config->topic, off);
    return error_hint(err, "one was written past postrider.log_append(); see "
                           "docs/internals/consume.md, \"Two messages at one offset\"");
}

static bool
judge_position(const struct intake *intake, const PGresult *res, int row, struct error *err)
{
    int64_t part = pgresult_i64(res, row, 0), ours = pgresult_i64(res, row, 1);
    int64_t first = pgresult_i64(res, row, 2), next = pgresult_i64(res, row, 3);

    if (ours < first)
        return source_overtaken(&intake->base, part, ours, first, err);
    if (PQgetisnull(res, row, 3) || ours > next || pgresult_bool(res, row, 4))
        return source_went_back(&intake->base, part, ours, next, err);
    return true;
}

static bool
intake_check(struct source *s, const struct partitions *partitions, struct error *err)
{
    struct intake *intake = of(s);
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    struct pgarray parts = {0}, offs = {0}, ids = {0};
    PGresult *res;

    pgarray_start(&parts, PG_INT4);
    pgarray_start(&offs, PG_INT8);
    pgarray_start(&ids, PG_UUID);
    for (int i = 0; i < partitions->count; i++) {
        const struct partition *it = &partitions->list[i];
        pgarray_i32(&parts, it->part);
        pgarray_i64(&offs, it->next_off);
        if (it->has_last_id)
            pgarray_uuid(&ids, &it->last_id);
        else
            pgarray_null(&ids);
    }
    pgparams_text(&p, intake->base.config->topic);
    pgparams_array(&p, &parts);
    pgparams_array(&p, &offs);
    pgparams_array(&p, &ids);
    bool ok = pgconn_query(intake->conn, &stmt_check, &p, &res, err);
    if (ok) {
        for (int row = 0; ok && row < PQntuples(res); row++)
            ok = judge_position(intake, res, row, err);
        PQclear(res);
    }
    pgarray_release(&parts);
    pgarray_release(&offs);
    pgarray_release(&ids);
    arena_release(&arena);
    return ok;
}

/* ------------------------------------------------------------------ reading */

static bool
intake_ask(struct source *s, struct partitions *partitions, int limit, struct error *err)
{
    struct intake *intake = of(s);
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    struct pgarray parts = {0}, offs = {0};

    PR_CHECK(!intake->base.asked);
    pgarray_start(&parts, PG_INT4);
    pgarray_start(&offs, PG_INT8);
    for (int i = 0; i < partitions->count; i++) {
        const struct partition *it = &partitions->list[(intake->turn + i) % partitions->count];
        if (it->full)
            continue;
        pgarray_i32(&parts, it->part);
        pgarray_i64(&offs, it->read_off);
    }
    intake->turn++;
    pgparams_text(&p, intake->base.config->topic);
    pgparams_array(&p, &parts);
    pgparams_array(&p, &offs);
    pgparams_i64(&p, limit + 1); /* the last is read again: no twin of it may stay unseen */
    pgparams_binary(&p);
    bool ok = pgconn_send(intake->conn, &stmt_read, &p, err);
    intake->base.asked = ok;
    intake->limit = limit;
    pgarray_release(&parts);
    pgarray_release(&offs);
    arena_release(&arena);
    return ok;
}

/* A one-dimensional array in binary form: how many elements; -1 if it is none. */
static int
array_length(struct bytes *in, uint32_t element)
{
    uint32_t dimensions = bytes_u32(in), type;

    bytes_u32(in); /* whether any is null: each says so itself */
    type = bytes_u32(in);
    if (in->bad || dimensions > 1 || type != element)
        return -1;
    if (dimensions == 0)
        return 0;
    uint32_t length = bytes_u32(in);
    bytes_u32(in);
    /* Every element takes four bytes at least, so a made-up length allocates nothing. */
    return in->bad || length > in->left / 4 ? -1 : (int) length;
}

static struct slice
array_element(struct bytes *in)
{
    uint32_t len = bytes_u32(in);

    if (len == UINT32_MAX)
        return (struct slice){NULL, 0};
    const void *data = bytes_take(in, len);
    return (struct slice){data ? data : "", data ? len : 0};
}

static struct slice
column(const PGresult *res, int row, int col)
{
    if (PQgetisnull(res, row, col))
        return (struct slice){NULL, 0};
    return (struct slice){PQgetvalue(res, row, col), (size_t) PQgetlength(res, row, col)};
}

bool
intake_content(const PGresult *res, int row, int col, struct arena *arena, struct incoming *ret)
{
    struct slice names_column = column(res, row, col + 1),
                 values_column = column(res, row, col + 2);
    struct bytes names = {.at = names_column.data, .left = names_column.len};
    struct bytes values = {.at = values_column.data, .left = values_column.len};
    int count = array_length(&names, PG_TEXT);

    ret->key = column(res, row, col);
    ret->body = column(res, row, col + 3);
    if (count < 0 || array_length(&values, PG_BYTEA) != count)
        return false;
    struct header *list = arena_alloc(arena, (size_t) count * sizeof(*list) + 1);
    for (int i = 0; i < count; i++) {
        struct slice name = array_element(&names);
        list[i].name = arena_strndup(arena, name.data ? name.data : "", name.len);
        list[i].value = array_element(&values);
    }
    ret->headers = list;
    ret->header_count = count;
    return !names.bad && !values.bad;
}

/* Why a message is missing; the head tells whether retention was it. */
static bool
explain_hole(struct intake *intake, const struct partitions *partitions, const struct partition *at,
             int64_t found, struct error *err)
{
    return intake_check(&intake->base, partitions, err) &&
           hole(intake, at->part, at->read_off, found, err);
}

/* Whether this row has the partition and offset of the one before it. */
static bool
is_twin(const PGresult *res, int row)
{
    return row > 0 && pgresult_binary_i64(res, row, 0) == pgresult_binary_i64(res, row - 1, 0) &&
           pgresult_binary_i64(res, row, 1) == pgresult_binary_i64(res, row - 1, 1);
}

static bool
read_row(struct intake *intake, struct source_batch *batch, int row, struct partitions *partitions,
         struct error *err)
{
    struct incoming *in = &batch->items[batch->count];
    struct partition *from;

    *in = (struct incoming){.source = intake->base.id,
                            .topic = intake->base.config->topic,
                            .part = (int32_t) pgresult_binary_i64(batch->held[0], row, 0),
                            .off = pgresult_binary_i64(batch->held[0], row, 1),
                            .at_us = pgresult_binary_i64(batch->held[0], row, 2) + EPOCH_2000_US};
    from = partitions_find(partitions, in->part);
    if (is_twin(batch->held[0], row))
        return twins(intake, in->part, in->off, err);
    if (!from || in->off < from->read_off)
        return true; /* given away, or claimed anew at another position, since it was asked for */
    if (in->off > from->read_off)
        return explain_hole(intake, partitions, from, in->off, err);
    in->has_origin_id = !PQgetisnull(batch->held[0], row, 3);
    if (in->has_origin_id)
        memcpy(in->origin_id.b, PQgetvalue(batch->held[0], row, 3), sizeof(in->origin_id.b));
    if (!intake_content(batch->held[0], row, 4, &batch->arena, in))
        in->header_count = 0; /* nothing can be read from it: foreign, by its missing id */
    incoming_decode(in, &batch->arena);
    from->read_off++;
    batch->count++;
    return true;
}

static void
clear(void *res)
{
    PQclear(res);
}

static bool
intake_take(struct source *s, struct partitions *partitions, struct source_batch *ret,
            struct error *err)
{
    struct intake *intake = of(s);
    PGresult *res = NULL;

    PR_CHECK(intake->base.asked);
    intake->base.asked = false;
    source_batch_release(ret);
    if (!pgconn_receive(intake->conn, &res, err))
        return false;
    ret->let_go = clear;
    ret->held = arena_alloc(&ret->arena, sizeof(*ret->held));
    ret->held[ret->held_count++] = res;
    int rows = PQntuples(res);
    ret->items = arena_alloc(&ret->arena, sizeof(*ret->items) * (size_t) rows + 1);
    for (int row = 0; row < rows && row < intake->limit; row++)
        if (!read_row(intake, ret, row, partitions, err))
            return false;
    if (rows > intake->limit && is_twin(res, intake->limit))
        return twins(intake, (int32_t) pgresult_binary_i64(res, intake->limit, 0),
                     pgresult_binary_i64(res, intake->limit, 1), err);
    return true;
}

const struct source_ops source_postgres = {
    .open = intake_open,
    .close = intake_close,
    .ok = intake_ok,
    .stop_on = intake_stop_on,
    .bounds = intake_bounds,
    .find_time = intake_find_time,
    .check = intake_check,
    .ask = intake_ask,
    .take = intake_take,
};
