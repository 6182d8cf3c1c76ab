/*
 * mend.c — what is done about streams that are held back.  An operator only asks, by
 * postrider.relay_request(); the owner of the lane publishes the parked events of the
 * stream, in order, and removes them, in transactions that name its epoch.
 */
#include <string.h>

#include "core/failpoint.h"
#include "core/log.h"
#include "relay/parking.h"
#include "relay/worker_parts.h"

/* Locked, not only read: a zombie's transaction must not commit behind the new owner. */
static const struct pgstmt stmt_lock_lane = {
    "mend_lock_lane",
    "SELECT FROM postrider.lane WHERE relay = $1::smallint AND lane = $2::smallint"
    " AND owner = $3::uuid AND epoch = $4::bigint FOR UPDATE",
};
static const struct pgstmt stmt_done = {
    "mend_done",
    "DELETE FROM postrider.parked WHERE id = ANY ($1::bigint[])",
};
static const struct pgstmt stmt_discard = {
    "mend_discard",
    "UPDATE postrider.parked SET state = 'discarded', request = NULL, last_at = clock_timestamp()"
    " WHERE id = $1::bigint",
};
static const struct pgstmt stmt_retry = {
    "mend_retry",
    "UPDATE postrider.parked SET state = 'retry', holds = false, request = NULL"
    " WHERE id = $1::bigint",
};
static const struct pgstmt stmt_left = {
    "mend_left",
    "SELECT EXISTS (SELECT FROM postrider.parked WHERE side = 'relay' AND reader = $1::smallint"
    " AND aggregate_type = $2::text AND aggregate_id = $3::text AND holds"
    " AND state <> 'discarded')",
};

/* One go at one stream. */
struct mending {
    struct relay_worker *w;
    struct held_stream *stream;
    struct batch batch;
    struct parked_rows parked;
    int count; /* of them are in the batch, the first ones */
    bool left; /* there are more of the stream */
};

/* ------------------------------------------------------------------ transactions */

static bool
begin_as_owner(struct mending *m, bool *ret_ours, struct error *err)
{
    struct lanes *lanes = &m->w->lanes;
    struct arena arena = {0};
    struct pgparams q = {.arena = &arena};
    PGresult *res;

    pgparams_i16(&q, lanes->relay);
    pgparams_i16(&q, (int16_t) m->stream->lane);
    pgparams_uuid(&q, &lanes->owner);
    pgparams_i64(&q, lanes->lane[m->stream->lane].epoch);
    bool ok = pgconn_exec(m->w->conn, "BEGIN", err) &&
              pgconn_query(m->w->conn, &stmt_lock_lane, &q, &res, err);
    arena_release(&arena);
    if (!ok)
        return false;
    *ret_ours = PQntuples(res) == 1;
    PQclear(res);
    if (*ret_ours)
        return true;
    lanes_forget(lanes, (lane_set) (1 << m->stream->lane));
    return pgconn_exec(m->w->conn, "ROLLBACK", err);
}

static bool
find_left(struct mending *m, struct error *err)
{
    struct arena arena = {0};
    struct pgparams q = {.arena = &arena};
    PGresult *res;

    pgparams_i16(&q, m->w->lanes.relay);
    pgparams_text(&q, m->stream->aggregate_type);
    pgparams_text(&q, m->stream->aggregate_id);
    bool ok = pgconn_query(m->w->conn, &stmt_left, &q, &res, err);
    if (ok) {
        m->left = pgresult_bool(res, 0, 0);
        PQclear(res);
    }
    arena_release(&arena);
    return ok;
}

/* A stream leaves the set only when the transaction that mends it finds nothing more. */
static bool
commit(struct mending *m, struct error *err)
{
    struct held *held = &m->w->publisher.held;

    if (!find_left(m, err) || !pgconn_exec(m->w->conn, "COMMIT", err))
        return false;
    m->stream->holds = m->left;
    m->stream->mend &= m->left;
    if (!m->left && !m->stream->passed)
        held_remove(held, m->stream);
    relay_state_held(m->w->state, held->count);
    return true;
}

static bool
change(struct mending *m, const struct pgstmt *stmt, const struct parked_row *row,
       struct error *err)
{
    struct arena arena = {0};
    struct pgparams q = {.arena = &arena};

    pgparams_i64(&q, row->id);
    bool ok = pgconn_run(m->w->conn, stmt, &q, err);
    arena_release(&arena);
    return ok;
}

/* In a table of the user's own, the row itself must not be pending any more. */
static bool
discard_at_source(struct mending *m, const struct parked_row *row, bool *ret_ours,
                  struct error *err)
{
    struct pgarray keys = {0};

    if (!m->w->mark)
        return true;
    pgarray_start(&keys, PG_TEXT);
    pgarray_text(&keys, row->source_key);
    bool ok = sweep_set_state(m->w, &m->w->mark->discard, &keys, ret_ours, err);
    pgarray_release(&keys);
    return ok;
}

/* The table has no such state: the operator is told in the dead letter itself. */
static bool
say_no_state(struct mending *m, const struct parked_row *row, struct error *cause,
             struct error *err)
{
    error_wrap(cause, "setting the state to %s (outboxes.%s.mark.discarded)",
               m->w->config->outbox->mark.discarded, m->w->config->outbox->name);
    m->stream->mend = false;
    return pgconn_exec(m->w->conn, "ROLLBACK", err) &&
           parking_write_refusal(&m->w->publisher, row->id, &row->row, cause, err);
}

