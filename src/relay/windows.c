#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/failpoint.h"
#include "core/log.h"
#include "relay/parking.h"
#include "relay/worker_parts.h"

enum {
    WRITE_INTERVAL_US = 20000, /* between two writes of positions inside a big window */
    BIG_XIDS = 20000,          /* so many transactions behind: read by id ranges from the start */
    BIG_IDS = 20000,           /* so many ids given since: the same */
    FIRST_RANGE = 8000,        /* ids in the first range of a big window … */
    MOST_RANGE = 2000000,      /* … and in the widest, where few rows are ours */
    WANTED_ROWS = 5000,
    WIDE_RANGES = 8, /* so many readings with a byte budget after a wide row */
};

/* ------------------------------------------------------------------ loads */

static struct load *
other(struct relay_worker *w, const struct load *load)
{
    return load == &w->loads[0] ? &w->loads[1] : &w->loads[0];
}

static void
drop_load(struct load *load)
{
    window_rows_release(&load->rows);
    arena_reset(&load->batch.arena);
    load->batch.count = 0;
}

void
windows_drop(struct relay_worker *w)
{
    drop_load(&w->loads[0]);
    drop_load(&w->loads[1]);
    w->reading = false;
}

static void
took_rows(struct load *load)
{
    load->batch.rows = load->rows.rows;
    load->batch.count = load->rows.count;
}

bool
windows_free_connection(void *worker, struct error *err)
{
    struct relay_worker *w = worker;

    if (!w->reading)
        return true;
    w->reading = false;
    if (!window_range_receive(w->conn, &w->into->batch.arena, &w->into->rows, err))
        return false;
    took_rows(w->into);
    return true;
}

/* ------------------------------------------------------------------ recording */

/* How a position moves: to the end of a window, or on inside a big one. */
struct advance {
    lane_set lanes, with_rows;
    const struct snapshot *open;
    bool part;
    int64_t pos;
    bool write; /* now */
};

static bool
advance(struct relay_worker *w, const struct advance *to, struct error *err)
{
    if (to->part)
        return lanes_advance_part(&w->lanes, w->conn, to->lanes, to->open, to->pos, to->write, err);
    return lanes_advance(&w->lanes, w->conn, to->lanes, to->with_rows, to->open, to->write, err);
}

static bool
record_once(struct relay_worker *w, const struct advance *to, const struct batch *batch,
            struct error *err)
{
    struct publisher *p = &w->publisher;

    if (!publisher_has_parks(p, batch))
        return advance(w, to, err) && parking_clear_passed(p, batch, err);
    if (!pgconn_exec(w->conn, "BEGIN", err) || !advance(w, to, err) ||
        !parking_write(p, batch, err))
        return false;
    FAILPOINT("relay.parked");
    if (!pgconn_exec(w->conn, "COMMIT", err))
        return false;
    parking_committed(p, batch);
    return parking_clear_passed(p, batch, err);
}

/* The position; and with it, in one transaction, what of the batch is not published. */
static bool
record(struct relay_worker *w, const struct advance *to, const struct batch *batch,
       struct error *err)
{
    while (!record_once(w, to, batch, err))
        if (!worker_may_repeat(w, err))
            return false;
    return true;
}

/* ------------------------------------------------------------------ small windows */

static lane_set
lanes_with_rows(const struct window_rows *rows)
{
    lane_set set = 0;

    for (int i = 0; i < rows->count; i++)
        set |= (lane_set) (1 << rows->rows[i].lane);
    return set;
}

/*
 * A row is visible before it is safe on disk when its writer commits asynchronously.
 * Publishing it then would tell the world of something a crash can undo.
 */
bool
windows_wait_durable(struct relay_worker *w, struct error *err)
{
    for (int tries = 0; w->probe.flushed_lsn < w->probe.written_lsn; tries++) {
        if (!window_flushed(w->conn, &w->probe.flushed_lsn, err))
            return false;
        if (w->probe.flushed_lsn >= w->probe.written_lsn)
            break;
        if (tries >= 3) {
            /* A commit of our own that writes a row flushes the log up to itself. */
            if (!lanes_renew(&w->lanes, w->conn, err))
                return false;
            if (!w->lanes.owned)
                break; /* renewed nothing, so flushed nothing; there is nothing to publish either */
        } else if (told_to_stop(&w->stopping, 500)) {
            continue;
        }
    }
    return true;
}

static bool big_window(struct relay_worker *w, lane_set cohort, struct load *first,
                       struct error *err);

/* A statement over the whole window would be long: read it by ranges of ids. */
static bool
is_big(const struct relay_worker *w, const struct lane *lane)
{
    if (snapshot_is_set(&lane->open) || w->probe.now.xmax - lane->done.xmax > BIG_XIDS)
        return true;
    return w->seen_id == 0 || w->seen_claims != w->lanes.claims ||
           w->probe.last_id - w->seen_id > BIG_IDS;
}

