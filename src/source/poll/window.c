#include "source/poll/window.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/bytes.h"
#include "core/strbuf.h"
#include "core/timetext.h"
#include "pg/pgerror.h"

/* Payload bytes read at once, as stored; whatever is in one row is always read. */
#define BYTE_BUDGET "8388608"
_Static_assert(WINDOW_BYTES == 8388608, "the two are one");

const char *const window_setup[] = {
    /* With generic plans and no other way to scan, a plan cannot turn bad as the table grows. */
    "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_bitmapscan = "
    "off;"
    " SET jit = off; SET lock_timeout = '2s'; SET max_parallel_workers_per_gather = 0;"
    " SET row_security = off",
    NULL,
};

#define ROW_COLUMNS                                                                                \
    "id, lane, event_id, aggregate_type, aggregate_id, aggregate_version, event_type,"             \
    " payload, body, content_type, headers, occurred_at, inserted_at"
#define ROW_SIZE "coalesce(pg_column_size(payload), 0) + coalesce(pg_column_size(body), 0) AS size"

/*
 * The rows of the innermost part, in id order, up to and with the one that crosses the
 * byte budget.  `bytes` tells the reader whether that one came.
 */
#define READ_BOUNDED(inner)                                                                        \
    "SELECT id, lane, event_id, aggregate_type, aggregate_id, aggregate_version, event_type,"      \
    " payload::text, body, content_type, headers::text, occurred_at, inserted_at, bytes"           \
    " FROM (SELECT *, sum(size) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) AS bytes"              \
    "       FROM (" inner ") u) w"                                                                 \
    " WHERE bytes - size < " BYTE_BUDGET " ORDER BY id"

/* $1 lanes, $2 xmax(done), $3 open, $4 late transactions, $5 and $6 filter, $7 limit */
#define PASSES_FILTER                                                                              \
    " AND ($5::text[] IS NULL OR aggregate_type = ANY ($5::text[]))"                               \
    " AND ($6::text[] IS NULL OR event_type = ANY ($6::text[]))"
static const struct pgstmt stmt_window = {
    "window",
    READ_BOUNDED("SELECT " ROW_COLUMNS ", " ROW_SIZE " FROM postrider.outbox"
                 " WHERE xid >= $2::xid8 AND xid < pg_snapshot_xmax($3::pg_snapshot)"
                 "   AND lane = ANY ($1::smallint[]) AND pg_visible_in_snapshot(xid, "
                 "$3::pg_snapshot)" PASSES_FILTER " UNION ALL"
                 " SELECT " ROW_COLUMNS ", " ROW_SIZE " FROM postrider.outbox"
                 " WHERE xid = ANY ($4::xid8[]) AND lane = ANY ($1::smallint[])" PASSES_FILTER
                 " ORDER BY id LIMIT $7::bigint"),
};

/*
 * $7 and $8 are the id range, $9 the limit.  The other conditions are wrapped so that no
 * index but the BRIN on id can serve them.
 */
#define RANGE                                                                                      \
    " FROM postrider.outbox WHERE id > $7::bigint AND id <= $8::bigint"                            \
    "   AND ((xid >= $2::xid8 AND pg_visible_in_snapshot(xid, $3::pg_snapshot))"                   \
    "        OR xid = ANY ($4::xid8[])) IS TRUE"                                                   \
    "   AND (lane = ANY ($1::smallint[])) IS TRUE" PASSES_FILTER

static const struct pgstmt stmt_range = {
    "window_range",
    READ_BOUNDED("SELECT " ROW_COLUMNS ", " ROW_SIZE RANGE) " LIMIT $9::bigint",
};

/*
 * The running sum costs as much as half of the reading.  Where all rows are narrow the
 * limit alone keeps a reading small; the content of a wide one is withheld.
 */
