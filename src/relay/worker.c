#include "relay/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/backoff.h"
#include "core/clock.h"
#include "core/log.h"
#include "pg/pgconn.h"
#include "pg/schema.h"
#include "relay/worker_parts.h"

enum { REQUESTS_US = 1000000 }; /* between two looks for what operators ask */

/* Positions in memory are good only on this connection. */
static void
disconnect(struct relay_worker *w)
{
    pgconn_close(w->conn);
    w->conn = NULL;
    windows_drop(w);
    mark_free(w->mark);
    w->mark = NULL;
    lanes_forget(&w->lanes, w->lanes.owned);
    publisher_forget(&w->publisher);
    relay_state_forget(w->state);
    probe_release(&w->probe);
    w->seen_id = 0;
}

/* ------------------------------------------------------------------ connecting */

static const struct pgstmt stmt_relay = {
    "relay",
    "SELECT relay, writer, filter IS NOT DISTINCT FROM $2::jsonb, outbox FROM postrider.relay"
    " WHERE name = $1::text",
};

static bool
take_relay(struct relay_worker *w, const PGresult *res, struct error *err)
{
    if (PQntuples(res) == 0) {
        error_set_exit(err, ERR_STOP, EXIT_CONFIG, "config.unregistered",
                       "relay %s is not registered in %s", w->config->name, pgconn_target(w->conn));
        return error_hint(err, "run `postrider init` with this configuration");
    }
    if (!pgresult_bool(res, 0, 2)) {
        error_set_exit(err, ERR_STOP, EXIT_CONFIG, "relay.filter",
                       "relay %s is registered with another filter than the configuration's",
                       w->config->name);
        return error_hint(err, "run `postrider init` with this configuration; events that the "
                               "relay has passed stay as they are");
    }
    if (strcmp(pgresult_str(res, 0, 3), outbox_table(w->config->outbox)) != 0) {
        error_set_exit(err, ERR_STOP, EXIT_CONFIG, "relay.outbox",
                       "relay %s is registered for table %s, the configuration says %s",
                       w->config->name, pgresult_str(res, 0, 3), outbox_table(w->config->outbox));
        return error_hint(err, "give the relay of another table another name; `postrider relay "
                               "drop` ends the old one");
    }
    w->lanes.relay = (int16_t) pgresult_i64(res, 0, 0);
    PR_CHECK(uuid_parse(PQgetvalue(res, 0, 1), UUID_TEXT - 1, &w->publisher.writer));
    return true;
}

static bool
find_relay(struct relay_worker *w, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    struct strbuf filter = {0};
    PGresult *res;

    pgparams_text(&p, w->config->name);
    pgparams_text(&p, filter_json(&w->config->filter, &filter));
    bool ok = pgconn_query(w->conn, &stmt_relay, &p, &res, err);
    arena_release(&arena);
    strbuf_release(&filter);
    if (!ok)
        return false;
    ok = take_relay(w, res, err);
    PQclear(res);
    return ok;
}

static bool
connect_outbox(struct relay_worker *w, struct error *err)
{
    char purpose[96];
    struct pgconn_options options = {
        .purpose = purpose, .system_search_path = true, .setup = window_setup};
    struct publisher *p = &w->publisher;

    snprintf(purpose, sizeof(purpose), "relay %s", w->config->name);
    if (!pgconn_open(w->config->outbox->database, &options, &w->conn, err))
        return false;
    p->conn = w->conn;
    if (!schema_check(w->conn, err) || !find_relay(w, err))
        return false;
    if (!sweep_open(w, err))
        return false;
    p->prevs.relay = w->lanes.relay;
    w->held_changes = -1;
    if (!p->router)
        p->router = router_new(w->lanes.relay, w->config->destination);
    return true;
}

/* ------------------------------------------------------------------ the loop */

/* Lanes came or went: what was known of their streams is another's knowledge by now. */
static bool
know_streams(struct relay_worker *w, struct error *err)
{
    int64_t changes = w->lanes.claims + w->lanes.losses;

    if (changes != w->held_changes) {
        prevs_forget(&w->publisher.prevs);
        relay_state_forget(w->state);
        if (!held_load(&w->publisher.held, &w->lanes, w->conn, err))
            return false;
        relay_state_held(w->state, w->publisher.held.count);
        w->held_changes = changes;
    }
    if (clock_mono_us() < w->requests_at_us)
        return true;
    w->requests_at_us = clock_mono_us() + REQUESTS_US;
    return held_requests(&w->publisher.held, &w->lanes, w->conn, err);
}

