#include "relay/held.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/digest.h"
#include "pg/pgparams.h"

/* The first parked event of each stream decides whether there is something to do. */
static const struct pgstmt stmt_load = {
    "held_load",
    "SELECT DISTINCT ON (aggregate_type, aggregate_id) lane, aggregate_type, aggregate_id,"
    "  state <> 'discarded', state = 'waiting' OR request IS NOT NULL,"
    "  EXISTS (SELECT FROM postrider.parked d WHERE d.side = 'relay' AND d.reader = p.reader"
    "    AND d.aggregate_type = p.aggregate_type AND d.aggregate_id = p.aggregate_id"
    "    AND d.state = 'discarded' AND d.holds)"
    " FROM postrider.parked p WHERE side = 'relay' AND reader = $1::smallint AND holds"
    "   AND lane = ANY ($2::smallint[])"
    " ORDER BY aggregate_type, aggregate_id, state = 'discarded', pos",
};
static const struct pgstmt stmt_retries = {
    "held_retries",
    "SELECT EXISTS (SELECT FROM postrider.parked WHERE side = 'relay' AND reader = $1::smallint"
    " AND state = 'retry' AND lane = ANY ($2::smallint[]))",
};
static const struct pgstmt stmt_requests = {
    "held_requests",
    "SELECT DISTINCT aggregate_type, aggregate_id FROM postrider.parked"
    " WHERE side = 'relay' AND reader = $1::smallint AND request IS NOT NULL"
    "   AND lane = ANY ($2::smallint[])",
};

static uint32_t
bucket_of(const char *aggregate_type, const char *aggregate_id)
{
    uint32_t h = murmur2(aggregate_type, strlen(aggregate_type)) * 31 +
                 murmur2(aggregate_id, strlen(aggregate_id));

    return h % HELD_BUCKETS;
}

struct held_stream *
held_find(const struct held *held, const char *aggregate_type, const char *aggregate_id)
{
    struct held_stream *s;

    if (held->count == 0)
        return NULL;
    s = held->buckets[bucket_of(aggregate_type, aggregate_id)];
    while (s && (strcmp(s->aggregate_id, aggregate_id) != 0 ||
                 strcmp(s->aggregate_type, aggregate_type) != 0))
        s = s->next;
    return s;
}

struct held_stream *
held_add(struct held *held, int lane, const char *aggregate_type, const char *aggregate_id)
{
    struct held_stream *s = held_find(held, aggregate_type, aggregate_id);

    if (!s) {
        struct held_stream **bucket = &held->buckets[bucket_of(aggregate_type, aggregate_id)];
        s = xcalloc(1, sizeof(*s));
        s->aggregate_type = xstrdup(aggregate_type);
        s->aggregate_id = xstrdup(aggregate_id);
        s->next = *bucket;
        *bucket = s;
        held->count++;
    }
    s->lane = lane;
    return s;
}

static void
free_stream(struct held_stream *stream)
{
    free(stream->aggregate_type);
    free(stream->aggregate_id);
    free(stream);
}

void
held_remove(struct held *held, struct held_stream *stream)
{
    struct held_stream **at =
        &held->buckets[bucket_of(stream->aggregate_type, stream->aggregate_id)];

    while (*at != stream)
        at = &(*at)->next;
    *at = stream->next;
    held->count--;
    free_stream(stream);
}

void
held_release(struct held *held)
{
    for (int i = 0; i < HELD_BUCKETS; i++) {
        for (struct held_stream *s = held->buckets[i], *next; s; s = next) {
            next = s->next;
            free_stream(s);
        }
        held->buckets[i] = NULL;
    }
    held->count = 0;
}

struct held_stream *
held_to_mend(const struct held *held, lane_set owned)
{
    for (int i = 0; held->count > 0 && i < HELD_BUCKETS; i++)
        for (struct held_stream *s = held->buckets[i]; s; s = s->next)
            if (s->mend && (owned & (1 << s->lane)))
                return s;
    return NULL;
}

static bool
query_lanes(const struct lanes *lanes, struct pgconn *conn, const struct pgstmt *stmt,
            PGresult **ret, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    struct pgarray owned = {0};

    pgarray_start(&owned, PG_INT2);
    for (int n = 0; n < LANES; n++)
        if (lanes->owned & (1 << n))
            pgarray_i16(&owned, (int16_t) n);
    pgparams_i16(&p, lanes->relay);
    pgparams_array(&p, &owned);
    pgarray_release(&owned);
    bool ok = pgconn_query(conn, stmt, &p, ret, err);
    arena_release(&arena);
    return ok;
}

bool
held_load(struct held *held, const struct lanes *lanes, struct pgconn *conn, struct error *err)
{
    PGresult *res;

    held_release(held);
    if (!query_lanes(lanes, conn, &stmt_load, &res, err))
        return false;
    for (int row = 0; row < PQntuples(res); row++) {
        struct held_stream *s = held_add(held, (int) pgresult_i64(res, row, 0),
                                         pgresult_str(res, row, 1), pgresult_str(res, row, 2));
        s->holds = pgresult_bool(res, row, 3);
        s->mend = s->holds && pgresult_bool(res, row, 4);
        s->passed = pgresult_bool(res, row, 5);
    }
    PQclear(res);
    if (!query_lanes(lanes, conn, &stmt_retries, &res, err))
        return false;
    held->retries = pgresult_bool(res, 0, 0);
    PQclear(res);
    return true;
}

bool
held_requests(struct held *held, const struct lanes *lanes, struct pgconn *conn, struct error *err)
{
    PGresult *res;

    if (held->count == 0)
        return true;
    if (!query_lanes(lanes, conn, &stmt_requests, &res, err))
        return false;
    for (int row = 0; row < PQntuples(res); row++) {
        struct held_stream *s =
            held_find(held, pgresult_str(res, row, 0), pgresult_str(res, row, 1));
        if (s)
            s->mend = true;
    }
    PQclear(res);
    return true;
}