#define NARROW "coalesce(pg_column_size(payload), 0) + coalesce(pg_column_size(body), 0) <= 1600"
static const struct pgstmt stmt_range_narrow = {
    "window_range_narrow",
    "SELECT id, lane, event_id, aggregate_type, aggregate_id, aggregate_version, event_type,"
    " CASE WHEN " NARROW " THEN payload::text END, CASE WHEN " NARROW " THEN body END,"
    " content_type, headers::text, occurred_at, inserted_at, 0::bigint" RANGE
    " ORDER BY id LIMIT $9::bigint",
};

const struct pgstmt window_prev = {
    "window_prev",
    "SELECT coalesce((SELECT o.aggregate_version FROM postrider.outbox o"
    "   WHERE o.aggregate_type = k.t AND o.aggregate_id = k.a AND o.aggregate_version < k.v"
    "     AND ($5::text[] IS NULL OR o.event_type = ANY ($5::text[]))"
    "     AND NOT EXISTS (SELECT FROM postrider.parked p WHERE p.side = 'relay'"
    "       AND p.reader = $1::smallint AND p.event_id = o.event_id AND p.state = 'discarded')"
    "   ORDER BY o.aggregate_version DESC LIMIT 1), 0)"
    " FROM unnest($2::text[], $3::text[], $4::bigint[]) WITH ORDINALITY k(t, a, v, n) ORDER BY n",
};

/* Parked events of a stream, $3 and $4, in their order, with the rows they stand for. */
static const struct pgstmt stmt_parked = {
    "window_parked",
    "SELECT o.id, o.lane, o.event_id, o.aggregate_type, o.aggregate_id, o.aggregate_version,"
    " o.event_type, o.payload::text, o.body, o.content_type, o.headers::text, o.occurred_at,"
    " o.inserted_at, p.id, p.state, p.request, p.source"
    " FROM (SELECT * FROM postrider.parked WHERE side = 'relay' AND reader = $1::smallint"
    "   AND aggregate_type = $2::text AND aggregate_id = $3::text AND holds"
    "   AND state <> 'discarded' ORDER BY pos LIMIT 100) p"
    " LEFT JOIN postrider.outbox o ON o.event_id = p.event_id ORDER BY p.pos",
};

static const struct pgstmt stmt_probe = {
    "probe",
    "SELECT pg_current_snapshot(), pg_current_wal_insert_lsn() - '0/0'::pg_lsn,"
    " pg_current_wal_flush_lsn() - '0/0'::pg_lsn,"
    " (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,"
    " (SELECT last_value FROM postrider.outbox_id_seq)",
};
static const struct pgstmt stmt_flushed = {
    "flushed",
    "SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn",
};
static const struct pgstmt stmt_first_xid = {
    "bounds_first",
    "SELECT xid FROM postrider.outbox WHERE xid >= $1::xid8 AND xid < $2::xid8 ORDER BY xid LIMIT "
    "1",
};
static const struct pgstmt stmt_slice = {
    "bounds_slice",
    "SELECT min(id) FROM postrider.outbox WHERE xid >= $1::xid8 AND xid < $2::xid8",
};
static const struct pgstmt stmt_late = {
    "bounds_late",
    "SELECT min(id) FROM postrider.outbox WHERE xid = ANY ($1::xid8[])",
};
/* ------------------------------------------------------------------ probe */

void
probe_release(struct probe *probe)
{
    snapshot_release(&probe->now);
}

bool
window_probe(struct pgconn *conn, struct probe *ret, struct error *err)
{
    PGresult *res;
    struct snapshot now;

    if (!pgconn_query(conn, &stmt_probe, NULL, &res, err))
        return false;
    bool ok = snapshot_parse(pgresult_str(res, 0, 0), &now);
    if (ok) {
        snapshot_release(&ret->now);
        ret->now = now;
        ret->written_lsn = (uint64_t) pgresult_i64(res, 0, 1);
        ret->flushed_lsn = (uint64_t) pgresult_i64(res, 0, 2);
        ret->server_us = pgresult_i64(res, 0, 3);
        ret->last_id = pgresult_i64(res, 0, 4);
    } else {
        error_set(err, ERR_STOP, "pg.protocol", "the server's snapshot cannot be read");
    }
    PQclear(res);
    return ok;
}

