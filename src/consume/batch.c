#include "consume/batch.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "consume/parking.h"
#include "consume/state.h"
#include "consume/verdict.h"
#include "core/failpoint.h"
#include "core/log.h"
#include "pg/pgerror.h"

static const struct pgstmt stmt_consume = {
    "consume_batch",
    "SELECT n, decision, last FROM postrider.consume_batch($1::smallint, $2::text[], $3::text[],"
    " $4::int[], $5::bigint[], $6::bigint[], $7::bigint[], $8::uuid[], $9::text, $10::text,"
    " $11::uuid[], $12::bytea[], $13::text[], $14::text[], $15::bigint[], $16::bigint[],"
    " $17::\"char\"[])",
};

enum { MOST_RELEARNED = 3 };

/* Where a transaction failed. */
enum stage {
    STAGE_DECIDE, /* in our own statements */
    STAGE_HANDLE, /* in the handler of `culprit`, or with handlers under way */
    STAGE_COMMIT,
};

struct attempt {
    struct applier *a;
    struct work *works;
    int count;
    enum stage stage;
    int culprit; /* index of the work whose handler failed, -1: none is known */
    int parked;
};

/* ------------------------------------------------------------------ deciding */

/* The arrays about partitions: one element for each that has messages in this transaction. */
static void
add_partitions(const struct attempt *t, struct pgparams *p)
{
    struct pgarray source = {0}, topic = {0}, part = {0}, epoch = {0}, first = {0}, next = {0},
                   last_id = {0};
    struct pgarray *all[] = {&source, &topic, &part, &epoch, &first, &next, &last_id};
    static const unsigned types[] = {PG_TEXT, PG_TEXT, PG_INT4, PG_INT8, PG_INT8, PG_INT8, PG_UUID};
    struct partitions *owned = &t->a->partitions;

    for (size_t i = 0; i < PR_LENGTH(all); i++)
        pgarray_start(all[i], types[i]);
    for (int i = 0; i < owned->count; i++) {
        const struct incoming *low = NULL, *high = NULL;
        for (int w = 0; w < t->count; w++) {
            if (t->works[w].in->part != owned->list[i].part)
                continue;
            low = low ? low : t->works[w].in;
            high = t->works[w].in;
        }
        if (!low)
            continue;
        pgarray_text(&source, low->source);
        pgarray_text(&topic, low->topic);
        pgarray_i32(&part, low->part);
        pgarray_i64(&epoch, owned->list[i].epoch);
        pgarray_i64(&first, low->off);
        pgarray_i64(&next, high->off + 1);
        if (high->has_origin_id)
            pgarray_uuid(&last_id, &high->origin_id);
        else
            pgarray_null(&last_id);
    }
    for (size_t i = 0; i < PR_LENGTH(all); i++) {
        pgparams_array(p, all[i]);
        pgarray_release(all[i]);
    }
}

static void
add_events(const struct attempt *t, struct pgparams *p)
{
    struct pgarray id = {0}, digest = {0}, type = {0}, aggregate = {0}, version = {0}, prev = {0},
                   kind = {0};
    struct pgarray *all[] = {&id, &digest, &type, &aggregate, &version, &prev, &kind};
    static const unsigned types[] = {PG_UUID, PG_BYTEA, PG_TEXT, PG_TEXT,
                                     PG_INT8, PG_INT8,  PG_CHAR};

    for (size_t i = 0; i < PR_LENGTH(all); i++)
        pgarray_start(all[i], types[i]);
    for (int w = 0; w < t->count; w++) {
        const struct work *work = &t->works[w];
        const struct incoming *in = work->in;
        if (in->foreign)
            continue;
        pgarray_uuid(&id, &in->event_id);
        pgarray_bytes(&digest, in->digest, sizeof(in->digest));
        pgarray_text(&type, in->aggregate_type);
        pgarray_text(&aggregate, in->aggregate_id);
        pgarray_i64(&version, in->version);
        if (in->prev >= 0)
            pgarray_i64(&prev, in->prev);
        else
            pgarray_null(&prev);
        pgarray_char(&kind, work->failure && work->kind != 'r' ? 'u' : work->kind);
    }
    for (size_t i = 0; i < PR_LENGTH(all); i++) {
        pgparams_array(p, all[i]);
        pgarray_release(all[i]);
    }
}

