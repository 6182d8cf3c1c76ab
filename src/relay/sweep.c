/*
 * sweep.c — serving a table of the user's own: swept by key, marked when confirmed.
 *
 * A row that waits behind a dead letter stays pending in its own table and is skipped;
 * only the dead letter itself is parked.
 */
#include "core/failpoint.h"
#include "core/log.h"
#include "relay/parking.h"
#include "relay/worker_parts.h"

/* Events that were tried again at an operator's wish, and are published now. */
static const struct pgstmt stmt_retried = {
    "sweep_retried",
    "DELETE FROM postrider.parked WHERE side = 'relay' AND reader = $1::smallint"
    " AND state = 'retry' AND event_id = ANY ($2::uuid[])",
};

bool
sweep_open(struct relay_worker *w, struct error *err)
{
    if (!w->config->outbox->table)
        return true;
    if (!mark_open(w->conn, w->config->outbox, &w->mark, err) ||
        !mark_prepare(w->conn, w->mark, err))
        return false;
    w->publisher.waits_at_source = true;
    w->publisher.prevs.lookup = &w->mark->prev;
    if (!w->mark->indexed)
        log_warn("relay.no_index", F_STR("table", w->config->outbox->table),
                 F_STR("hint", strbuf_str(&w->mark->index)));
    return true;
}

/* ------------------------------------------------------------------ marking */

bool
sweep_set_state(struct relay_worker *w, const struct pgstmt *stmt, const struct pgarray *keys,
                bool *ret_ours, struct error *err)
{
    struct arena arena = {0};
    struct pgparams q = {.arena = &arena};
    PGresult *res;

    pgparams_i16(&q, w->lanes.relay);
    pgparams_uuid(&q, &w->lanes.owner);
    pgparams_i64(&q, w->lanes.lane[0].epoch);
    pgparams_array(&q, keys);
    bool ok = pgconn_query(w->conn, stmt, &q, &res, err);
    if (ok) {
        *ret_ours = pgresult_i64(res, 0, 0) == 1;
        PQclear(res);
    }
    arena_release(&arena);
    return ok;
}

static bool
mark_published(struct relay_worker *w, const struct batch *batch, int *ret_count, bool *ret_ours,
               struct error *err)
{
    struct pgarray keys = {0};

    *ret_count = 0;
    *ret_ours = true;
    pgarray_start(&keys, PG_TEXT);
    for (int n = 0; n < batch->count; n++) {
        if (publisher_fate(&w->publisher, n) != FATE_STORED)
            continue;
        pgarray_text(&keys, batch->rows[n].source_key);
        (*ret_count)++;
    }
    bool ok = *ret_count == 0 || sweep_set_state(w, &w->mark->publish, &keys, ret_ours, err);
    pgarray_release(&keys);
    return ok;
}

static bool
forget_retried(struct relay_worker *w, const struct batch *batch, struct error *err)
{
    struct arena arena = {0};
    struct pgparams q = {.arena = &arena};
    struct pgarray ids = {0};

    if (!w->publisher.held.retries)
        return true;
    pgarray_start(&ids, PG_UUID);
    for (int n = 0; n < batch->count; n++)
        if (publisher_fate(&w->publisher, n) == FATE_STORED)
            pgarray_uuid(&ids, &batch->rows[n].event_id);
    pgparams_i16(&q, w->lanes.relay);
    pgparams_array(&q, &ids);
    pgarray_release(&ids);
    bool ok = pgconn_run(w->conn, &stmt_retried, &q, err);
    arena_release(&arena);
    return ok;
}

/* What was confirmed is marked, and what was refused is parked, in one fenced transaction. */
static bool
record(struct relay_worker *w, const struct batch *batch, int *ret_count, struct error *err)
{
    struct publisher *p = &w->publisher;
    bool parks = publisher_has_parks(p, batch), ours;

    if (!parks && !p->held.retries) {
        if (!mark_published(w, batch, ret_count, &ours, err))
            return false;
    } else {
        if (!pgconn_exec(w->conn, "BEGIN", err) ||
            !mark_published(w, batch, ret_count, &ours, err) ||
            (ours && !forget_retried(w, batch, err)) ||
            (ours && parks && !parking_write(p, batch, err)))
            return false;
        FAILPOINT("relay.parked");
        if (!pgconn_exec(w->conn, ours ? "COMMIT" : "ROLLBACK", err))
            return false;
    }
    if (!ours) {
        log_warn("relay.fenced", F_STR("doing", "mark"), F_I64("lanes", 1));
        lanes_forget(&w->lanes, w->lanes.owned);
        return true;
    }
    parking_committed(p, batch);
    return parking_clear_passed(p, batch, err);
}

/* ------------------------------------------------------------------ sweeping */

static bool
read_rows(struct relay_worker *w, struct load *load, struct error *err)
{
    windows_drop(w);
    if (!mark_read(w->conn, w->mark, &load->batch.arena, &load->rows, err))
        return false;
    load->batch.rows = load->rows.rows;
    load->batch.count = load->rows.count;
    relay_state_window(w->state, load->rows.count);
    /* What was visible had been written by now; it has to be safe on disk, too. */
    return load->rows.count == 0 ||
           (window_probe(w->conn, &w->probe, err) && windows_wait_durable(w, err));
}

bool
sweep_serve(struct relay_worker *w, bool *ret_had_rows, struct error *err)
{
    struct load *load = &w->loads[0];
    int marked;

    if (!w->lanes.owned || !read_rows(w, load, err))
        return !w->lanes.owned;
    bool cut = load->rows.cut;
    enum published how = publish(&w->publisher, &load->batch, err);
    if (how != PUBLISHED) {
        mark_restart(w->mark);
        return how != BROKEN;
    }
    while (!record(w, &load->batch, &marked, err))
        if (!worker_may_repeat(w, err))
            return false;
    if (load->rows.count > 0)
        FAILPOINT("relay.advanced");
    if (cut)
        mark_move(w->mark, &load->rows.rows[load->rows.count - 1]);
    else
        mark_restart(w->mark);
    *ret_had_rows = marked > 0 || cut;
    return true;
}
