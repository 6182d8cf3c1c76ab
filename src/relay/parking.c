#include "relay/parking.h"

#include <string.h>

#include "core/digest.h"
#include "core/log.h"
#include "relay/encoder.h"

/* The same event parked before (a crash came between) stays as it is, but for one that was retried.
 */
static const struct pgstmt stmt_park = {
    "relay_park",
    "WITH put AS (INSERT INTO postrider.parked AS p (side, reader, lane, pos, state, class, code,"
    "   message, tries, owner, event_id, digest, aggregate_type, aggregate_id, version, event_type,"
    "   occurred_at, key, topic, part, header_names, header_values, body, content_type,"
    "   source)"
    "  VALUES ('relay', $1::smallint, $2::smallint, $3::bigint, $4::text, $5::text, $6::text,"
    "   $7::text, $8::int, $9::text, $10::uuid, $11::bytea, $12::text, $13::text, $14::bigint,"
    "   $15::text, $16::timestamptz, $17::bytea, $18::text, $19::int, $20::text[], $21::bytea[],"
    "   $22::bytea, $23::text, $24::text)"
    "  ON CONFLICT (side, reader, event_id, digest) DO UPDATE SET state = excluded.state,"
    "   holds = true, class = excluded.class, code = excluded.code, message = excluded.message,"
    "   tries = p.tries + 1, last_at = clock_timestamp() WHERE p.state = 'retry'"
    "  RETURNING id, state, class, code, message)"
    " INSERT INTO postrider.attempt (side, reader, parked_id, event_id, class, sqlstate, message)"
    " SELECT 'relay', $1::smallint, id, $10::uuid, class, code, message FROM put"
    " WHERE state = 'dead'",
};
static const struct pgstmt stmt_refused_again = {
    "relay_refused_again",
    "WITH put AS (UPDATE postrider.parked SET state = 'dead', class = $3::text, code = $4::text,"
    "   message = $5::text, tries = tries + 1, last_at = clock_timestamp(), request = NULL"
    "  WHERE id = $2::bigint RETURNING id, event_id)"
    " INSERT INTO postrider.attempt (side, reader, parked_id, event_id, class, sqlstate, message)"
    " SELECT 'relay', $1::smallint, id, event_id, $3::text, $4::text, $5::text FROM put",
};
static const struct pgstmt stmt_passed = {
    "relay_passed",
    "UPDATE postrider.parked SET holds = false WHERE side = 'relay' AND reader = $1::smallint"
    " AND aggregate_type = $2::text AND aggregate_id = $3::text AND state = 'discarded' AND holds",
};

static const char *
code_of(const struct error *refusal)
{
    return refusal->sqlstate[0] ? refusal->sqlstate : refusal->code;
}

static void
add_headers(struct pgparams *q, const struct message *m)
{
    struct pgarray names = {0}, values = {0};

    pgarray_start(&names, PG_TEXT);
    pgarray_start(&values, PG_BYTEA);
    for (int i = 0; i < m->header_count; i++) {
        pgarray_text(&names, m->headers[i].name);
        pgarray_bytes(&values, m->headers[i].value.data, m->headers[i].value.len);
    }
    pgparams_array(q, &names);
    pgparams_array(q, &values);
    pgarray_release(&names);
    pgarray_release(&values);
}

static void
add_row(struct pgparams *q, const struct publisher *p, const struct batch *batch, int n)
{
    const struct outbox_row *row = &batch->rows[n];
    const struct message *m = &batch->messages[n];
    const struct error *refusal = batch->refusals[n];
    unsigned char *digest = arena_alloc(q->arena, DIGEST_BYTES);

    event_digest(row->aggregate_type, row->aggregate_id, row->version, row->event_type, row->body,
                 row->body_len, digest);
    pgparams_i16(q, p->lanes->relay);
    pgparams_i16(q, (int16_t) row->lane);
    pgparams_i64(q, row->id);
    pgparams_text(q, refusal ? "dead" : "waiting");
    pgparams_text(q, refusal ? error_class_name(refusal->cls) : "waiting");
    pgparams_text(q, refusal ? code_of(refusal) : NULL);
    pgparams_text(q, refusal ? refusal->text : "waits behind a dead letter of its stream");
    pgparams_i32(q, refusal ? 1 : 0);
    pgparams_text(q, p->config->owner);
    pgparams_uuid(q, &row->event_id);
    pgparams_bytes(q, digest, DIGEST_BYTES);
    pgparams_text(q, row->aggregate_type);
    pgparams_text(q, row->aggregate_id);
    pgparams_i64(q, row->version);
    pgparams_text(q, row->event_type);
    pgparams_i64(q, row->occurred_at_pg); /* a timestamptz in binary form */
    pgparams_bytes(q, m->key.data, m->key.len);
    pgparams_text(q, m->topic);
    pgparams_i32(q, m->part);
    add_headers(q, m);
    pgparams_bytes(q, row->body, row->body_len);
    pgparams_text(q, row->content_type);
    pgparams_text(q, row->source_key);
}

