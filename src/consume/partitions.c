#include "consume/partitions.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/log.h"
#include "pg/schema.h"

enum { MARGIN_US = 1000000 };

static const struct pgstmt stmt_create = {
    "partition_create",
    "INSERT INTO postrider.consumer_partition (consumer, source, topic, part, next_off)"
    " SELECT $1::smallint, $2::text, $3::text, u.part, u.off"
    "   FROM unnest($4::int[], $5::bigint[]) AS u(part, off)"
    " ON CONFLICT DO NOTHING",
};
static const struct pgstmt stmt_seen = {
    "consumer_seen",
    "INSERT INTO postrider.instance AS i (id, side, reader, name, host, seen_at, until)"
    " SELECT $1::uuid, 'consumer', c.consumer, c.name, $3::text, clock_timestamp(),"
    "     clock_timestamp() + $4::bigint * interval '1 microsecond'"
    "   FROM postrider.consumer c WHERE c.consumer = $2::smallint"
    " ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, until = excluded.until",
};
static const struct pgstmt stmt_live = {
    "consumer_live",
    "SELECT count(*) FROM postrider.instance WHERE side = 'consumer' AND reader = $1::smallint"
    " AND seen_at > clock_timestamp() - $2::bigint * interval '1 microsecond'",
};
static const struct pgstmt stmt_leave = {
    "consumer_leave",
    "DELETE FROM postrider.instance WHERE id = $1::uuid OR (side = 'consumer' AND"
    " seen_at < clock_timestamp() - interval '1 day')",
};
static const struct pgstmt stmt_claim = {
    "partition_claim",
    "WITH c AS (SELECT source, topic, part FROM postrider.consumer_partition"
    "   WHERE consumer = $1::smallint AND source = $3::text AND topic = $4::text"
    "     AND (lease_until < clock_timestamp() OR owner = $2::uuid)"
    "     AND NOT part = ANY($7::int[]) AND ($8::int[] IS NULL OR part = ANY($8::int[]))"
    "   ORDER BY random() LIMIT $6::bigint FOR UPDATE SKIP LOCKED)"
    " UPDATE postrider.consumer_partition p SET owner = $2::uuid, epoch = p.epoch + 1,"
    "   lease_until = clock_timestamp() + $5::bigint * interval '1 microsecond'"
    " FROM c WHERE p.consumer = $1::smallint"
    "   AND p.source = c.source AND p.topic = c.topic AND p.part = c.part"
    " RETURNING p.part, p.epoch, p.next_off, p.last_id",
};
static const struct pgstmt stmt_renew = {
    "partition_renew",
    "UPDATE postrider.consumer_partition p"
    " SET lease_until = clock_timestamp() + $7::bigint * interval '1 microsecond'"
    " FROM unnest($5::int[], $6::bigint[]) AS u(part, epoch)"
    " WHERE p.consumer = $1::smallint AND p.owner = $2::uuid AND p.source = $3::text"
    "   AND p.topic = $4::text AND p.part = u.part AND p.epoch = u.epoch"
    " RETURNING p.part, (SELECT max(min_binary) FROM postrider.schema_version)",
};
static const struct pgstmt stmt_give = {
    "partition_release",
    "UPDATE postrider.consumer_partition p SET owner = NULL, lease_until = '-infinity'"
    " FROM unnest($5::int[], $6::bigint[]) AS u(part, epoch)"
    " WHERE p.consumer = $1::smallint AND p.owner = $2::uuid AND p.source = $3::text"
    "   AND p.topic = $4::text AND p.part = u.part AND p.epoch = u.epoch"
    " RETURNING p.part",
};

void
partitions_init(struct partitions *p, const char *topic, int64_t lease_us)
{
    *p = (struct partitions){.owner = uuid_v7(), .topic = topic, .lease_us = lease_us};
}

void
partitions_release(struct partitions *p)
{
    free(p->list);
    free(p->wanted);
    p->list = NULL;
    p->wanted = NULL;
    p->wanted_count = 0;
    p->count = p->cap = 0;
}

void
partitions_forget(struct partitions *p)
{
    p->changes += p->count;
    p->count = 0;
    p->renew_at_us = 0;
}

bool
partitions_may_apply(const struct partitions *p)
{
    return clock_mono_us() < p->deadline_us;
}

struct partition *
partitions_find(struct partitions *p, int32_t part)
{
    for (int i = 0; i < p->count; i++)
        if (p->list[i].part == part)
            return &p->list[i];
    return NULL;
}

/* ------------------------------------------------------------------ rows */