/* The n-th event of the call is the n-th work that is no foreign message. */
static void
take_decisions(struct attempt *t, const PGresult *res)
{
    struct work **events = arena_alloc(&t->a->arena, sizeof(*events) * (size_t) t->count + 1);
    int count = 0;

    for (int w = 0; w < t->count; w++) {
        t->works[w].decision = 0;
        t->works[w].hit = false;
        if (!t->works[w].in->foreign)
            events[count++] = &t->works[w];
    }
    PR_CHECK(PQntuples(res) == count);
    for (int row = 0; row < count; row++) {
        int64_t n = pgresult_i64(res, row, 0);
        PR_CHECK(n >= 1 && n <= count);
        events[n - 1]->decision = *PQgetvalue(res, row, 1);
        events[n - 1]->last = pgresult_i64(res, row, 2);
    }
}

static bool
decide(struct attempt *t, struct error *err)
{
    struct applier *a = t->a;
    struct pgparams p = {.arena = &a->arena};
    PGresult *res;

    pgparams_i16(&p, a->consumer);
    add_partitions(t, &p);
    pgparams_text(&p, applier_order(a));
    pgparams_text(&p, a->config->first == FIRST_ONE ? "1" : "any");
    add_events(t, &p);
    if (!pgconn_pipeline_queue(a->conn, &stmt_begin, NULL, err) ||
        !pgconn_pipeline_queue(a->conn, &stmt_consume, &p, err) ||
        !pgconn_pipeline_sync(a->conn, err))
        return false;
    if (!pgconn_pipeline_next(a->conn, &res, err))
        return false;
    PQclear(res);
    if (!pgconn_pipeline_next(a->conn, &res, err))
        return false;
    take_decisions(t, res);
    PQclear(res);
    if (!pgconn_pipeline_synced(a->conn, err))
        return false;
    FAILPOINT("consumer.deduped");
    return true;
}

/* ------------------------------------------------------------------ effects */

static bool
is_applied(const struct work *work)
{
    return work->decision == 'a';
}

static bool
queue_handlers(struct attempt *t, bool *ret_answers, struct error *err)
{
    *ret_answers = false;
    for (int w = 0; w < t->count; w++) {
        const struct work *work = &t->works[w];
        if (!is_applied(work))
            continue;
        *ret_answers |= work->handler->answers;
        if (!pgconn_pipeline_queue(t->a->conn, &work->handler->stmt, &work->params, err))
            return false;
    }
    return true;
}

/* A handler that answers returns one boolean in one row; only a plain false is an answer. */
static bool
says_already_done(const struct handler *handler, const PGresult *res)
{
    return handler->answers && PQntuples(res) == 1 && !PQgetisnull(res, 0, 0) &&
           !pgresult_bool(res, 0, 0);
}

static bool
take_handlers(struct attempt *t, struct error *err)
{
    PGresult *res;

    for (int w = 0; w < t->count; w++) {
        struct work *work = &t->works[w];
        if (!is_applied(work))
            continue;
        if (!pgconn_pipeline_next(t->a->conn, &res, err)) {
            t->culprit = w;
            return false;
        }
        work->hit = says_already_done(work->handler, res);
        PQclear(res);
    }
    return true;
}

static bool
queue_rejections(struct attempt *t, int *ret_count, struct error *err)
{
    *ret_count = 0;
    for (int w = 0; w < t->count; w++) {
        struct pgparams p = {.arena = &t->a->arena};
        if (t->works[w].decision != 'r')
            continue;
        ++*ret_count;
        applier_reject_params(t->a, &t->works[w], 0, &p);
        if (!pgconn_pipeline_queue(t->a->conn, &stmt_reject, &p, err))
            return false;
    }
    return true;
}

static bool
queue_hits(struct attempt *t, int *ret_hits, struct error *err)
{
    struct pgparams p = {.arena = &t->a->arena};
    struct pgarray ids = {0}, outcomes = {0};

    *ret_hits = 0;
    pgarray_start(&ids, PG_UUID);
    pgarray_start(&outcomes, PG_CHAR);
    for (int w = 0; w < t->count; w++) {
        if (!t->works[w].hit)
            continue;
        pgarray_uuid(&ids, &t->works[w].in->event_id);
        pgarray_char(&outcomes, 'H');
        ++*ret_hits;
    }
    pgparams_i16(&p, t->a->consumer);
    pgparams_array(&p, &ids);
    pgparams_array(&p, &outcomes);
    bool ok = *ret_hits == 0 || pgconn_pipeline_queue(t->a->conn, &stmt_settle, &p, err);
    pgarray_release(&ids);
    pgarray_release(&outcomes);
    return ok;
}