/* A row of a lane that is still ours and that is not published. */
static bool
is_parked(const struct publisher *p, const struct batch *batch, int n)
{
    return publisher_parks(p, n) && (p->lanes->owned & (1 << batch->rows[n].lane));
}

bool
parking_write(struct publisher *p, const struct batch *batch, struct error *err)
{
    struct arena arena = {0};
    bool ok = true;
    int queued = 0;

    if (!pgconn_prepare(p->conn, &stmt_park, err) || !pgconn_pipeline_enter(p->conn, err))
        return false;
    for (int n = 0; ok && n < batch->count; n++) {
        struct pgparams q = {.arena = &arena};
        if (!is_parked(p, batch, n))
            continue;
        add_row(&q, p, batch, n);
        ok = pgconn_pipeline_queue(p->conn, &stmt_park, &q, err);
        arena_reset(&arena);
        queued++;
    }
    ok = ok && pgconn_pipeline_sync(p->conn, err);
    for (int i = 0; ok && i < queued; i++) {
        PGresult *res;
        ok = pgconn_pipeline_next(p->conn, &res, err);
        if (ok)
            PQclear(res);
    }
    arena_release(&arena);
    if (ok && pgconn_pipeline_synced(p->conn, err) && pgconn_pipeline_exit(p->conn, err))
        return true;
    pgconn_pipeline_abort(p->conn);
    return false;
}

void
parking_committed(struct publisher *p, const struct batch *batch)
{
    int dead = 0;

    for (int n = 0; n < batch->count; n++) {
        const struct outbox_row *row = &batch->rows[n];
        if (!is_parked(p, batch, n))
            continue;
        held_add(&p->held, row->lane, row->aggregate_type, row->aggregate_id)->holds = true;
        dead += publisher_fate(p, n) == FATE_DEAD;
    }
    relay_state_dead(p->state, dead);
    relay_state_held(p->state, p->held.count);
}

bool
parking_clear_passed(struct publisher *p, const struct batch *batch, struct error *err)
{
    for (int n = 0; p->held.count > 0 && n < batch->count; n++) {
        const struct outbox_row *row = &batch->rows[n];
        struct held_stream *held = held_find(&p->held, row->aggregate_type, row->aggregate_id);
        struct arena arena = {0};
        struct pgparams q = {.arena = &arena};
        if (!held || !held->passed || publisher_fate(p, n) != FATE_STORED)
            continue;
        pgparams_i16(&q, p->lanes->relay);
        pgparams_text(&q, row->aggregate_type);
        pgparams_text(&q, row->aggregate_id);
        bool ok = pgconn_run(p->conn, &stmt_passed, &q, err);
        arena_release(&arena);
        if (!ok)
            return false;
        held->passed = false;
        if (!held->holds)
            held_remove(&p->held, held);
    }
    return true;
}

bool
parking_write_refusal(struct publisher *p, int64_t parked_id, const struct outbox_row *row,
                      const struct error *refusal, struct error *err)
{
    struct arena arena = {0};
    struct pgparams q = {.arena = &arena};
    char id[UUID_TEXT];

    uuid_format(&row->event_id, id);
    log_warn("relay.refused_again", F_STR("event_id", id), F_STR("message", refusal->text));
    pgparams_i16(&q, p->lanes->relay);
    pgparams_i64(&q, parked_id);
    pgparams_text(&q, error_class_name(refusal->cls));
    pgparams_text(&q, code_of(refusal));
    pgparams_text(&q, refusal->text);
    bool ok = pgconn_run(p->conn, &stmt_refused_again, &q, err);
    arena_release(&arena);
    return ok;
}
