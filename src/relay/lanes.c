#include "relay/lanes.h"

#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/failpoint.h"
#include "core/log.h"
#include "pg/schema.h"

enum {
    FLUSH_INTERVAL_US = 10000000, /* between writes of positions without rows … */
    WRITE_INTERVAL_US = 20000,    /* … and with rows: what a crash may repeat */
};

static const struct pgstmt stmt_seen = {
    "relay_seen",
    "INSERT INTO postrider.instance AS i (id, side, reader, name, host, seen_at, until)"
    " SELECT $1::uuid, 'relay', r.relay, r.name, $3::text, clock_timestamp(),"
    "     clock_timestamp() + $4::bigint * interval '1 microsecond'"
    "   FROM postrider.relay r WHERE r.relay = $2::smallint"
    " ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, until = excluded.until",
};
static const struct pgstmt stmt_live = {
    "relay_live",
    "SELECT count(*) FROM postrider.instance WHERE side = 'relay' AND reader = $1::smallint"
    " AND seen_at > clock_timestamp() - $2::bigint * interval '1 microsecond'",
};
static const struct pgstmt stmt_leave = {
    "relay_leave",
    "DELETE FROM postrider.instance WHERE id = $1::uuid OR (side = 'relay' AND"
    " seen_at < clock_timestamp() - interval '1 day')",
};
static const struct pgstmt stmt_claim = {
    "lane_claim",
    "WITH c AS (SELECT relay, lane FROM postrider.lane WHERE relay = $1::smallint"
    "   AND (lease_until < clock_timestamp() OR owner = $2::uuid) AND NOT lane = "
    "ANY($5::smallint[])"
    "   ORDER BY random() LIMIT $4::bigint FOR UPDATE SKIP LOCKED)"
    " UPDATE postrider.lane l SET owner = $2::uuid, epoch = l.epoch + 1,"
    "   lease_until = clock_timestamp() + $3::bigint * interval '1 microsecond'"
    " FROM c WHERE (l.relay, l.lane) = (c.relay, c.lane)"
    " RETURNING l.lane, l.epoch, l.done_snap, l.open_snap, l.open_pos",
};
static const struct pgstmt stmt_renew = {
    "lane_renew",
    "UPDATE postrider.lane l SET lease_until = clock_timestamp() + $5::bigint * interval '1 "
    "microsecond'"
    " FROM unnest($3::smallint[], $4::bigint[]) e(lane, epoch)"
    " WHERE l.relay = $1::smallint AND l.lane = e.lane AND l.epoch = e.epoch AND l.owner = $2::uuid"
    " RETURNING l.lane, (SELECT max(min_binary) FROM postrider.schema_version)",
};
/* Never backwards: a delayed session's older snapshot must not undo a newer position. */
static const struct pgstmt stmt_advance = {
    "lane_advance",
    "UPDATE postrider.lane l SET done_snap = $5::pg_snapshot, open_snap = NULL, open_pos = 0"
    " FROM unnest($3::smallint[], $4::bigint[]) e(lane, epoch)"
    " WHERE l.relay = $1::smallint AND l.lane = e.lane AND l.epoch = e.epoch AND l.owner = $2::uuid"
    "   AND pg_snapshot_xmax($5::pg_snapshot) >= pg_snapshot_xmax(l.done_snap)"
    "   AND pg_snapshot_xmin($5::pg_snapshot) >= pg_snapshot_xmin(l.done_snap)"
    " RETURNING l.lane",
};
static const struct pgstmt stmt_advance_part = {
    "lane_advance_part",
    "UPDATE postrider.lane l SET open_snap = $5::pg_snapshot, open_pos = $6::bigint"
    " FROM unnest($3::smallint[], $4::bigint[]) e(lane, epoch)"
    " WHERE l.relay = $1::smallint AND l.lane = e.lane AND l.epoch = e.epoch AND l.owner = $2::uuid"
    "   AND (l.open_snap IS NULL OR (l.open_snap::text = $5::text AND l.open_pos <= $6::bigint))"
    " RETURNING l.lane",
};
static const struct pgstmt stmt_release = {
    "lane_release",
    "UPDATE postrider.lane l SET owner = NULL, lease_until = '-infinity'"
    " FROM unnest($3::smallint[], $4::bigint[]) e(lane, epoch)"
    " WHERE l.relay = $1::smallint AND l.lane = e.lane AND l.epoch = e.epoch AND l.owner = $2::uuid"
    " RETURNING l.lane",
};
static const struct pgstmt stmt_raise = {
    "lane_raise_epoch",
    "UPDATE postrider.lane SET epoch = greatest(epoch, $4::bigint) + 1"
    " WHERE relay = $1::smallint AND owner = $2::uuid AND lane = $3::smallint RETURNING epoch",
};