/* Takes answers that only must not be errors. */
static bool
take_plain(struct attempt *t, int queued, struct error *err)
{
    PGresult *res;

    for (int i = 0; i < queued; i++) {
        if (!pgconn_pipeline_next(t->a->conn, &res, err))
            return false;
        PQclear(res);
    }
    return true;
}

static bool
take_commit(struct attempt *t, struct error *err)
{
    PGresult *res;

    t->stage = STAGE_COMMIT;
    if (!pgconn_pipeline_next(t->a->conn, &res, err))
        return false;
    bool ok = applier_committed(res, err);
    PQclear(res);
    return ok && pgconn_pipeline_synced(t->a->conn, err);
}

/*
 * Two answers are waited for in a transaction; a third where a handler answers, since
 * what it says is written before the COMMIT.
 */
static bool
run_effects(struct attempt *t, struct error *err)
{
    struct applier *a = t->a;
    struct pgparams p = {.arena = &a->arena};
    bool answers;
    int hits = 0, rejections;

    t->parked = parking_params(a, t->works, t->count, &p);
    t->stage = STAGE_HANDLE;
    if (!queue_handlers(t, &answers, err) || !queue_rejections(t, &rejections, err) ||
        (t->parked > 0 && !pgconn_pipeline_queue(a->conn, &stmt_park, &p, err)) ||
        (!answers && !pgconn_pipeline_queue(a->conn, &stmt_commit, NULL, err)) ||
        !pgconn_pipeline_sync(a->conn, err))
        return false;
    if (!take_handlers(t, err))
        return false;
    t->stage = STAGE_DECIDE;
    if (!take_plain(t, rejections + (t->parked > 0), err))
        return false;
    if (!answers)
        return take_commit(t, err);
    if (!pgconn_pipeline_synced(a->conn, err))
        return false;
    FAILPOINT("consumer.applied");
    return queue_hits(t, &hits, err) && pgconn_pipeline_queue(a->conn, &stmt_commit, NULL, err) &&
           pgconn_pipeline_sync(a->conn, err) && take_plain(t, hits > 0, err) &&
           take_commit(t, err);
}

static void
moved(struct attempt *t)
{
    for (int w = 0; w < t->count; w++) {
        const struct incoming *in = t->works[w].in;
        struct partition *from = partitions_find(&t->a->partitions, in->part);
        if (from) {
            from->next_off = in->off + 1;
            from->has_last_id = in->has_origin_id;
            from->last_id = in->origin_id;
        }
        verdict_clear(t->a, &t->works[w]);
    }
}

/* One transaction over t->works. */
static bool
run_once(struct attempt *t, struct error *err)
{
    struct applier *a = t->a;

    t->stage = STAGE_DECIDE;
    t->culprit = -1;
    arena_reset(&a->arena);
    if (!pgconn_prepare(a->conn, &stmt_consume, err) || !pgconn_prepare(a->conn, &stmt_park, err) ||
        !pgconn_pipeline_enter(a->conn, err))
        return false;
    if (!decide(t, err) || !run_effects(t, err)) {
        pgconn_pipeline_abort(a->conn);
        if (pgconn_ok(a->conn))
            applier_rollback(a);
        return false;
    }
    if (!pgconn_pipeline_exit(a->conn, err))
        return false;
    a->relearned = 0;
    FAILPOINT("consumer.committed");
    if (t->parked > 0)
        FAILPOINT("consumer.parked");
    moved(t);
    a->parked_since += t->parked;
    consumer_state_decided(a->state, t->works, t->count);
    return true;
}

/* ------------------------------------------------------------------ isolation */

/*
 * How far the isolation of failing events has got: [from, to) is the next transaction,
 * [from, bad) is known to fail, `alone` is the culprit found, to be run by itself.
 */
struct isolation {
    struct work *works;
    int count;
    int from, to, bad, alone;
    int repeats;
};

static void
choose(struct isolation *i, bool careful)
{
    if (i->from >= i->bad)
        i->bad = i->count;
    i->to = i->bad;
    if (i->alone == i->from || careful)
        i->to = i->from + 1;
    else if (i->alone > i->from)
        i->to = i->alone;
}