static bool
look(struct relay_worker *w, bool *ret_had_rows, struct error *err)
{
    bool more;

    *ret_had_rows = false;
    if (!lanes_keep(&w->lanes, w->conn, w->host, err) || !know_streams(w, err))
        return false;
    while (!lanes_flush(&w->lanes, w->conn, false, err))
        if (!worker_may_repeat(w, err))
            return false;
    if (w->lanes.owned) {
        if (!window_probe(w->conn, &w->probe, err))
            return false;
        relay_state_clock(w->state, w->probe.server_us);
    }
    relay_state_round(w->state, &w->lanes);
    relay_state_tell(w->state, w->conn, &w->lanes, 0);
    if (!mend_some(w, &more, err))
        return false;
    if (w->mark) {
        bool ok = sweep_serve(w, ret_had_rows, err);
        *ret_had_rows |= more;
        return ok;
    }
    /* Nothing was committed since the last window: no query at all. */
    if (!lanes_are_at(&w->lanes, &w->probe.now) && !windows_serve(w, ret_had_rows, err))
        return false;
    if (w->lanes.owned && lanes_are_at(&w->lanes, &w->probe.now)) {
        w->seen_id = w->probe.last_id;
        w->seen_claims = w->lanes.claims;
    }
    *ret_had_rows |= more;
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
    relay_state_tell(w->state, w->conn, &w->lanes, wait);
    disconnect(w);
    told_to_stop(&w->stopping, wait);
}

bool
worker_may_repeat(struct relay_worker *w, const struct error *cause)
{
    struct error err;

    if (!pgconn_ok(w->conn) || cause->cls == ERR_STOP || cause->exit == EXIT_NEWER ||
        !pgconn_exec(w->conn, "ROLLBACK", &err))
        return false;
    int64_t until = clock_mono_us() + backoff_us(w->failures++);
    relay_state_failed(w->state, cause);
    do {
        if (told_to_stop(&w->stopping, 50000) || !publisher_keep_lease(&w->publisher, &err))
            return false;
    } while (clock_mono_us() < until);
    return w->lanes.owned && lanes_may_publish(&w->lanes);
}

static void
leave(struct relay_worker *w)
{
    struct error err;

    if (pgconn_ok(w->conn) && (!windows_free_connection(w, &err) ||
                               !lanes_give_back(&w->lanes, w->conn, w->lanes.owned, &err) ||
                               !lanes_leave(&w->lanes, w->conn, &err)))
        log_failure(LOG_WARN, "relay.leave_failed", &err);
}

/* This program must not go on here, and a restart of the same one would not help. */
static bool
is_too_old(const struct error *err)
{
    return err->exit == EXIT_NEWER;
}

bool
relay_run(struct relay_worker *w, int stop_fd, struct error *why)
{
    bool ok = true;

    w->stopping.fd = stop_fd;
    log_context("relay", w->config->name);
    while (ok && !told_to_stop(&w->stopping, w->wait_us)) {
        struct error err = {0};
        bool had_rows = false;
        if ((w->conn || connect_outbox(w, &err)) && look(w, &had_rows, &err)) {
            w->failures = 0;
            adapt_wait(w, had_rows);
        } else if (is_too_old(&err)) {
            relay_state_failed(w->state, &err);
            *why = err;
            ok = false;
        } else {
            wait_after_failure(w, &err);
        }
    }
    leave(w);
    disconnect(w);
    publisher_close_destination(&w->publisher);
    relay_state_stopped(w->state);
    log_info("relay.stopped");
    return ok;
}

bool
relay_check(const struct relay_config *config, struct error *err)
{
    struct relay_worker *w = relay_new(config);
    bool ok = connect_outbox(w, err);

    disconnect(w);
    relay_free(w);
    return ok;
}

struct relay_worker *
relay_new(const struct relay_config *config)
{
    struct relay_worker *w = xcalloc(1, sizeof(*w));

    w->config = config;
    w->stopping.fd = -1;
    w->state = relay_state_new(config);
    lanes_init(&w->lanes, 0, config->lease_us);
    w->publisher = (struct publisher){.config = config,
                                      .lanes = &w->lanes,
                                      .state = w->state,
                                      .stopping = &w->stopping,
                                      .free_connection = windows_free_connection,
                                      .arg = w,
                                      .prevs = {.filter = &config->filter, .lookup = &window_prev}};
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
        arena_release(&w->loads[i].batch.arena);
    }
    publisher_release(&w->publisher);
    relay_state_free(w->state);
    probe_release(&w->probe);
    free(w);
}