int
lane_set_count(lane_set set)
{
    return __builtin_popcount(set);
}

void
lanes_init(struct lanes *lanes, int16_t relay, int64_t lease_us)
{
    *lanes = (struct lanes){.relay = relay, .owner = uuid_v7(), .lease_us = lease_us};
}

static void
forget_one(struct lane *lane)
{
    snapshot_release(&lane->done);
    snapshot_release(&lane->open);
    *lane = (struct lane){0};
}

void
lanes_forget(struct lanes *lanes, lane_set set)
{
    for (int n = 0; n < LANES; n++)
        if (set & lanes->owned & (1 << n))
            forget_one(&lanes->lane[n]);
    lanes->losses += lane_set_count(set & lanes->owned);
    lanes->owned &= (lane_set) ~set;
    lanes->renew_at_us = 0;
}

void
lanes_release_memory(struct lanes *lanes)
{
    lanes_forget(lanes, lanes->owned);
}

/* ------------------------------------------------------------------ statements about a set */

/* $1 relay, $2 owner, $3 lanes, $4 their epochs. */
static void
add_set(struct pgparams *p, const struct lanes *lanes, lane_set set)
{
    struct pgarray numbers = {0}, epochs = {0};

    pgarray_start(&numbers, PG_INT2);
    pgarray_start(&epochs, PG_INT8);
    for (int n = 0; n < LANES; n++) {
        if (!(set & (1 << n)))
            continue;
        pgarray_i16(&numbers, (int16_t) n);
        pgarray_i64(&epochs, lanes->lane[n].epoch);
    }
    pgparams_i16(p, lanes->relay);
    pgparams_uuid(p, &lanes->owner);
    pgparams_array(p, &numbers);
    pgparams_array(p, &epochs);
    pgarray_release(&numbers);
    pgarray_release(&epochs);
}

/* Runs it; *ret are the lanes that the database says it wrote. */
static bool
run_on_set(struct pgconn *conn, const struct pgstmt *stmt, struct pgparams *p, lane_set *ret,
           struct error *err)
{
    PGresult *res;
    bool ok = pgconn_query(conn, stmt, p, &res, err);

    *ret = 0;
    for (int row = 0; ok && row < PQntuples(res); row++)
        *ret |= (lane_set) (1 << pgresult_i64(res, row, 0));
    arena_release(p->arena);
    if (!ok)
        return false;
    if (stmt == &stmt_renew && PQntuples(res) > 0)
        ok = schema_is_served(conn, (int) pgresult_i64(res, 0, 1), err);
    PQclear(res);
    return ok;
}

/* What the database did not write belongs to another owner now. */
static void
drop_fenced(struct lanes *lanes, lane_set wanted, lane_set written, const char *doing)
{
    lane_set fenced = wanted & (lane_set) ~written;

    if (!fenced)
        return;
    log_warn("relay.fenced", F_STR("doing", doing), F_I64("lanes", lane_set_count(fenced)));
    lanes_forget(lanes, fenced);
}