static bool
discard(struct mending *m, const struct parked_row *row, struct error *err)
{
    struct error cause = {0};
    bool ours;

    if (!begin_as_owner(m, &ours, err))
        return false;
    if (!ours)
        return true;
    if (!discard_at_source(m, row, &ours, &cause)) {
        if (pgconn_ok(m->w->conn))
            return say_no_state(m, row, &cause, err);
        *err = cause;
        return false;
    }
    if (!change(m, &stmt_discard, row, err))
        return false;
    m->stream->passed = true;
    log_info("relay.discarded", F_I64("parked_id", row->id));
    return commit(m, err);
}

/* A table of the user's own: the row is still pending, so the next sweep publishes it. */
static bool
retry_at_source(struct mending *m, const struct parked_row *row, struct error *err)
{
    bool ours;

    if (!begin_as_owner(m, &ours, err))
        return false;
    if (!ours)
        return true;
    if (!change(m, &stmt_retry, row, err) || !commit(m, err))
        return false;
    m->w->publisher.held.retries = true;
    mark_restart(m->w->mark);
    return true;
}

static bool
remove_published(struct mending *m, struct error *err)
{
    struct arena arena = {0};
    struct pgparams q = {.arena = &arena};
    struct pgarray ids = {0};

    pgarray_start(&ids, PG_INT8);
    for (int n = 0; n < m->count; n++)
        if (publisher_fate(&m->w->publisher, n) == FATE_STORED)
            pgarray_i64(&ids, m->parked.rows[n].id);
    pgparams_array(&q, &ids);
    pgarray_release(&ids);
    bool ok = pgconn_run(m->w->conn, &stmt_done, &q, err);
    arena_release(&arena);
    return ok;
}

/* What was published is removed; what was refused again is dead, and asked for no more. */
static bool
settle(struct mending *m, struct error *err)
{
    bool ours;

    if (!begin_as_owner(m, &ours, err))
        return false;
    if (!ours)
        return true;
    if (!remove_published(m, err))
        return false;
    for (int n = 0; n < m->count; n++) {
        if (publisher_fate(&m->w->publisher, n) != FATE_DEAD)
            continue;
        m->stream->mend = false;
        if (!parking_write_refusal(&m->w->publisher, m->parked.rows[n].id, &m->parked.rows[n].row,
                                   m->batch.refusals[n], err))
            return false;
    }
    FAILPOINT("relay.mended");
    if (!parking_clear_passed(&m->w->publisher, &m->batch, err))
        return false;
    return commit(m, err);
}

/* ------------------------------------------------------------------ a stream */

/* The rows that may go now: a dead one that was asked for, or those that wait in front. */
static void
choose(struct mending *m)
{
    const struct parked_rows *parked = &m->parked;
    struct outbox_row *rows =
        arena_alloc(&m->batch.arena, sizeof(*rows) * (size_t) (parked->count + 1));

    for (m->count = 0; m->count < parked->count; m->count++) {
        const struct parked_row *row = &parked->rows[m->count];
        if (!row->there || (row->dead && (m->count > 0 || !row->request)))
            break;
        rows[m->count] = row->row;
        if (row->dead) {
            m->count++;
            break;
        }
    }
    m->batch.rows = rows;
    m->batch.count = m->count;
}

static bool
say_gone(struct mending *m, const struct parked_row *row, struct error *err)
{
    struct error gone;

    error_set(&gone, ERR_PERMANENT, "relay.gone",
              "the outbox has no row of this event any more, so it cannot be published");
    m->stream->mend = false;
    return parking_write_refusal(&m->w->publisher, row->id, &row->row, &gone, err);
}

static bool
mend_stream(struct mending *m, struct error *err)
{
    struct relay_worker *w = m->w;

    if (!window_read_parked(w->conn, w->lanes.relay, m->stream->aggregate_type,
                            m->stream->aggregate_id, &m->batch.arena, &m->parked, err))
        return false;
    const struct parked_row *first = m->parked.count > 0 ? &m->parked.rows[0] : NULL;
    if (first && first->dead && first->request && strcmp(first->request, "discard") == 0)
        return discard(m, first, err);
    if (first && m->w->mark && first->dead && first->request)
        return retry_at_source(m, first, err);
    if (first && !first->there)
        return say_gone(m, first, err);
    choose(m);
    if (m->count == 0) {
        m->stream->mend = false;
        return true;
    }
    enum published how = publish(&w->publisher, &m->batch, err);
    if (how != PUBLISHED)
        return how != BROKEN;
    return settle(m, err);
}

bool
mend_some(struct relay_worker *w, bool *ret_more, struct error *err)
{
    struct mending m = {.w = w, .stream = held_to_mend(&w->publisher.held, w->lanes.owned)};

    *ret_more = m.stream != NULL;
    if (!m.stream)
        return true;
    m.batch.mending = true;
    bool ok = mend_stream(&m, err);
    PQclear(m.parked.result);
    arena_release(&m.batch.arena);
    return ok;
}
