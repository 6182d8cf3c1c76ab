#include "consume/parking.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "consume/intake.h"
#include "consume/state.h"
#include "consume/verdict.h"
#include "core/failpoint.h"
#include "core/log.h"
#include "core/strbuf.h"

enum { ENTRY_FIELDS = 23 };

const struct pgstmt stmt_park = {
    "park",
    "SELECT postrider.park($1::smallint, $2::text, $3::postrider.parked_entry[])",
};
static const struct pgstmt stmt_claim = {
    "claim_parked",
    "SELECT parked_id, tried, unreported, is_event, source, topic, part, off, key, header_names,"
    "  header_values, body"
    " FROM postrider.claim_parked($1::smallint, 1, $2::bigint * interval '1 microsecond')",
};
static const struct pgstmt stmt_consume = {
    "consume_parked",
    "SELECT decision, last FROM postrider.consume_parked($1::smallint, $2::bigint, $3::text,"
    " $4::\"char\")",
};
static const struct pgstmt stmt_adopt = {
    "adopt_parked",
    "SELECT postrider.adopt_parked($1::smallint, $2::bigint, $3::text, $4::text, $5::uuid,"
    " $6::bytea, $7::text, $8::text, $9::text, $10::bigint, $11::bigint, $12::timestamptz)",
};
static const struct pgstmt stmt_fail = {
    "fail_parked",
    "SELECT postrider.fail_parked($1::smallint, $2::bigint, $3::text, $4::text, $5::text, "
    "$6::text)",
};
static const struct pgstmt stmt_unclaim = {
    "unclaim_parked",
    "SELECT postrider.unclaim_parked($1::smallint, $2::bigint, interval '1 second')",
};
static const struct pgstmt stmt_count = {
    "parked_counts",
    "SELECT n, (greatest(extract(epoch FROM clock_timestamp() - oldest_at), 0) * 1000000)::bigint"
    " FROM postrider.parked_counts('consumer', $1::smallint)",
};

/* ------------------------------------------------------------------ entries */

struct reason {
    const char *state;
    const char *cls;
    const char *code;
    const char *message;
};

bool
parking_wants(const struct work *work)
{
    return work->in->foreign || (work->decision && strchr("clgwu", work->decision));
}

static struct reason
reason_of(const struct work *work, struct arena *arena)
{
    const struct incoming *in = work->in;
    int64_t expected = in->prev >= 0 ? in->prev : in->version - 1;

    if (in->foreign)
        return (struct reason){"dead", "foreign", "message.foreign", in->foreign};
    if (work->decision == 'g')
        return (struct reason){"waiting", "gap", "stream.gap",
                               arena_printf(arena,
                                            "the stream is at version %" PRId64 ", version %" PRId64
                                            " must come first",
                                            work->last, expected)};
    if (work->decision == 'w')
        return (struct reason){"waiting", "waiting", "stream.waiting",
                               "an earlier event of its stream is parked"};
    if (work->decision == 'c')
        return (struct reason){"dead", "conflict", "stream.conflict",
                               "the same id came with other content, or the same version with "
                               "another id"};
    if (work->decision == 'l')
        return (struct reason){"dead", "late", "stream.late",
                               "it may have been here before the records that would tell begin"};
    if (work->failure)
        return (struct reason){work->failure->dead ? "dead" : "retry",
                               error_class_name(work->failure->cls), work->failure->code,
                               work->failure->message};
    return (struct reason){"dead", "unhandled", "handler.none",
                           arena_printf(arena, "no handler takes event type %s", in->event_type)};
}

static void
field(struct strbuf *out, unsigned type, const void *data, size_t len)
{
    strbuf_add_u32(out, type);
    strbuf_add_u32(out, data ? (uint32_t) len : UINT32_MAX);
    strbuf_add(out, data, data ? len : 0);
}

static void
field_text(struct strbuf *out, const char *text)
{
    field(out, PG_TEXT, text, text ? strlen(text) : 0);
}

static void
field_i32(struct strbuf *out, int32_t value)
{
    strbuf_add_u32(out, PG_INT4);
    strbuf_add_u32(out, 4);
    strbuf_add_u32(out, (uint32_t) value);
}

static void
field_i64(struct strbuf *out, unsigned type, bool is_null, int64_t value)
{
    strbuf_add_u32(out, type);
    strbuf_add_u32(out, is_null ? UINT32_MAX : 8);
    if (!is_null)
        strbuf_add_u64(out, (uint64_t) value);
}