/* ------------------------------------------------------------------ leases */

bool
lanes_may_publish(const struct lanes *lanes)
{
    return clock_mono_us() < lanes->deadline_us;
}

/* The margin covers a clock that runs slower than the server's and the way to the broker. */
static int64_t
deadline_from(const struct lanes *lanes, int64_t asked_at_us)
{
    int64_t margin = lanes->lease_us / 10 < 1000000 ? lanes->lease_us / 10 : 1000000;

    return asked_at_us + lanes->lease_us - margin;
}

bool
lanes_renew(struct lanes *lanes, struct pgconn *conn, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    int64_t asked_at = clock_mono_us();
    lane_set wanted = lanes->owned, kept;

    if (!wanted)
        return true;
    add_set(&p, lanes, wanted);
    pgparams_i64(&p, lanes->lease_us);
    if (!run_on_set(conn, &stmt_renew, &p, &kept, err))
        return false;
    drop_fenced(lanes, wanted, kept, "renew");
    lanes->deadline_us = deadline_from(lanes, asked_at);
    return true;
}

static bool
read_lane(struct lanes *lanes, const PGresult *res, int row, struct error *err)
{
    int n = (int) pgresult_i64(res, row, 0);
    struct lane *lane = &lanes->lane[n];
    const char *open = pgresult_str(res, row, 3);

    lanes->owned &= (lane_set) ~(1 << n);
    forget_one(lane);
    lane->epoch = pgresult_i64(res, row, 1);
    lane->open_pos = pgresult_i64(res, row, 4);
    if (!snapshot_parse(pgresult_str(res, row, 2), &lane->done) ||
        (open && !snapshot_parse(open, &lane->open)))
        return error_set(err, ERR_STOP, "relay.position", "lane %d: its position is no snapshot",
                         n);
    lanes->owned |= (lane_set) (1 << n);
    return true;
}

static bool
claim(struct lanes *lanes, struct pgconn *conn, int at_most, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    struct pgarray mine = {0};
    PGresult *res;
    int64_t asked_at = clock_mono_us();
    bool first = lanes->owned == 0;

    pgarray_start(&mine, PG_INT2);
    for (int n = 0; n < LANES; n++)
        if (lanes->owned & (1 << n))
            pgarray_i16(&mine, (int16_t) n);
    pgparams_i16(&p, lanes->relay);
    pgparams_uuid(&p, &lanes->owner);
    pgparams_i64(&p, lanes->lease_us);
    pgparams_i64(&p, at_most);
    pgparams_array(&p, &mine);
    bool ok = pgconn_query(conn, &stmt_claim, &p, &res, err);
    for (int row = 0; ok && row < PQntuples(res); row++)
        ok = read_lane(lanes, res, row, err);
    if (ok && PQntuples(res) > 0) {
        lanes->claims += PQntuples(res);
        if (first) /* else the older leases' deadline is the nearer one and stays */
            lanes->deadline_us = deadline_from(lanes, asked_at);
        log_info("relay.claimed", F_I64("lanes", PQntuples(res)),
                 F_I64("owned", lane_set_count(lanes->owned)));
        FAILPOINT("relay.claimed");
    }
    if (ok)
        PQclear(res);
    pgarray_release(&mine);
    arena_release(&arena);
    return ok;
}

static bool
say_alive(struct lanes *lanes, struct pgconn *conn, const char *host, int *ret_live,
          struct error *err)
{
    struct arena arena = {0};
    struct pgparams seen = {.arena = &arena}, live = {.arena = &arena};
    PGresult *res;
    bool ok = false;

    pgparams_uuid(&seen, &lanes->owner);
    pgparams_i16(&seen, lanes->relay);
    pgparams_text(&seen, host);
    pgparams_i64(&seen, lanes->lease_us);
    pgparams_i16(&live, lanes->relay);
    pgparams_i64(&live, lanes->lease_us);
    if (pgconn_run(conn, &stmt_seen, &seen, err) &&
        pgconn_query(conn, &stmt_live, &live, &res, err)) {
        *ret_live = (int) pgresult_i64(res, 0, 0);
        PQclear(res);
        ok = true;
    }
    arena_release(&arena);
    return ok;
}