static void
rest_a_little(void)
{
    uint32_t random;

    PR_CHECK(getrandom(&random, sizeof(random), 0) == sizeof(random));
    struct timespec ts = {.tv_nsec = 1000000 + (long) (random % 19000) * 1000};
    nanosleep(&ts, NULL);
}

/*
 * The connection broke with handlers under way.  With one event in the transaction that
 * counts against it; with more, they will go one at a time until the culprit is found.
 */
static void
note_lost(struct applier *a, const struct attempt *t)
{
    const struct uuid *id = &t->works[0].in->event_id;

    a->careful = true;
    if (t->count > 1 || t->works[0].in->foreign)
        return;
    a->losses = uuid_equal(&a->suspect, id) ? a->losses + 1 : 1;
    a->suspect = *id;
}

/* The event whose handler broke the connection often enough is not tried again. */
static void
judge_suspect(struct applier *a, struct work *work)
{
    struct error err = {0};

    if (a->losses < MOST_CONNECTIONS || work->in->foreign || !work->handler || work->failure ||
        !uuid_equal(&a->suspect, &work->in->event_id))
        return;
    error_set(&err, ERR_UNKNOWN, "handler.connection",
              "the connection broke %d times in a row while its handler ran", a->losses);
    struct failure *failure = arena_alloc(work->params.arena, sizeof(*failure));
    applier_failure(a, &err, true, failure);
    work->failure = failure;
    a->losses = 0;
}

static bool
is_settled(const struct attempt *t)
{
    return t->count == 1 && (t->culprit == 0 || t->stage == STAGE_COMMIT);
}

/* The event is known and was alone.  False: pause. */
static bool
judge_alone(struct applier *a, struct isolation *i, struct error *err)
{
    struct work *work = &i->works[i->from];
    struct failure *failure = arena_alloc(work->params.arena, sizeof(*failure));

    if (!work->handler || work->failure ||
        verdict_find(a, work, 1, &work[1], i->count - i->from - 1, err, failure) != VERDICT_EVENT)
        return false;
    if (failure->cls == ERR_REJECTED) {
        applier_reject(work, failure);
    } else {
        consumer_state_retry(a->state, failure, work);
        work->failure = failure;
    }
    return pgconn_ok(a->conn);
}

/*
 * The statement was lost, or its result changed its type: a new connection prepares it anew.
 * When that does not help, it is a statement of the handler's own that is not there.
 */
static bool
is_to_be_relearned(const struct error *err)
{
    return pgerror_is(err, "26000") || (pgerror_is(err, "0A000") && err->cls == ERR_TRANSIENT);
}

/* A transaction failed: what to run next.  False: nothing, err tells. */
static bool
narrow(struct applier *a, struct isolation *i, const struct attempt *t, struct error *err)
{
    if (!pgconn_ok(a->conn)) {
        if (t->stage == STAGE_HANDLE)
            note_lost(a, t);
        return false;
    }
    if (pgconn_was_stopped(a->conn))
        return false; /* we cancelled it ourselves */
    if (is_to_be_relearned(err) && a->relearned < MOST_RELEARNED) {
        a->relearned++;
        return false;
    }
    if (verdict_is_repeat(err) && !pgerror_is(err, "PR001") && i->repeats++ < MOST_REPEATS) {
        rest_a_little();
        return true;
    }
    if (is_settled(t))
        return judge_alone(a, i, err);
    if (t->culprit >= 0)
        i->alone = i->from + t->culprit;
    else if (t->stage == STAGE_COMMIT)
        i->bad = i->from + t->count / 2; /* a deferred constraint does not say whose it is */
    else
        return false;
    return true;
}

bool
batch_apply(struct applier *a, struct work *works, int count, struct error *err)
{
    struct isolation i = {.works = works, .count = count, .bad = count, .alone = -1};

    while (i.from < count) {
        choose(&i, a->careful);
        if (i.to == i.from + 1)
            judge_suspect(a, &works[i.from]);
        struct attempt t = {.a = a, .works = &works[i.from], .count = i.to - i.from};
        *err = (struct error){0};
        if (run_once(&t, err)) {
            i.from = i.to;
            i.repeats = 0;
        } else if (!narrow(a, &i, &t, err)) {
            return false;
        }
    }
    a->careful = false;
    a->losses = 0;
    return true;
}