static void
field_headers(struct strbuf *out, const struct incoming *in)
{
    struct pgarray names = {0}, values = {0};

    pgarray_start(&names, PG_TEXT);
    pgarray_start(&values, PG_BYTEA);
    for (int i = 0; i < in->header_count; i++) {
        pgarray_text(&names, in->headers[i].name);
        if (in->headers[i].value.data)
            pgarray_bytes(&values, in->headers[i].value.data, in->headers[i].value.len);
        else
            pgarray_null(&values);
    }
    strbuf_add_u32(out, PG_TEXT_ARRAY);
    pgarray_append_field(out, &names);
    strbuf_add_u32(out, PG_BYTEA_ARRAY);
    pgarray_append_field(out, &values);
    pgarray_release(&names);
    pgarray_release(&values);
}

/* One postrider.parked_entry in binary form; the fields are those of the type, in its order. */
static void
add_entry(const struct applier *a, const struct work *work, struct arena *arena, struct strbuf *out)
{
    const struct incoming *in = work->in;
    struct reason reason = reason_of(work, arena);
    bool event = !in->foreign;

    strbuf_add_u32(out, ENTRY_FIELDS);
    field_text(out, reason.state);
    field_text(out, reason.cls);
    field_text(out, reason.code);
    field_text(out, reason.message);
    field_i32(out, work->decision == 'u' && work->failure ? 1 : 0);
    field_text(out, a->config->owner);
    field(out, PG_UUID, event ? in->event_id.b : NULL, sizeof(in->event_id.b));
    field(out, PG_BYTEA, event ? in->digest : NULL, sizeof(in->digest));
    field_text(out, event ? in->aggregate_type : NULL);
    field_text(out, event ? in->aggregate_id : NULL);
    field_i64(out, PG_INT8, !event, in->version);
    field_i64(out, PG_INT8, !event || in->prev < 0, in->prev);
    field_text(out, event ? in->event_type : NULL);
    field_i64(out, PG_TIMESTAMPTZ, !event, in->occurred_at_pg);
    field_text(out, in->source);
    field_text(out, in->topic);
    field_i32(out, in->part);
    field_i64(out, PG_INT8, false, in->off);
    field(out, PG_BYTEA, in->key.data, in->key.len);
    field_headers(out, in);
    field(out, PG_BYTEA, in->body.data, in->body.len);
    field_text(out, in->content_type);
}

int
parking_params(const struct applier *a, const struct work *works, int count, struct pgparams *ret)
{
    struct pgarray entries = {0};

    pgarray_start(&entries, a->entry_type);
    for (int w = 0; w < count; w++) {
        if (!parking_wants(&works[w]))
            continue;
        struct strbuf entry = {0};
        add_entry(a, &works[w], ret->arena, &entry);
        pgarray_bytes(&entries, entry.data, entry.len);
        strbuf_release(&entry);
    }
    pgparams_i16(ret, a->consumer);
    pgparams_text(ret, applier_order(a));
    pgparams_array(ret, &entries);
    pgarray_release(&entries);
    return entries.count;
}

/* ------------------------------------------------------------------ due ones */

/* One event, claimed: its try is counted already, so that one that kills us is counted, too. */
struct claimed {
    struct arena arena;
    PGresult *res; /* NULL: none was due */
    int64_t id;
    int tries;
    int unreported; /* of the tries before: those whose end was never heard of */
    bool is_event;  /* it was read when it came; else it was a foreign message */
    struct incoming in;
    struct work work;
};

static const char *
binary_text(const PGresult *res, int row, int col, struct arena *arena)
{
    return arena_strndup(arena, PQgetvalue(res, row, col), (size_t) PQgetlength(res, row, col));
}

static void
read_claimed(const struct applier *a, struct claimed *it)
{
    it->id = pgresult_binary_i64(it->res, 0, 0);
    it->tries = (int) pgresult_binary_i64(it->res, 0, 1);
    it->unreported = (int) pgresult_binary_i64(it->res, 0, 2);
    it->is_event = *PQgetvalue(it->res, 0, 3) != 0;
    it->in.source = binary_text(it->res, 0, 4, &it->arena);
    it->in.topic = binary_text(it->res, 0, 5, &it->arena);
    it->in.part = (int32_t) pgresult_binary_i64(it->res, 0, 6);
    it->in.off = pgresult_binary_i64(it->res, 0, 7);
    if (!intake_content(it->res, 0, 8, &it->arena, &it->in))
        it->in.header_count = 0; /* nothing can be read from it: foreign, by its missing id */
    incoming_decode(&it->in, &it->arena);
    applier_prepare(a, &it->in, &it->arena, &it->work);
}