static lane_set
highest(lane_set set, int count)
{
    lane_set chosen = 0;

    for (int n = LANES - 1; n >= 0 && count > 0; n--) {
        if (set & (1 << n)) {
            chosen |= (lane_set) (1 << n);
            count--;
        }
    }
    return chosen;
}

bool
lanes_keep(struct lanes *lanes, struct pgconn *conn, const char *host, struct error *err)
{
    int live = 1, share, owned;

    if (clock_mono_us() < lanes->renew_at_us)
        return true;
    if (!lanes_renew(lanes, conn, err) || !say_alive(lanes, conn, host, &live, err))
        return false;
    share = live > 1 ? (LANES + live - 1) / live : LANES;
    owned = lane_set_count(lanes->owned);
    if (owned > share) {
        lane_set surplus = highest(lanes->owned, owned - share);
        if (!lanes_give_back(lanes, conn, surplus, err))
            return false;
    } else if (owned < share && !claim(lanes, conn, share - owned, err)) {
        return false;
    }
    /* Lanes still wanted are asked for sooner: a dead owner's come free at their lease's end. */
    int64_t wait = lanes->lease_us * 3 / 10;
    if (lane_set_count(lanes->owned) < share && wait > 500000)
        wait = 500000;
    lanes->renew_at_us = clock_mono_us() + wait;
    return true;
}

bool
lanes_raise_epoch(struct lanes *lanes, struct pgconn *conn, int lane, int64_t above,
                  struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    PGresult *res;

    pgparams_i16(&p, lanes->relay);
    pgparams_uuid(&p, &lanes->owner);
    pgparams_i16(&p, (int16_t) lane);
    pgparams_i64(&p, above);
    bool ok = pgconn_query(conn, &stmt_raise, &p, &res, err);
    if (ok && PQntuples(res) == 1)
        lanes->lane[lane].epoch = pgresult_i64(res, 0, 0);
    else if (ok)
        lanes_forget(lanes, (lane_set) (1 << lane));
    if (ok)
        PQclear(res);
    arena_release(&arena);
    return ok;
}

/* ------------------------------------------------------------------ positions */

static bool
same_place(const struct lane *a, const struct lane *b)
{
    return snapshot_equal(&a->done, &b->done) && snapshot_equal(&a->open, &b->open) &&
           a->open_pos == b->open_pos;
}

lane_set
lanes_cohort(const struct lanes *lanes, lane_set among)
{
    lane_set cohort = 0;
    int first = -1;

    for (int n = 0; n < LANES; n++) {
        if (!(among & lanes->owned & (1 << n)))
            continue;
        if (first < 0)
            first = n;
        if (same_place(&lanes->lane[first], &lanes->lane[n]))
            cohort |= (lane_set) (1 << n);
    }
    return cohort;
}

bool
lanes_are_at(const struct lanes *lanes, const struct snapshot *now)
{
    for (int n = 0; n < LANES; n++) {
        const struct lane *lane = &lanes->lane[n];
        if ((lanes->owned & (1 << n)) &&
            (snapshot_is_set(&lane->open) || !snapshot_equal(&lane->done, now)))
            return false;
    }
    return true;
}

static bool
write_done(struct lanes *lanes, struct pgconn *conn, lane_set set, const struct snapshot *done,
           struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    lane_set written;

    if (!set)
        return true;
    add_set(&p, lanes, set);
    pgparams_text(&p, done->text);
    if (!run_on_set(conn, &stmt_advance, &p, &written, err))
        return false;
    for (int n = 0; n < LANES; n++)
        if (written & (1 << n))
            lanes->lane[n].unwritten = lanes->lane[n].had_rows = false;
    drop_fenced(lanes, set, written, "advance");
    FAILPOINT("relay.advanced");
    return true;
}