static bool
check_regression(const struct relay_worker *w, lane_set cohort, struct error *err)
{
    int n = __builtin_ctz(cohort);
    const struct lane *lane = &w->lanes.lane[n];

    if (lane->done.xmax <= w->probe.now.xmax)
        return true;
    error_set_exit(err, ERR_STOP, EXIT_DIFFERS, "relay.xid_regression",
                   "the position of lane %d (%s) is ahead of the server's transactions (%s)", n,
                   lane->done.text, w->probe.now.text);
    return error_hint(err, "this database was restored from a dump or is another cluster; see "
                           "docs/guide/operations.md, \"After a restore\"");
}

static bool
small_window(struct relay_worker *w, lane_set cohort, const struct snapshot *open,
             bool *ret_had_rows, struct error *err)
{
    const struct lane *lane = &w->lanes.lane[__builtin_ctz(cohort)];
    struct load *load = &w->loads[0];
    struct window_request request = {
        .lanes = cohort, .done = &lane->done, .open = open, .filter = &w->config->filter};

    windows_drop(w);
    if (!window_read(w->conn, &request, &load->batch.arena, &load->rows, err))
        return false;
    took_rows(load);
    relay_state_window(w->state, load->rows.count);
    *ret_had_rows = load->rows.count > 0;
    if (load->rows.count > 0 && !windows_wait_durable(w, err))
        return false;
    if (load->rows.cut)
        return big_window(w, cohort, load, err);
    enum published how = publish(&w->publisher, &load->batch, err);
    if (how != PUBLISHED)
        return how != BROKEN;
    struct advance to = {.lanes = cohort, .with_rows = lanes_with_rows(&load->rows), .open = open};
    return record(w, &to, &load->batch, err);
}

/* One window for the lanes that stand at one place.  False: the outbox connection failed. */
static bool
serve_cohort(struct relay_worker *w, lane_set cohort, bool *ret_had_rows, struct error *err)
{
    struct snapshot open = {0};

    if (!check_regression(w, cohort, err))
        return false;
    if (is_big(w, &w->lanes.lane[__builtin_ctz(cohort)])) {
        *ret_had_rows = true;
        return big_window(w, cohort, NULL, err);
    }
    snapshot_copy(&open, &w->probe.now);
    bool ok = small_window(w, cohort, &open, ret_had_rows, err);
    snapshot_release(&open);
    return ok;
}

/* ------------------------------------------------------------------ big windows */

struct big {
    lane_set cohort;
    struct snapshot done, open;
    int64_t asked;   /* ids up to here have been asked for */
    int64_t settled; /* ids up to here are published … */
    int64_t began;   /* … beginning here: as long as nothing is, no position need be kept */
    int64_t end;     /* the highest id of the window */
    int64_t range;   /* ids in one reading */
    int wide;        /* so many readings more are to expect wide rows */
    int64_t wrote_us;
};

static bool
find_bounds(struct relay_worker *w, struct big *big, struct error *err)
{
    struct window_request request = {
        .lanes = big->cohort, .done = &big->done, .open = &big->open, .filter = &w->config->filter};
    struct bounds bounds = {0};

    while (!bounds.finished) {
        if (!bounds_step(w->conn, &request, &bounds, err))
            return false;
        if (!publisher_keep_lease(&w->publisher, err))
            return false;
        if (told_to_stop(&w->stopping, 0)) {
            big->end = big->settled = INT64_MAX; /* nothing was begun */
            return true;
        }
        relay_state_alive(w->state);
    }
    big->end = bounds.found ? w->probe.last_id : big->settled;
    if (bounds.found && bounds.low - 1 > big->settled)
        big->settled = bounds.low - 1;
    return true;
}

static bool
ask_range(struct relay_worker *w, struct big *big, struct load *load, struct error *err)
{
    struct window_request request = {.lanes = big->cohort & w->lanes.owned,
                                     .done = &big->done,
                                     .open = &big->open,
                                     .filter = &w->config->filter,
                                     .after = big->asked,
                                     .wide = big->wide > 0};

    drop_load(load);
    if (big->asked >= big->end || w->stopping.by_us)
        return true;
    big->wide -= big->wide > 0;
    load->end = big->end - big->asked > big->range ? big->asked + big->range : big->end;
    request.up_to = load->end;
    w->reading = true;
    w->into = load;
    return window_range_send(w->conn, &request, err);
}

/* The next range is asked for with what this one taught about how dense the ids are. */
static void
adapt(struct big *big, struct load *load)
{
    if (load->rows.cut)
        load->end = load->rows.count > 0 ? load->rows.rows[load->rows.count - 1].id : big->asked;
    if (load->rows.wide)
        big->wide = WIDE_RANGES;
    else if (load->rows.cut)
        big->range = big->range > 200 ? big->range / 2 : 100;
    else if (load->rows.count < WANTED_ROWS / 2 && big->range < MOST_RANGE)
        big->range *= 2;
    else if (load->rows.count > WANTED_ROWS * 2)
        big->range /= 2;
    big->asked = load->end;
}

/* Records how far the window is published; in the database at most every 20 ms. */
static bool
record_part(struct relay_worker *w, struct big *big, bool now, const struct batch *batch,
            struct error *err)
{
    struct advance to = {.lanes = big->cohort,
                         .open = &big->open,
                         .part = true,
                         .pos = big->settled,
                         .write = now || clock_mono_us() - big->wrote_us >= WRITE_INTERVAL_US};