static bool
claim_due(struct applier *a, struct claimed *it, struct error *err)
{
    struct pgparams p = {.arena = &it->arena};
    PGresult *res;

    pgparams_i16(&p, a->consumer);
    pgparams_i64(&p, a->config->lease_us);
    pgparams_binary(&p);
    if (!pgconn_query(a->conn, &stmt_claim, &p, &res, err))
        return false;
    if (PQntuples(res) == 0) {
        PQclear(res);
        return true;
    }
    it->res = res;
    read_claimed(a, it);
    return true;
}

static bool
write_failure(struct applier *a, struct claimed *it, const struct failure *failure,
              struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};

    pgparams_i16(&p, a->consumer);
    pgparams_i64(&p, it->id);
    pgparams_text(&p, failure->dead ? "dead" : "retry");
    pgparams_text(&p, error_class_name(failure->cls));
    pgparams_text(&p, failure->code);
    pgparams_text(&p, failure->message);
    bool ok = pgconn_run(a->conn, &stmt_fail, &p, err);
    arena_release(&arena);
    if (ok) {
        consumer_state_retry(a->state, failure, &it->work);
        FAILPOINT("consumer.parked");
    }
    return ok;
}

/* Whether the transaction decided: *ret_gone if the event is not due any more. */
static bool
decide_parked(struct applier *a, struct claimed *it, bool *ret_gone, struct error *err)
{
    struct pgparams p = {.arena = &a->arena};
    PGresult *res;
    char kind[2] = {it->in.foreign ? 'f' : it->work.kind, '\0'};

    pgparams_i16(&p, a->consumer);
    pgparams_i64(&p, it->id);
    pgparams_text(&p, applier_order(a));
    pgparams_text(&p, kind);
    if (!pgconn_run(a->conn, &stmt_begin, NULL, err) ||
        !pgconn_query(a->conn, &stmt_consume, &p, &res, err))
        return false;
    *ret_gone = PQntuples(res) == 0;
    if (!*ret_gone) {
        it->work.decision = *PQgetvalue(res, 0, 0);
        it->work.last = pgresult_i64(res, 0, 1);
    }
    PQclear(res);
    return true;
}

static bool
settle_hit(struct applier *a, const struct claimed *it, struct error *err)
{
    struct pgparams p = {.arena = &a->arena};
    struct pgarray ids = {0}, outcomes = {0};

    pgarray_start(&ids, PG_UUID);
    pgarray_start(&outcomes, PG_CHAR);
    pgarray_uuid(&ids, &it->in.event_id);
    pgarray_char(&outcomes, 'H');
    pgparams_i16(&p, a->consumer);
    pgparams_array(&p, &ids);
    pgparams_array(&p, &outcomes);
    bool ok = pgconn_run(a->conn, &stmt_settle, &p, err);
    pgarray_release(&ids);
    pgarray_release(&outcomes);
    return ok;
}

static bool
run_handler(struct applier *a, struct claimed *it, struct error *err)
{
    const struct handler *handler = it->work.handler;
    PGresult *res;

    if (!pgconn_query(a->conn, &handler->stmt, &it->work.params, &res, err))
        return false;
    it->work.hit = handler->answers && PQntuples(res) == 1 && !PQgetisnull(res, 0, 0) &&
                   !pgresult_bool(res, 0, 0);
    PQclear(res);
    return !it->work.hit || settle_hit(a, it, err);
}

static bool
write_rejection(struct applier *a, const struct claimed *it, struct error *err)
{
    struct pgparams p = {.arena = &a->arena};

    applier_reject_params(a, &it->work, it->id, &p);
    return pgconn_run(a->conn, &stmt_reject, &p, err);
}

static bool
commit(struct applier *a, struct error *err)
{
    PGresult *res;

    if (!pgconn_query(a->conn, &stmt_commit, NULL, &res, err))
        return false;
    bool ok = applier_committed(res, err);
    PQclear(res);
    return ok;
}

/* One transaction.  *ret_handler: it failed in the handler, or for what the handler did. */
static bool
apply_once(struct applier *a, struct claimed *it, bool *ret_handler, struct error *err)
{
    bool gone;

    arena_reset(&a->arena);
    *ret_handler = false;
    if (!decide_parked(a, it, &gone, err))
        return false;
    if (gone) {
        applier_rollback(a);
        return true;
    }
    *ret_handler = it->work.decision == 'a';
    if ((it->work.decision == 'a' && !run_handler(a, it, err)) ||
        (it->work.decision == 'r' && !write_rejection(a, it, err)))
        return false;
    FAILPOINT("consumer.applied");
    if (!commit(a, err))
        return false;
    FAILPOINT("consumer.committed");
    verdict_clear(a, &it->work);
    consumer_state_decided(a->state, &it->work, 1);
    return true;
}