bool
partitions_create(struct partitions *p, struct pgconn *conn, const struct partition_bounds *bounds,
                  int count, struct error *err)
{
    struct arena arena = {0};
    struct pgparams params = {.arena = &arena};
    struct pgarray parts = {0}, offs = {0};

    pgarray_start(&parts, PG_INT4);
    pgarray_start(&offs, PG_INT8);
    for (int i = 0; i < count; i++) {
        pgarray_i32(&parts, bounds[i].part);
        pgarray_i64(&offs, bounds[i].start_off);
    }
    pgparams_i16(&params, p->consumer);
    pgparams_text(&params, p->source);
    pgparams_text(&params, p->topic);
    pgparams_array(&params, &parts);
    pgparams_array(&params, &offs);
    bool ok = pgconn_run(conn, &stmt_create, &params, err);
    p->total = count;
    pgarray_release(&parts);
    pgarray_release(&offs);
    arena_release(&arena);
    return ok;
}

/* ------------------------------------------------------------------ leases */

/* $1 consumer, $2 owner, $3 source, $4 topic. */
static void
add_self(struct pgparams *params, const struct partitions *p)
{
    pgparams_i16(params, p->consumer);
    pgparams_uuid(params, &p->owner);
    pgparams_text(params, p->source);
    pgparams_text(params, p->topic);
}

/*
 * Runs a statement over the last `count` partitions owned, with $5 parts and $6 epochs,
 * and keeps in memory those it did not name (`keep`: those it did).
 */
static bool
run_on_last(struct partitions *p, struct pgconn *conn, const struct pgstmt *stmt, int count,
            bool keep, struct error *err)
{
    struct arena arena = {0};
    struct pgparams params = {.arena = &arena};
    struct pgarray parts = {0}, epochs = {0};
    PGresult *res;
    int from = p->count - count, kept = from;

    pgarray_start(&parts, PG_INT4);
    pgarray_start(&epochs, PG_INT8);
    for (int i = from; i < p->count; i++) {
        pgarray_i32(&parts, p->list[i].part);
        pgarray_i64(&epochs, p->list[i].epoch);
    }
    add_self(&params, p);
    pgparams_array(&params, &parts);
    pgparams_array(&params, &epochs);
    if (keep)
        pgparams_i64(&params, p->lease_us);
    bool ok = pgconn_query(conn, stmt, &params, &res, err);
    for (int i = from; ok && keep && i < p->count; i++) {
        bool named = false;
        for (int row = 0; row < PQntuples(res); row++)
            named |= pgresult_i64(res, row, 0) == p->list[i].part;
        if (named)
            p->list[kept++] = p->list[i];
    }
    if (ok) {
        p->changes += p->count - kept;
        p->count = kept;
        if (stmt == &stmt_renew && PQntuples(res) > 0)
            ok = schema_is_served(conn, (int) pgresult_i64(res, 0, 1), err);
        PQclear(res);
    }
    pgarray_release(&parts);
    pgarray_release(&epochs);
    arena_release(&arena);
    return ok;
}

/* The margin covers a clock that runs slower than the server's. */
static int64_t
deadline_from(const struct partitions *p, int64_t asked_at_us)
{
    int64_t margin = p->lease_us / 3 < MARGIN_US ? p->lease_us / 3 : MARGIN_US;

    return asked_at_us + p->lease_us - margin;
}

static bool
renew(struct partitions *p, struct pgconn *conn, struct error *err)
{
    int64_t asked_at = clock_mono_us();
    int owned = p->count;

    if (owned == 0)
        return true;
    if (!run_on_last(p, conn, &stmt_renew, owned, true, err))
        return false;
    if (p->count < owned)
        log_warn("consumer.fenced", F_STR("doing", "renew"), F_I64("partitions", owned - p->count));
    p->deadline_us = deadline_from(p, asked_at);
    return true;
}

static int
by_part(const void *a, const void *b)
{
    const struct partition *left = a, *right = b;

    return left->part < right->part ? -1 : left->part > right->part;
}

static void
take_claimed(struct partitions *p, const PGresult *res)
{
    for (int row = 0; row < PQntuples(res); row++) {
        const char *id = pgresult_str(res, row, 3);
        struct partition *it;
        GROW(p->list, p->count, p->cap);
        it = &p->list[p->count++];
        *it = (struct partition){.part = (int32_t) pgresult_i64(res, row, 0),
                                 .epoch = pgresult_i64(res, row, 1),
                                 .next_off = pgresult_i64(res, row, 2)};
        it->read_off = it->next_off;
        it->has_last_id = id && uuid_parse(id, strlen(id), &it->last_id);
    }
    qsort(p->list, (size_t) p->count, sizeof(*p->list), by_part);
}

