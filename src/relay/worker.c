#include "relay/worker.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/backoff.h"
#include "core/clock.h"
#include "core/failpoint.h"
#include "core/log.h"
#include "pg/pgconn.h"
#include "pg/pgerror.h"
#include "pg/schema.h"
#include "relay/encoder.h"
#include "relay/flight.h"
#include "relay/lanes.h"
#include "relay/router.h"
#include "relay/state.h"
#include "source/poll/window.h"
#include "transport/transport.h"

enum {
    WRITE_INTERVAL_US = 20000, /* between two writes of positions inside a big window */
    DRAIN_US = 2000000,        /* for what is under way when we are told to stop */
    SETTLE_SLICE_US = 500000,  /* a wait for the destination, between two looks at the lease */
    BIG_XIDS = 20000,          /* so many transactions behind: read by id ranges from the start */
    BIG_IDS = 20000,           /* so many ids given since: the same */
    FIRST_RANGE = 8000,        /* ids in the first range of a big window … */
    MOST_RANGE = 2000000,      /* … and in the widest, where few rows are ours */
    WANTED_ROWS = 5000,
};

/* One reading of rows with everything made from it. */
struct load {
    struct arena arena;
    struct window_rows rows;
    struct message *messages;
    int64_t end; /* big window: all rows up to this id are in this load or an earlier one */
};

struct relay_worker {
    const struct relay_config *config;
    char host[64];
    int stop_fd;
    int64_t stop_by_us; /* 0: not told to stop */

    struct pgconn *conn;
    struct uuid writer;
    struct lanes lanes;
    struct router *router;
    struct transport *transport;
    struct flight flight;
    struct probe probe;
    int64_t seen_id;     /* the probe's last_id when every lane stood at its snapshot; 0: unknown */
    int64_t seen_claims; /* lanes.claims then: a lane that came later stands elsewhere */
    struct relay_state *state;

    struct load loads[2]; /* one is published while the other is read */
    bool reading;         /* a range has been asked for and not received */
    int64_t wait_us;      /* adaptive, between two looks */
    int failures;         /* of the connection or the destination, in a row */
};

/* ------------------------------------------------------------------ stopping and waiting */

static bool
told_to_stop(struct relay_worker *w, int64_t wait_us)
{
    struct pollfd fd = {.fd = w->stop_fd, .events = POLLIN};
    struct timespec ts = {.tv_sec = wait_us / 1000000, .tv_nsec = wait_us % 1000000 * 1000};

    if (w->stop_by_us == 0 && ppoll(&fd, 1, &ts, NULL) > 0)
        w->stop_by_us = clock_mono_us() + DRAIN_US;
    return w->stop_by_us != 0;
}

static void
close_transport(struct relay_worker *w)
{
    if (w->transport)
        w->transport->ops->close(w->transport);
    w->transport = NULL;
    router_forget(w->router);
}

static void
drop_loads(struct relay_worker *w)
{
    for (int i = 0; i < 2; i++) {
        window_rows_release(&w->loads[i].rows);
        arena_reset(&w->loads[i].arena);
    }
    w->reading = false;
}

/* Positions in memory are good only on this connection. */
static void
disconnect(struct relay_worker *w)
{
    pgconn_close(w->conn);
    w->conn = NULL;
    drop_loads(w);
    lanes_forget(&w->lanes, w->lanes.owned);
    relay_state_forget(w->state);
    probe_release(&w->probe);
    w->seen_id = 0;
}

/* ------------------------------------------------------------------ connecting */

static const struct pgstmt stmt_relay = {
    "relay",
    "SELECT relay, writer FROM postrider.relay WHERE name = $1::text",
};

static bool
find_relay(struct relay_worker *w, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    PGresult *res;

    pgparams_text(&p, w->config->name);
    bool ok = pgconn_query(w->conn, &stmt_relay, &p, &res, err);
    arena_release(&arena);
    if (!ok)
        return false;
    if (PQntuples(res) == 0) {
        ok = error_set_exit(err, ERR_STOP, EXIT_CONFIG, "relay.unknown",
                            "relay %s is not registered in %s", w->config->name,
                            pgconn_target(w->conn));
        error_hint(err, "run `postrider init` with this configuration");
    } else {
        w->lanes.relay = (int16_t) pgresult_i64(res, 0, 0);
        PR_CHECK(uuid_parse(PQgetvalue(res, 0, 1), UUID_TEXT - 1, &w->writer));
    }
    PQclear(res);
    return ok;
}