bool
window_flushed(struct pgconn *conn, uint64_t *ret_lsn, struct error *err)
{
    PGresult *res;

    if (!pgconn_query(conn, &stmt_flushed, NULL, &res, err))
        return false;
    *ret_lsn = (uint64_t) pgresult_i64(res, 0, 0);
    PQclear(res);
    return true;
}

/* ------------------------------------------------------------------ rows */

void
window_rows_release(struct window_rows *rows)
{
    PQclear(rows->result);
    *rows = (struct window_rows){0};
}

static int64_t
binary_i64(const PGresult *res, int row, int col)
{
    struct bytes in = {.at = PQgetvalue(res, row, col),
                       .left = (size_t) PQgetlength(res, row, col)};

    return (int64_t) bytes_u64(&in);
}

/* From 1970 to 9999: waiting times are differences, and must not run over. */
static int64_t
binary_wall_us(const PGresult *res, int row, int col)
{
    static const int64_t year_9999 = 252455616000LL * 1000000;
    int64_t us = binary_i64(res, row, col);

    if (us < -EPOCH_2000_US)
        us = -EPOCH_2000_US;
    return (us < year_9999 ? us : year_9999) + EPOCH_2000_US;
}

static const char *
text_or_null(const PGresult *res, int row, int col)
{
    return PQgetisnull(res, row, col) ? NULL : PQgetvalue(res, row, col);
}

static void
read_row(const PGresult *res, int n, struct outbox_row *row)
{
    struct bytes lane = {.at = PQgetvalue(res, n, 1), .left = 2};
    int body = PQgetisnull(res, n, 8) ? 7 : 8;

    row->id = binary_i64(res, n, 0);
    row->lane = bytes_u16(&lane);
    memcpy(row->event_id.b, PQgetvalue(res, n, 2), sizeof(row->event_id.b));
    row->aggregate_type = PQgetvalue(res, n, 3);
    row->aggregate_id = PQgetvalue(res, n, 4);
    row->version = binary_i64(res, n, 5);
    row->event_type = PQgetvalue(res, n, 6);
    row->body = PQgetvalue(res, n, body);
    row->body_len = (size_t) PQgetlength(res, n, body);
    row->content_type = PQgetvalue(res, n, 9);
    row->headers = text_or_null(res, n, 10);
    row->occurred_at_pg = binary_i64(res, n, 11);
    row->inserted_at_us = binary_wall_us(res, n, 12);
    row->source_key = NULL;
}

void
window_take_rows(PGresult *res, int limit, struct arena *arena, struct window_rows *ret)
{
    int count = PQntuples(res);

    ret->result = res;
    ret->count = count < limit ? count : limit;
    ret->rows = arena_alloc(arena, sizeof(*ret->rows) * (size_t) (count + 1));
    for (int n = 0; n < ret->count; n++)
        read_row(res, n, &ret->rows[n]);
    for (int n = 0; PQnfields(res) > 14 && n < ret->count; n++)
        ret->rows[n].source_key = PQgetvalue(res, n, 14);
    ret->cut = count > limit || (count > 0 && binary_i64(res, count - 1, 13) >= WINDOW_BYTES);
}

void
window_add_list(struct pgparams *p, char *const *list, size_t count)
{
    struct pgarray a = {0};

    if (count == 0) {
        pgparams_text(p, NULL);
        return;
    }
    pgarray_start(&a, PG_TEXT);
    for (size_t i = 0; i < count; i++)
        pgarray_text(&a, list[i]);
    pgparams_array(p, &a);
    pgarray_release(&a);
}