static bool
claim(struct partitions *p, struct pgconn *conn, int at_most, bool *ret_claimed, struct error *err)
{
    struct arena arena = {0};
    struct pgparams params = {.arena = &arena};
    struct pgarray mine = {0}, wanted = {0};
    PGresult *res;
    int64_t asked_at = clock_mono_us();
    bool first = p->count == 0;

    pgarray_start(&mine, PG_INT4);
    for (int i = 0; i < p->count; i++)
        pgarray_i32(&mine, p->list[i].part);
    add_self(&params, p);
    pgparams_i64(&params, p->lease_us);
    pgparams_i64(&params, at_most);
    pgparams_array(&params, &mine);
    pgarray_start(&wanted, PG_INT4);
    for (int i = 0; i < p->wanted_count; i++)
        pgarray_i32(&wanted, p->wanted[i]);
    if (p->grouped)
        pgparams_array(&params, &wanted);
    else
        pgparams_text(&params, NULL);
    bool ok = pgconn_query(conn, &stmt_claim, &params, &res, err);
    if (ok && PQntuples(res) > 0) {
        take_claimed(p, res);
        p->changes += PQntuples(res);
        *ret_claimed = true;
        if (first) /* else the older leases end first, and theirs is the deadline */
            p->deadline_us = deadline_from(p, asked_at);
        log_info("consumer.claimed", F_I64("partitions", PQntuples(res)), F_I64("owned", p->count),
                 F_I64("of", p->total));
    }
    if (ok)
        PQclear(res);
    pgarray_release(&mine);
    pgarray_release(&wanted);
    arena_release(&arena);
    return ok;
}

bool
partitions_probe(struct partitions *p, struct pgconn *conn, struct error *err)
{
    struct arena arena = {0};
    struct pgparams params = {.arena = &arena};

    pgparams_uuid(&params, &p->owner);
    pgparams_i16(&params, p->consumer);
    pgparams_text(&params, "probe");
    pgparams_i64(&params, p->lease_us);
    bool ok = pgconn_run(conn, &stmt_seen, &params, err);
    arena_release(&arena);
    return ok;
}

static bool
say_alive(struct partitions *p, struct pgconn *conn, const char *host, int *ret_live,
          struct error *err)
{
    struct arena arena = {0};
    struct pgparams seen = {.arena = &arena}, live = {.arena = &arena};
    PGresult *res;
    bool ok = false;

    pgparams_uuid(&seen, &p->owner);
    pgparams_i16(&seen, p->consumer);
    pgparams_text(&seen, host);
    pgparams_i64(&seen, p->lease_us);
    pgparams_i16(&live, p->consumer);
    pgparams_i64(&live, p->lease_us);
    if (pgconn_run(conn, &stmt_seen, &seen, err) &&
        pgconn_query(conn, &stmt_live, &live, &res, err)) {
        *ret_live = (int) pgresult_i64(res, 0, 0);
        PQclear(res);
        ok = true;
    }
    arena_release(&arena);
    return ok;
}

static bool
is_wanted(const struct partitions *p, int32_t part)
{
    for (int i = 0; i < p->wanted_count; i++)
        if (p->wanted[i] == part)
            return true;
    return false;
}

/* What the group has given to others goes to the end of the list; returns how many stay. */
static int
sort_out(struct partitions *p)
{
    int kept = 0;

    for (int i = 0; i < p->count; i++)
        if (is_wanted(p, p->list[i].part)) {
            struct partition swap = p->list[kept];
            p->list[kept++] = p->list[i];
            p->list[i] = swap;
        }
    return kept;
}

bool
partitions_keep(struct partitions *p, struct pgconn *conn, const char *host, bool *ret_claimed,
                struct error *err)
{
    int live = 1, share;

    *ret_claimed = false;
    if (clock_mono_us() < p->renew_at_us)
        return true;
    if (!renew(p, conn, err) || !say_alive(p, conn, host, &live, err))
        return false;
    share = live > 1 ? (p->total + live - 1) / live : p->total;
    int keep = p->grouped ? sort_out(p) : share;
    if (p->grouped)
        share = p->wanted_count;
    if (p->count > keep && !run_on_last(p, conn, &stmt_give, p->count - keep, false, err))
        return false;
    if (p->count < share && !claim(p, conn, share - p->count, ret_claimed, err))
        return false;
    /* Partitions still wanted are asked for sooner: a dead owner's come free at their lease's end.
     */
    int64_t wait = p->lease_us * 3 / 10;
    int64_t soon = p->grouped ? 100000 : 500000;
    if (p->count < share && wait > soon)
        wait = soon;
    p->renew_at_us = clock_mono_us() + wait;
    return true;
}

bool
partitions_leave(struct partitions *p, struct pgconn *conn, struct error *err)
{
    struct arena arena = {0};
    struct pgparams params = {.arena = &arena};

    pgparams_uuid(&params, &p->owner);
    bool ok = (p->count == 0 || run_on_last(p, conn, &stmt_give, p->count, false, err)) &&
              pgconn_run(conn, &stmt_leave, &params, err);
    arena_release(&arena);
    return ok;
}