static bool
connect_outbox(struct relay_worker *w, struct error *err)
{
    char purpose[96];
    struct pgconn_options options = {
        .purpose = purpose, .system_search_path = true, .setup = window_setup};

    snprintf(purpose, sizeof(purpose), "relay %s", w->config->name);
    if (!pgconn_open(w->config->outbox->database, &options, &w->conn, err))
        return false;
    if (!schema_check(w->conn, err) || !find_relay(w, err))
        return false;
    if (!w->router)
        w->router = router_new(w->lanes.relay, w->config->destination);
    return true;
}

static bool
connect_destination(struct relay_worker *w, struct error *err)
{
    const struct transport_ops *ops = transport_find(w->config->destination->transport);
    char purpose[96];

    if (w->transport)
        return true;
    PR_CHECK(ops != NULL); /* the configuration knows the same names */
    snprintf(purpose, sizeof(purpose), "destination %s", w->config->destination->name);
    if (!ops->open(w->config->destination, purpose, &w->writer, &w->transport, err))
        return false;
    log_info("relay.destination", F_STR("destination", w->config->destination->name),
             F_STR("confirmed_means", durability_name(w->transport->caps.durability)));
    return true;
}

/* ------------------------------------------------------------------ publishing */

/*
 * The range under way has to be taken in before the connection can be used for
 * anything else; it waits in the other load.
 */
static bool
finish_reading(struct relay_worker *w, struct load *into, struct error *err)
{
    if (!w->reading)
        return true;
    w->reading = false;
    return window_range_receive(w->conn, &into->arena, &into->rows, err);
}

static struct load *
other(struct relay_worker *w, const struct load *load)
{
    return load == &w->loads[0] ? &w->loads[1] : &w->loads[0];
}

static bool
keep_lease(struct relay_worker *w, struct load *load, struct error *err)
{
    if (clock_mono_us() < w->lanes.renew_at_us)
        return true;
    if (!finish_reading(w, other(w, load), err) || !lanes_renew(&w->lanes, w->conn, err))
        return false;
    w->lanes.renew_at_us = clock_mono_us() + w->lanes.lease_us * 3 / 10;
    return true;
}

/* Topics of a load must be known before its messages can be made. */
static bool
open_routes(struct relay_worker *w, struct load *load, struct error *err)
{
    const struct window_rows *rows = &load->rows;

    for (int i = 0; i < rows->count; i++) {
        if (router_find(w->router, rows->rows[i].aggregate_type))
            continue;
        if (!finish_reading(w, other(w, load), err) ||
            !router_open(w->router, w->conn, w->transport, rows->rows[i].aggregate_type, err))
            return false;
    }
    return true;
}

static void
encode_load(struct relay_worker *w, struct load *load)
{
    const struct window_rows *rows = &load->rows;
    struct message *messages =
        arena_alloc(&load->arena, sizeof(*messages) * ((size_t) rows->count + 1));

    for (int i = 0; i < rows->count; i++) {
        const struct outbox_row *row = &rows->rows[i];
        const struct route *route = router_find(w->router, row->aggregate_type);
        encode_message(row, w->config->name, w->lanes.lane[row->lane].epoch, &load->arena,
                       &messages[i]);
        messages[i].topic = route->topic;
        messages[i].part =
            route_partition(messages[i].key.data, messages[i].key.len, route->partitions);
    }
    flight_load(&w->flight, messages, (uint32_t) rows->count);
}

/*
 * The destination says another owner has been there.  Either that is so, and the
 * database has told us by the renewal; or we own the lanes and an older copy of this
 * database stands behind us, and then our epochs must rise above what was seen.
 */
static bool
resolve_fence(struct relay_worker *w, struct load *load, struct error *err)
{
    if (!finish_reading(w, other(w, load), err) || !lanes_renew(&w->lanes, w->conn, err))
        return false;
    for (int lane = 0; lane < LANES; lane++) {
        int64_t seen;
        if (!(w->lanes.owned & (1 << lane)))
            continue;
        if (!w->transport->ops->fence(w->transport, lane, &seen, err))
            return false;
        if (seen > w->lanes.lane[lane].epoch &&
            !lanes_raise_epoch(&w->lanes, w->conn, lane, seen, err))
            return false;
    }
    return true;
}

enum published {
    PUBLISHED, /* every message of a lane we still own has been confirmed */
    REREAD,    /* epochs changed: the same rows have to be read and made again */
    STOPPED,   /* told to stop, or nothing may be published: recorded is what was confirmed */
    BROKEN,    /* the outbox connection; err is set */
};