/* $1 lanes, $2 xmax(done), $3 open, $4 late transactions, $5 and $6 filter */
static void
add_window(struct pgparams *p, const struct window_request *request)
{
    struct pgarray lanes = {0};
    struct strbuf late = {0};

    pgarray_start(&lanes, PG_INT2);
    for (int n = 0; n < 16; n++)
        if (request->lanes & (1 << n))
            pgarray_i16(&lanes, (int16_t) n);
    pgparams_array(p, &lanes);
    pgarray_release(&lanes);
    pgparams_text(p, arena_printf(p->arena, "%" PRIu64, request->done->xmax));
    pgparams_text(p, request->open->text);
    snapshot_late(request->done, request->open, &late);
    pgparams_text(p, arena_strdup(p->arena, strbuf_str(&late)));
    strbuf_release(&late);
    window_add_list(p, request->filter->aggregate_types, request->filter->aggregate_type_count);
    window_add_list(p, request->filter->event_types, request->filter->event_type_count);
    pgparams_binary(p);
}

bool
window_read(struct pgconn *conn, const struct window_request *request, struct arena *arena,
            struct window_rows *ret, struct error *err)
{
    struct pgparams p = {.arena = arena};
    PGresult *res;

    *ret = (struct window_rows){0};
    add_window(&p, request);
    pgparams_i64(&p, WINDOW_LIMIT + 1);
    if (!pgconn_query(conn, &stmt_window, &p, &res, err))
        return false;
    window_take_rows(res, WINDOW_LIMIT, arena, ret);
    return true;
}

/* ------------------------------------------------------------------ parked events */

bool
window_read_parked(struct pgconn *conn, int16_t relay, const char *aggregate_type,
                   const char *aggregate_id, struct arena *arena, struct parked_rows *ret,
                   struct error *err)
{
    struct pgparams p = {.arena = arena};
    PGresult *res;

    *ret = (struct parked_rows){0};
    pgparams_i16(&p, relay);
    pgparams_text(&p, aggregate_type);
    pgparams_text(&p, aggregate_id);
    pgparams_binary(&p);
    if (!pgconn_query(conn, &stmt_parked, &p, &res, err))
        return false;
    ret->result = res;
    ret->count = PQntuples(res);
    ret->rows = arena_zalloc(arena, sizeof(*ret->rows) * (size_t) (ret->count + 1));
    for (int n = 0; n < ret->count; n++) {
        struct parked_row *row = &ret->rows[n];
        row->there = !PQgetisnull(res, n, 0);
        if (row->there)
            read_row(res, n, &row->row);
        row->id = binary_i64(res, n, 13);
        row->dead = strcmp(PQgetvalue(res, n, 14), "dead") == 0;
        row->request = text_or_null(res, n, 15);
        row->source_key = text_or_null(res, n, 16);
    }
    return true;
}

/* ------------------------------------------------------------------ big windows */

bool
window_big_begin(struct pgconn *conn, struct error *err)
{
    return pgconn_exec(conn,
                       "SET enable_bitmapscan = on; SET enable_indexscan = off;"
                       " SET work_mem = '32MB'",
                       err);
}

bool
window_big_end(struct pgconn *conn, struct error *err)
{
    return pgconn_exec(conn,
                       "SET enable_bitmapscan = off; SET enable_indexscan = on;"
                       " RESET work_mem",
                       err);
}

bool
window_range_send(struct pgconn *conn, const struct window_request *request, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};

    add_window(&p, request);
    pgparams_i64(&p, request->after);
    pgparams_i64(&p, request->up_to);
    pgparams_i64(&p, RANGE_LIMIT + 1);
    bool ok = pgconn_send(conn, request->wide ? &stmt_range : &stmt_range_narrow, &p, err);
    arena_release(&arena);
    return ok;
}

/* Nothing from the first row on whose content was withheld. */
static void
cut_at_wide(struct window_rows *rows)
{
    for (int n = 0; n < rows->count; n++) {
        if (!PQgetisnull(rows->result, n, 7) || !PQgetisnull(rows->result, n, 8))
            continue;
        rows->count = n;
        rows->cut = rows->wide = true;
        return;
    }
}