bool
lanes_advance(struct lanes *lanes, struct pgconn *conn, lane_set set, lane_set with_rows,
              const struct snapshot *open, bool now, struct error *err)
{
    set &= lanes->owned;
    for (int n = 0; n < LANES; n++) {
        struct lane *lane = &lanes->lane[n];
        if (!(set & (1 << n)))
            continue;
        /* A lane whose row says "half done" must be written, or its next owner would resume there.
         */
        now |= snapshot_is_set(&lane->open);
        lane->had_rows |= snapshot_is_set(&lane->open) || (with_rows & (1 << n));
        lane->unwritten = true;
        snapshot_copy(&lane->done, open);
        snapshot_release(&lane->open);
        lane->open_pos = 0;
    }
    return lanes_flush(lanes, conn, now, err);
}

bool
lanes_advance_part(struct lanes *lanes, struct pgconn *conn, lane_set set,
                   const struct snapshot *open, int64_t pos, bool write, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    lane_set written;

    set &= lanes->owned;
    for (int n = 0; n < LANES; n++) {
        if (!(set & (1 << n)))
            continue;
        snapshot_copy(&lanes->lane[n].open, open);
        lanes->lane[n].open_pos = pos;
    }
    if (!set || !write)
        return true;
    add_set(&p, lanes, set);
    pgparams_text(&p, open->text);
    pgparams_i64(&p, pos);
    if (!run_on_set(conn, &stmt_advance_part, &p, &written, err))
        return false;
    drop_fenced(lanes, set, written, "advance");
    return true;
}

/* The lanes whose positions are due to be written. */
static lane_set
due_lanes(struct lanes *lanes, bool now)
{
    int64_t at = clock_mono_us();
    bool all = now || at >= lanes->flush_at_us;
    bool rows = all || at - lanes->wrote_us >= WRITE_INTERVAL_US;
    lane_set due = 0;

    if (all)
        lanes->flush_at_us = at + FLUSH_INTERVAL_US;
    for (int n = 0; n < LANES; n++) {
        const struct lane *lane = &lanes->lane[n];
        if ((lanes->owned & (1 << n)) && lane->unwritten && (all || (rows && lane->had_rows)))
            due |= (lane_set) (1 << n);
    }
    if (due)
        lanes->wrote_us = at;
    return due;
}

bool
lanes_flush(struct lanes *lanes, struct pgconn *conn, bool now, struct error *err)
{
    lane_set todo = due_lanes(lanes, now);

    while (todo) {
        lane_set cohort = lanes_cohort(lanes, todo);
        if (!cohort)
            break; /* fenced meanwhile */
        int n = __builtin_ctz(cohort);
        struct snapshot done = {0};
        snapshot_copy(&done, &lanes->lane[n].done);
        bool ok = write_done(lanes, conn, cohort, &done, err);
        snapshot_release(&done);
        if (!ok)
            return false;
        todo &= (lane_set) ~cohort;
    }
    return true;
}

bool
lanes_give_back(struct lanes *lanes, struct pgconn *conn, lane_set set, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    lane_set written;

    set &= lanes->owned;
    if (!set)
        return true;
    if (!lanes_flush(lanes, conn, true, err))
        return false;
    set &= lanes->owned;
    add_set(&p, lanes, set);
    if (!run_on_set(conn, &stmt_release, &p, &written, err))
        return false;
    log_info("relay.released", F_I64("lanes", lane_set_count(written)));
    lanes_forget(lanes, set);
    return true;
}

bool
lanes_leave(struct lanes *lanes, struct pgconn *conn, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};

    pgparams_uuid(&p, &lanes->owner);
    bool ok = pgconn_run(conn, &stmt_leave, &p, err);
    arena_release(&arena);
    return ok;
}