/* The destination failed: say so, wait, and have it opened again if the connection is gone. */
static bool
wait_out(struct relay_worker *w, struct load *load, const struct error *cause, struct error *err)
{
    int64_t until = clock_mono_us() + backoff_us(w->failures++);

    relay_state_paused(w->state, cause);
    if (cause->cls != ERR_DESTINATION || strncmp(cause->code, "log.", 4) != 0)
        close_transport(w);
    while (clock_mono_us() < until) {
        if (!keep_lease(w, load, err))
            return false;
        if (told_to_stop(w, 50000))
            break;
    }
    return true;
}

/* One step: everything at hand is sent and news awaited; a failure goes to `cause`. */
static bool
move_on(struct relay_worker *w, struct load *load, struct error *cause)
{
    uint32_t stored = 0;
    bool ok = connect_destination(w, cause) && open_routes(w, load, cause);

    if (!ok)
        return false;
    if (w->flight.messages == NULL)
        encode_load(w, load);
    w->flight.transport = w->transport;
    ok = flight_move(&w->flight, w->lanes.owned, clock_mono_us() + SETTLE_SLICE_US, &stored, cause);
    if (stored > 0) {
        w->failures = 0;
        relay_state_published(w->state, stored);
    }
    return ok;
}

static enum published
publish(struct relay_worker *w, struct load *load, struct error *err)
{
    w->flight.messages = NULL;
    w->flight.count = w->flight.settled = 0;
    if (load->rows.count == 0)
        return PUBLISHED;
    relay_state_pending(w->state, load->rows.rows[0].inserted_at_us);
    while (w->flight.messages == NULL || !flight_settled(&w->flight)) {
        struct error cause = {0};
        if (!keep_lease(w, load, err))
            return BROKEN;
        if (!lanes_may_publish(&w->lanes) || !w->lanes.owned)
            return STOPPED;
        if (w->stop_by_us && clock_mono_us() > w->stop_by_us)
            return STOPPED;
        if (move_on(w, load, &cause))
            continue;
        if (!pgconn_ok(w->conn)) {
            *err = cause;
            return BROKEN;
        }
        if (pgerror_is(&cause, "PR010"))
            return resolve_fence(w, load, err) ? REREAD : BROKEN;
        if (!wait_out(w, load, &cause, err))
            return BROKEN;
        if (told_to_stop(w, 0))
            return STOPPED;
    }
    FAILPOINT("relay.acked");
    relay_state_settled(w->state, &load->rows);
    return PUBLISHED;
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
static bool
wait_durable(struct relay_worker *w, struct error *err)
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
        } else if (told_to_stop(w, 500)) {
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

/* One window for the lanes that stand at one place.  False: the outbox connection failed. */
static bool
serve_cohort(struct relay_worker *w, lane_set cohort, bool *ret_had_rows, struct error *err)
{
    const struct lane *lane = &w->lanes.lane[__builtin_ctz(cohort)];
    struct load *load = &w->loads[0];
    struct snapshot open = {0};
    bool ok = false;

    if (lane->done.xmax > w->probe.now.xmax) {
        error_set_exit(err, ERR_STOP, EXIT_DIFFERS, "relay.xid_regression",
                       "the position of lane %d (%s) is ahead of the server's transactions (%s)",
                       __builtin_ctz(cohort), lane->done.text, w->probe.now.text);
        return error_hint(err, "this database was restored from a dump or is another cluster; see "
                               "docs/guide/operations.md, \"After a restore\"");
    }
    if (is_big(w, lane)) {
        *ret_had_rows = true;
        return big_window(w, cohort, NULL, err);
    }
    snapshot_copy(&open, &w->probe.now);
    struct window_request request = {.lanes = cohort, .done = &lane->done, .open = &open};
    drop_loads(w);
    if (!window_read(w->conn, &request, &load->arena, &load->rows, err))
        goto out;
    relay_state_window(w->state, load->rows.count);
    *ret_had_rows = load->rows.count > 0;
    if (load->rows.count > 0 && !wait_durable(w, err))
        goto out;
    if (load->rows.cut) {
        ok = big_window(w, cohort, load, err);
        goto out;
    }
    enum published how = publish(w, load, err);
    if (how == PUBLISHED)
        ok = lanes_advance(&w->lanes, w->conn, cohort, lanes_with_rows(&load->rows), &open, err);
    else
        ok = how != BROKEN;
    if (ok && how == PUBLISHED && load->rows.count > 0)
        FAILPOINT("relay.advanced");

out:
    snapshot_release(&open);
    return ok;
}

/* ------------------------------------------------------------------ big windows */

struct big {
    lane_set cohort;
    struct snapshot done, open;
    int64_t asked;   /* ids up to here have been asked for */
    int64_t settled; /* ids up to here are published */
    int64_t end;     /* the highest id of the window */
    int64_t range;   /* ids in one reading */
    int64_t wrote_us;
};

static bool
find_bounds(struct relay_worker *w, struct big *big, struct error *err)
{
    struct window_request request = {.lanes = big->cohort, .done = &big->done, .open = &big->open};
    struct bounds bounds = {0};

    while (!bounds.finished) {
        if (!bounds_step(w->conn, &request, &bounds, err))
            return false;
        if (!keep_lease(w, &w->loads[0], err))
            return false;
        if (told_to_stop(w, 0)) {
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
                                     .after = big->asked};

    window_rows_release(&load->rows);
    arena_reset(&load->arena);
    if (big->asked >= big->end || w->stop_by_us)
        return true;
    load->end = big->end - big->asked > big->range ? big->asked + big->range : big->end;
    request.up_to = load->end;
    w->reading = true;
    return window_range_send(w->conn, &request, err);
}

/* The next range is asked for with what this one taught about how dense the ids are. */
static void
adapt(struct big *big, struct load *load)
{
    if (load->rows.cut)
        load->end = load->rows.rows[load->rows.count - 1].id;
    if (load->rows.cut)
        big->range = big->range > 200 ? big->range / 2 : 100;
    else if (load->rows.count < WANTED_ROWS / 2 && big->range < MOST_RANGE)
        big->range *= 2;
    else if (load->rows.count > WANTED_ROWS * 2)
        big->range /= 2;
    big->asked = load->end;
}

/* Records how far the window is published; in the database at most every 20 ms. */
static bool
record_part(struct relay_worker *w, struct big *big, bool now, struct error *err)
{
    bool due = now || clock_mono_us() - big->wrote_us >= WRITE_INTERVAL_US;

    if (!lanes_advance_part(&w->lanes, w->conn, big->cohort, &big->open, big->settled, due, err))
        return false;
    if (due)
        big->wrote_us = clock_mono_us();
    return true;
}

/* Publishes range after range while the next is being read.  *ret_whole: up to the end. */
static bool
run_ranges(struct relay_worker *w, struct big *big, struct load *first, bool *ret_whole,
           struct error *err)
{
    struct load *load = first ? first : &w->loads[0];

    *ret_whole = false;
    if (!first && !ask_range(w, big, load, err))
        return false;
    while (big->settled < big->end && (big->cohort & w->lanes.owned)) {
        if (!finish_reading(w, load, err) || !record_part(w, big, false, err))
            return false;
        if (load != first)
            adapt(big, load);
        first = NULL;
        if (w->stop_by_us || !ask_range(w, big, other(w, load), err))
            break;
        enum published how = publish(w, load, err);
        if (how == BROKEN)
            return false;
        if (how != PUBLISHED)
            break;
        big->settled = load->end;
        relay_state_window(w->state, load->rows.count);
        FAILPOINT("relay.part");
        told_to_stop(w, 0);
        load = other(w, load);
    }
    *ret_whole = big->settled >= big->end;
    return pgconn_ok(w->conn) && finish_reading(w, other(w, load), err);
}

/*
 * `first`: rows already read, the lowest of the window; else the window is resumed
 * where its lanes stand, or begun.
 */
static bool
big_window(struct relay_worker *w, lane_set cohort, struct load *first, struct error *err)
{
    const struct lane *lane = &w->lanes.lane[__builtin_ctz(cohort)];
    struct big big = {.cohort = cohort, .range = FIRST_RANGE, .settled = lane->open_pos};
    bool whole = false, ok = false;

    snapshot_copy(&big.done, &lane->done);
    snapshot_copy(&big.open, snapshot_is_set(&lane->open) ? &lane->open : &w->probe.now);
    if (!find_bounds(w, &big, err))
        goto out;
    if (big.settled == INT64_MAX) {
        ok = true;
        goto out;
    }
    if (big.settled >= big.end) { /* not a row in it */
        ok = lanes_advance(&w->lanes, w->conn, cohort, 0, &big.open, err);
        goto out;
    }
    big.asked = big.settled;
    bool behind = big.end - big.settled > BIG_IDS;
    if (behind)
        log_info("relay.catching_up", F_I64("from_id", big.settled), F_I64("to_id", big.end));
    if (first) {
        first->end = big.asked = first->rows.rows[first->rows.count - 1].id;
    } else {
        drop_loads(w);
        if (!wait_durable(w, err))
            goto out;
    }
    if (!window_big_begin(w->conn, err) || !run_ranges(w, &big, first, &whole, err) ||
        !window_big_end(w->conn, err))
        goto out;
    ok = whole ? lanes_advance(&w->lanes, w->conn, cohort, cohort, &big.open, err)
               : record_part(w, &big, true, err);
    if (ok && whole && behind)
        log_info("relay.caught_up", F_I64("to_id", big.end));

out:
    snapshot_release(&big.done);
    snapshot_release(&big.open);
    return ok;
}

/* ------------------------------------------------------------------ the loop */

/* All lanes, cohort by cohort, up to one snapshot. */
static bool
serve_lanes(struct relay_worker *w, bool *ret_had_rows, struct error *err)
{
    lane_set todo = w->lanes.owned;

    while (todo && !told_to_stop(w, 0)) {
        lane_set cohort = lanes_cohort(&w->lanes, todo);
        bool had_rows = false;
        if (!cohort)
            break;
        todo &= (lane_set) ~cohort;
        if (!lanes_may_publish(&w->lanes)) {
            /* We slept past our lease: what we hold may be another's by now. */
            lanes_forget(&w->lanes, w->lanes.owned);
            relay_state_forget(w->state);
            break;
        }
        if (!serve_cohort(w, cohort, &had_rows, err))
            return false;
        *ret_had_rows |= had_rows;
    }
    return true;
}

static bool
look(struct relay_worker *w, bool *ret_had_rows, struct error *err)
{
    *ret_had_rows = false;
    if (!lanes_keep(&w->lanes, w->conn, w->host, err) ||
        !lanes_flush(&w->lanes, w->conn, false, err))
        return false;
    if (w->lanes.owned) {
        if (!window_probe(w->conn, &w->probe, err))
            return false;
        relay_state_clock(w->state, w->probe.server_us);
    }
    relay_state_round(w->state, &w->lanes);
    /* Nothing was committed since the last window: no query at all. */
    if (!lanes_are_at(&w->lanes, &w->probe.now) && !serve_lanes(w, ret_had_rows, err))
        return false;
    if (w->lanes.owned && lanes_are_at(&w->lanes, &w->probe.now)) {
        w->seen_id = w->probe.last_id;
        w->seen_claims = w->lanes.claims;
    }
    return true;
}

static void
adapt_wait(struct relay_worker *w, bool had_rows)
{
    if (had_rows)
        w->wait_us = 0;
    else if (w->wait_us == 0)
        w->wait_us = 1000;
    else if (w->wait_us < w->config->poll_cap_us)
        w->wait_us =
            w->wait_us * 2 < w->config->poll_cap_us ? w->wait_us * 2 : w->config->poll_cap_us;
}

static void
wait_after_failure(struct relay_worker *w, const struct error *err)
{
    int64_t wait = err->cls == ERR_STOP ? 30000000 : backoff_us(w->failures++);

    relay_state_failed(w->state, err);
    told_to_stop(w, wait);
}

static void
leave(struct relay_worker *w)
{
    struct error err;

    if (pgconn_ok(w->conn) && (!lanes_give_back(&w->lanes, w->conn, w->lanes.owned, &err) ||
                               !lanes_leave(&w->lanes, w->conn, &err)))
        log_failure(LOG_WARN, "relay.leave_failed", &err);
}

void
relay_run(struct relay_worker *w, int stop_fd)
{
    w->stop_fd = stop_fd;
    log_context("relay", w->config->name);
    while (!told_to_stop(w, w->wait_us)) {
        struct error err = {0};
        bool had_rows = false;
        bool ok = (w->conn || connect_outbox(w, &err)) && look(w, &had_rows, &err);
        if (ok) {
            if (!w->transport || had_rows)
                w->failures = 0;
            adapt_wait(w, had_rows);
            continue;
        }
        disconnect(w);
        wait_after_failure(w, &err);
    }
    leave(w);
    disconnect(w);
    close_transport(w);
    relay_state_stopped(w->state);
    log_info("relay.stopped");
}

struct relay_worker *
relay_new(const struct relay_config *config)
{
    struct relay_worker *w = xcalloc(1, sizeof(*w));

    w->config = config;
    w->stop_fd = -1;
    w->state = relay_state_new(config->name);
    lanes_init(&w->lanes, 0, config->lease_us);
    if (gethostname(w->host, sizeof(w->host) - 1) != 0)
        snprintf(w->host, sizeof(w->host), "unknown");
    return w;
}

void
relay_free(struct relay_worker *w)
{
    if (!w)
        return;
    lanes_release_memory(&w->lanes);
    for (int i = 0; i < 2; i++) {
        window_rows_release(&w->loads[i].rows);
        arena_release(&w->loads[i].arena);
    }
    flight_release(&w->flight);
    router_free(w->router);
    relay_state_free(w->state);
    probe_release(&w->probe);
    free(w);
}