bool
window_range_receive(struct pgconn *conn, struct arena *arena, struct window_rows *ret,
                     struct error *err)
{
    PGresult *res;

    *ret = (struct window_rows){0};
    if (!pgconn_receive(conn, &res, err))
        return false;
    window_take_rows(res, RANGE_LIMIT, arena, ret);
    cut_at_wide(ret);
    return true;
}

/* ------------------------------------------------------------------ bounds */

enum { FIRST_SLICE = 200000, LEAST_SLICE = 1000 };

static bool
query_xids(struct pgconn *conn, const struct pgstmt *stmt, uint64_t from, uint64_t to,
           PGresult **ret, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};

    pgparams_text(&p, arena_printf(&arena, "%" PRIu64, from));
    pgparams_text(&p, arena_printf(&arena, "%" PRIu64, to));
    bool ok = pgconn_query(conn, stmt, &p, ret, err);
    arena_release(&arena);
    return ok;
}

static void
widen(struct bounds *bounds, const PGresult *res)
{
    if (PQgetisnull(res, 0, 0))
        return;
    int64_t low = pgresult_i64(res, 0, 0);
    if (!bounds->found || low < bounds->low)
        bounds->low = low;
    bounds->found = true;
}

/* Transactions that had begun before `done` and ended since. */
static bool
step_late(struct pgconn *conn, const struct window_request *request, struct bounds *bounds,
          struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    struct strbuf late = {0};
    PGresult *res;

    snapshot_late(request->done, request->open, &late);
    pgparams_text(&p, strbuf_str(&late));
    bool ok = pgconn_query(conn, &stmt_late, &p, &res, err);
    if (ok) {
        widen(bounds, res);
        PQclear(res);
        bounds->next_xid = request->done->xmax;
        bounds->slice = FIRST_SLICE;
    }
    strbuf_release(&late);
    arena_release(&arena);
    return ok;
}

/*
 * When no row is older than the window, it begins where the ids begin: a relay that reads
 * an outbox from its start needs no search.
 */
static bool
step_whole(struct pgconn *conn, const struct window_request *request, struct bounds *bounds,
           struct error *err)
{
    PGresult *res;

    if (!query_xids(conn, &stmt_first_xid, 0, request->done->xmax, &res, err))
        return false;
    if (PQntuples(res) == 0) {
        bounds->low = 1;
        bounds->found = bounds->finished = true;
    }
    PQclear(res);
    return true;
}

/* Jumps over transactions that wrote no event; false in *ret_more at the end of the window. */
static bool
skip_to_first(struct pgconn *conn, const struct window_request *request, struct bounds *bounds,
              bool *ret_more, struct error *err)
{
    PGresult *res;

    if (!query_xids(conn, &stmt_first_xid, bounds->next_xid, request->open->xmax, &res, err))
        return false;
    *ret_more = PQntuples(res) > 0;
    if (*ret_more)
        bounds->next_xid = strtoull(PQgetvalue(res, 0, 0), NULL, 10);
    PQclear(res);
    return true;
}

bool
bounds_step(struct pgconn *conn, const struct window_request *request, struct bounds *bounds,
            struct error *err)
{
    PGresult *res;
    bool more;

    if (bounds->next_xid == 0)
        return step_late(conn, request, bounds, err) && step_whole(conn, request, bounds, err);
    if (!skip_to_first(conn, request, bounds, &more, err))
        return false;
    if (!more) {
        bounds->finished = true;
        return true;
    }
    uint64_t to = bounds->next_xid + bounds->slice;
    if (to > request->open->xmax)
        to = request->open->xmax;
    if (!query_xids(conn, &stmt_slice, bounds->next_xid, to, &res, err)) {
        /* Too much in one slice (huge transactions): a smaller one, then. */
        if (!pgerror_is(err, "57014") || bounds->slice <= LEAST_SLICE)
            return false;
        bounds->slice /= 8;
        return true;
    }
    widen(bounds, res);
    PQclear(res);
    bounds->next_xid = to;
    return true;
}