/* Its handler took the connection or the process with it, time and again. */
static bool
bury_killer(struct applier *a, struct claimed *it, struct error *err)
{
    struct failure failure;
    struct error cause = {0};

    error_set(&cause, ERR_UNKNOWN, "handler.connection",
              "%d tries broke the connection or the process while its handler ran", it->unreported);
    applier_failure(a, &cause, true, &failure);
    return write_failure(a, it, &failure, err);
}

/* The pause is not the event's fault.  If this fails, too, the claim simply runs out. */
static void
give_back(struct applier *a, const struct claimed *it)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    struct error ignored;

    pgparams_i16(&p, a->consumer);
    pgparams_i64(&p, it->id);
    if (pgconn_ok(a->conn) && !pgconn_run(a->conn, &stmt_unclaim, &p, &ignored))
        log_failure(LOG_DEBUG, "consumer.unclaim_failed", &ignored);
    arena_release(&arena);
}

/* A message that was foreign when it came has become readable: from here on it is that event. */
static bool
adopt(struct applier *a, struct claimed *it, bool *ret_gone, struct error *err)
{
    const struct incoming *in = &it->in;
    struct pgparams p = {.arena = &it->arena};
    PGresult *res;

    pgparams_i16(&p, a->consumer);
    pgparams_i64(&p, it->id);
    pgparams_text(&p, applier_order(a));
    pgparams_text(&p, a->config->first == FIRST_ONE ? "1" : "any");
    pgparams_uuid(&p, &in->event_id);
    pgparams_bytes(&p, in->digest, sizeof(in->digest));
    pgparams_text(&p, in->event_type);
    pgparams_text(&p, in->aggregate_type);
    pgparams_text(&p, in->aggregate_id);
    pgparams_i64(&p, in->version);
    if (in->prev >= 0)
        pgparams_i64(&p, in->prev);
    else
        pgparams_text(&p, NULL);
    pgparams_i64(&p, in->occurred_at_pg); /* a timestamptz in binary form */
    if (!pgconn_query(a->conn, &stmt_adopt, &p, &res, err))
        return false;
    it->work.decision = PQntuples(res) == 1 ? *PQgetvalue(res, 0, 0) : 0;
    *ret_gone = it->work.decision != 'a';
    if (it->work.decision && *ret_gone)
        consumer_state_decided(a->state, &it->work, 1);
    PQclear(res);
    return true;
}

static bool
apply_claimed(struct applier *a, struct claimed *it, struct error *err)
{
    struct failure failure;
    bool in_handler = false, gone = false;

    if (!it->is_event && !it->in.foreign && !adopt(a, it, &gone, err))
        return false;
    if (gone)
        return true;
    if (it->unreported >= MOST_CONNECTIONS)
        return bury_killer(a, it, err);
    if (it->work.failure)
        return write_failure(a, it, it->work.failure, err);
    for (int repeats = 0;; repeats++) {
        if (apply_once(a, it, &in_handler, err))
            return true;
        if (!pgconn_ok(a->conn))
            return false;
        applier_rollback(a);
        if (!verdict_is_repeat(err) || repeats == MOST_REPEATS)
            break;
    }
    if (in_handler && pgconn_ok(a->conn) && !pgconn_was_stopped(a->conn) &&
        verdict_find(a, &it->work, it->tries, NULL, 0, err, &failure) == VERDICT_EVENT) {
        if (failure.cls != ERR_REJECTED)
            return write_failure(a, it, &failure, err);
        applier_reject(&it->work, &failure);
        if (apply_once(a, it, &in_handler, err))
            return true;
        applier_rollback(a);
    }
    give_back(a, it);
    return false;
}

bool
parking_run(struct applier *a, int most, bool *ret_more, struct error *err)
{
    bool ok = true;

    *ret_more = true;
    for (int i = 0; ok && *ret_more && i < most; i++) {
        struct claimed it = {0};
        ok = claim_due(a, &it, err) && (!it.res || apply_claimed(a, &it, err));
        *ret_more = it.res != NULL;
        PQclear(it.res);
        arena_release(&it.arena);
    }
    return ok;
}

bool
parking_count(struct applier *a, struct parked *ret, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    PGresult *res;

    *ret = (struct parked){{0}, {0}};
    pgparams_i16(&p, a->consumer);
    bool ok = pgconn_query(a->conn, &stmt_count, &p, &res, err);
    for (int i = 0; ok && i < PARKED_STATES && i < PQntuples(res); i++) {
        ret->count[i] = pgresult_i64(res, i, 0);
        if (!PQgetisnull(res, i, 1))
            ret->oldest_us[i] = pgresult_i64(res, i, 1);
    }
    if (ok)
        PQclear(res);
    arena_release(&arena);
    return ok;
}