    if (big->settled == big->began)
        return true; /* the next window is taken anew, and sees what has come meanwhile */
    if (!record(w, &to, batch, err))
        return false;
    if (to.write)
        big->wrote_us = clock_mono_us();
    return true;
}

/* One range: its fate is known, and recorded if something of it is not published. */
static bool
publish_range(struct relay_worker *w, struct big *big, struct load *load, enum published *ret,
              struct error *err)
{
    *ret = publish(&w->publisher, &load->batch, err);
    if (*ret != PUBLISHED)
        return *ret != BROKEN;
    big->settled = load->end;
    relay_state_window(w->state, load->rows.count);
    FAILPOINT("relay.part");
    if (!publisher_has_parks(&w->publisher, &load->batch) && w->publisher.held.count == 0)
        return true;
    return windows_free_connection(w, err) && record_part(w, big, true, &load->batch, err);
}

/* Publishes range after range while the next is being read.  *ret_whole: up to the end. */
static bool
run_ranges(struct relay_worker *w, struct big *big, struct load *first, bool *ret_whole,
           struct error *err)
{
    static const struct batch nothing;
    struct load *load = first ? first : &w->loads[0];
    enum published how = PUBLISHED;

    *ret_whole = false;
    if (!first && !ask_range(w, big, load, err))
        return false;
    while (big->settled < big->end && (big->cohort & w->lanes.owned) && how == PUBLISHED) {
        if (!windows_free_connection(w, err) || !record_part(w, big, false, &nothing, err))
            return false;
        if (load != first)
            adapt(big, load);
        first = NULL;
        if (w->stopping.by_us)
            break;
        if (!ask_range(w, big, other(w, load), err) || !publish_range(w, big, load, &how, err))
            return false;
        told_to_stop(&w->stopping, 0);
        load = other(w, load);
    }
    *ret_whole = big->settled >= big->end;
    return pgconn_ok(w->conn) && windows_free_connection(w, err);
}

static bool
finish(struct relay_worker *w, const struct big *big, lane_set with_rows, bool write,
       struct error *err)
{
    while (!lanes_advance(&w->lanes, w->conn, big->cohort, with_rows, &big->open, write, err))
        if (!worker_may_repeat(w, err))
            return false;
    return true;
}

/* The window is begun or resumed: `first` are rows already read, the lowest of it. */
static bool
run_big(struct relay_worker *w, struct big *big, struct load *first, struct error *err)
{
    static const struct batch nothing;
    bool behind = big->end - big->settled > BIG_IDS, whole = false;

    big->asked = big->began = big->settled;
    if (behind)
        log_info("relay.catching_up", F_I64("from_id", big->settled), F_I64("to_id", big->end));
    if (first) {
        first->end = big->asked = first->rows.rows[first->rows.count - 1].id;
    } else {
        windows_drop(w);
        if (!windows_wait_durable(w, err))
            return false;
    }
    if (!window_big_begin(w->conn, err) || !run_ranges(w, big, first, &whole, err) ||
        !window_big_end(w->conn, err))
        return false;
    if (!whole)
        return record_part(w, big, true, &nothing, err);
    if (!finish(w, big, big->cohort, true, err))
        return false;
    if (behind)
        log_info("relay.caught_up", F_I64("to_id", big->end));
    return true;
}

static bool
big_window(struct relay_worker *w, lane_set cohort, struct load *first, struct error *err)
{
    const struct lane *lane = &w->lanes.lane[__builtin_ctz(cohort)];
    struct big big = {.cohort = cohort, .range = FIRST_RANGE, .settled = lane->open_pos};
    bool ok = false;

    snapshot_copy(&big.done, &lane->done);
    snapshot_copy(&big.open, snapshot_is_set(&lane->open) ? &lane->open : &w->probe.now);
    if (find_bounds(w, &big, err)) {
        if (big.settled == INT64_MAX)
            ok = true;
        else if (big.settled >= big.end) /* not a row in it */
            ok = finish(w, &big, 0, false, err);
        else
            ok = run_big(w, &big, first, err);
    }
    snapshot_release(&big.done);
    snapshot_release(&big.open);
    return ok;
}

/* ------------------------------------------------------------------ all lanes */

bool
windows_serve(struct relay_worker *w, bool *ret_had_rows, struct error *err)
{
    lane_set todo = w->lanes.owned;

    while (todo && !told_to_stop(&w->stopping, 0)) {
        lane_set cohort = lanes_cohort(&w->lanes, todo);
        bool had_rows = false;
        if (!cohort)
            break;
        todo &= (lane_set) ~cohort;
        if (!lanes_may_publish(&w->lanes)) {
            /* We slept past our lease: what we hold may be another's by now. */
            lanes_forget(&w->lanes, w->lanes.owned);
            break;
        }
        if (!serve_cohort(w, cohort, &had_rows, err))
            return false;
        *ret_had_rows |= had_rows;
    }
    return true;
}
