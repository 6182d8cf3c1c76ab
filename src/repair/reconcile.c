#include "repair/reconcile.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "pg/pgconn.h"
#include "pg/schema.h"

/*
 * Three databases are never read at one instant, so the order of reading makes it right.
 *
 * Lost.  (1) A page of the outbox, with the relay's position and parked events in the same
 * snapshot: what is published there was in the log before (1), since a position moves and a
 * dead letter goes only after the append has committed.  (2) The consumer's positions.  (3) The
 * log from these positions on: a suspect found there is in flight.  (4) The consumer's outcomes
 * of the others.  A published event lies in the log either at or after a position, then (3)
 * finds it; or before it, then the transaction that moved the position past it has written its
 * outcome, and (4), which comes later, sees it.  Neither: lost.
 *
 * Foreign.  Outcomes first, the outboxes after: an event was committed before it could be
 * published, and published before it could be decided on, so the later reading must see it.
 *
 * What retention drops meanwhile is no difference: both lower bounds are read again after the
 * rows, and what lies below them by then is left out.
 */

enum { PAGE = 5000, SUSPECTS = 20000, PAGES_PER_SETTLE = 20 };

#define LIMIT_PAGE "5000"
#define MS(value) "(extract(epoch FROM " value ") * 1000)::bigint"

static const struct pgstmt stmt_consumer = {
    "reconcile_consumer",
    "SELECT c.consumer, CASE WHEN isfinite(c.floor) THEN " MS("c.floor") " ELSE 0 END, " MS(
        "c.made_at") ","
                     "  (SELECT d.event_id FROM postrider.consumed d WHERE d.consumer = c.consumer"
                     "     AND d.day > '-infinity' ORDER BY d.day, d.event_id LIMIT 1)"
                     " FROM postrider.consumer c WHERE c.name = $1::text",
};
static const struct pgstmt stmt_page = {
    "reconcile_page",
    "SELECT o.event_id, o.aggregate_type, o.aggregate_id, o.aggregate_version,"
    /* what was there before a relay that starts "now" is not its own to publish */
    "  CASE WHEN pg_visible_in_snapshot(o.xid, r.start)"
    "    OR NOT postrider.filter_passes(r.filter, o.aggregate_type, o.event_type)"
    "    OR replace($2::text, '{aggregate_type}', o.aggregate_type) <> $3::text THEN 'other'"
    "  WHEN p.state = 'discarded' THEN 'given up' WHEN p.state IS NOT NULL THEN 'held'"
    "  WHEN pg_visible_in_snapshot(o.xid, l.done_snap) THEN 'published'"
    "  WHEN o.id <= l.open_pos AND pg_visible_in_snapshot(o.xid, l.open_snap) THEN 'published'"
    "  ELSE 'pending' END"
    " FROM (SELECT o.event_id, o.aggregate_type, o.aggregate_id, o.aggregate_version, o.event_type,"
    "    o.xid, o.id, o.lane FROM postrider.outbox o WHERE o.event_id > $4::uuid"
    "    ORDER BY o.event_id LIMIT " LIMIT_PAGE ") o"
    " JOIN postrider.relay r ON r.name = $1::text"
    " JOIN postrider.lane l ON l.relay = r.relay AND l.lane = o.lane"
    " LEFT JOIN LATERAL (SELECT p.state FROM postrider.parked p WHERE p.side = 'relay'"
    "    AND p.reader = r.relay AND p.event_id = o.event_id"
    "    ORDER BY p.state = 'discarded' LIMIT 1) p ON true"
    " ORDER BY o.event_id",
};
static const struct pgstmt stmt_relay = {
    "reconcile_relay",
    "SELECT FROM postrider.relay WHERE name = $1::text",
};
/* One row for each id, in the order given. */
static const struct pgstmt stmt_outcomes = {
    "reconcile_outcomes",
    "SELECT c.outcome FROM unnest($2::uuid[]) WITH ORDINALITY AS u(id, n)"
    " LEFT JOIN LATERAL (SELECT d.outcome FROM postrider.consumed d"
    "   WHERE d.consumer = $1::smallint AND d.day = postrider.event_day(u.id)"
    "     AND d.event_id = u.id OFFSET 0) c ON true ORDER BY u.n",
};
static const struct pgstmt stmt_log_id = {
    "reconcile_log_id",
    "SELECT log_id FROM postrider.meta",
};
static const struct pgstmt stmt_positions = {
    "reconcile_positions",
    "SELECT array_agg(part), array_agg(next_off) FROM postrider.consumer_partition"
    " WHERE consumer = $1::smallint AND source = $2::text AND topic = $3::text",
};
/* A partition that the consumer has no position in: all of it is still to come. */
static const struct pgstmt stmt_in_flight = {
    "reconcile_in_flight",
    "SELECT DISTINCT l.event_id FROM postrider.log_head h"
    " LEFT JOIN unnest($2::int[], $3::bigint[]) AS u(part, off) ON u.part = h.part"
    " JOIN postrider.log l ON l.topic = h.topic AND l.part = h.part AND l.off >= coalesce(u.off, 0)"
    " WHERE h.topic = $1::text AND l.event_id = ANY ($4::uuid[]) ORDER BY 1",
};
static const struct pgstmt stmt_decided = {
    "reconcile_decided",
    "SELECT c.day, c.event_id, c.outcome, " MS(
        "c.at") " FROM postrider.consumed c"
                " WHERE c.consumer = $1::smallint AND c.day >= $2::date AND c.day <= $3::date"
                "   AND (c.day, c.event_id) > ($2::date, $4::uuid)"
                " ORDER BY c.day, c.event_id LIMIT " LIMIT_PAGE,
};
static const struct pgstmt stmt_known = {
    "reconcile_known",
    "SELECT o.found FROM unnest($1::uuid[]) WITH ORDINALITY AS u(id, n)"
    " LEFT JOIN LATERAL (SELECT true AS found FROM postrider.outbox o WHERE o.event_id = u.id"
    "   LIMIT 1) o ON true ORDER BY u.n",
};
/* Where the outbox begins: older days were dropped. */
static const struct pgstmt stmt_begin = {
    "reconcile_begin",
    "SELECT coalesce(" MS(
        "min(to_date(right(c.relname, 8), 'YYYYMMDD'))::timestamp") ", 0)"
                                                                    " FROM pg_inherits i JOIN "
                                                                    "pg_class c ON c.oid = "
                                                                    "i.inhrelid"
                                                                    " WHERE i.inhparent = "
                                                                    "'postrider.outbox'::regclass "
                                                                    "AND c.relname ~ "
                                                                    "'^outbox_[0-9]{8}$'",
};

static const struct pgstmt stmt_record = {
    "reconcile_record",
    "INSERT INTO postrider.reconciled (consumer, at, lost, foreign_events)"
    " SELECT c.consumer, clock_timestamp(), $2::bigint, $3::bigint FROM postrider.consumer c"
    " WHERE c.name = $1::text ON CONFLICT (consumer) DO UPDATE SET at = excluded.at,"
    "  lost = excluded.lost, foreign_events = excluded.foreign_events",
};

struct suspect {
    char id[UUID_TEXT];
    const char *aggregate_type, *aggregate_id;
    int64_t version;
    const struct relay_config *relay;
};

struct reconciling {
    const struct config *config;
    const struct consumer_config *consumer;
    const struct reconcile_wish *wish;
    struct reconcile_report *report;
    struct pgconn *consumer_conn, *log_conn;
    struct pgconn **outboxes; /* one for each of the configuration that feeds the consumer */
    char log_id[UUID_TEXT];
    int number;
    int64_t from_ms;    /* older events are left out */
    struct arena arena; /* of the suspects */
    struct suspect *suspects;
    size_t count;
};

static const char outcome_letters[] = "AHSRIPDX";

const char *
reconcile_outcome_name(enum reconcile_outcome outcome)
{
    static const char *const names[] = {"applied", "hit",    "stale", "rejected",
                                        "ignored", "parked", "dead",  "discarded"};

    return names[outcome];
}

static enum reconcile_outcome
outcome_of(const char *letter)
{
    const char *at = strchr(outcome_letters, letter[0]);

    PR_CHECK(at && *at);
    return (enum reconcile_outcome)(at - outcome_letters);
}

bool
reconcile_pause(int stop_fd, int ms, struct error *err)
{
    struct pollfd fd = {.fd = stop_fd, .events = POLLIN}; /* -1 is passed over */

    if (poll(&fd, 1, ms) > 0)
        return error_set(err, ERR_TRANSIENT, "reconcile.stopped",
                         "the process stops; the comparison was not finished");
    return true;
}

/* ------------------------------------------------------------------ ids and times */

/* The lowest UUIDv7 of this millisecond, for comparisons. */
static void
id_floor(int64_t ms, char text[UUID_TEXT])
{
    struct uuid id = {0};

    for (int i = 0; i < 6; i++)
        id.b[i] = (unsigned char) ((uint64_t) ms >> (40 - 8 * i));
    uuid_format(&id, text);
}

static int64_t
id_ms(const char *text)
{
    struct uuid id;

    return uuid_parse(text, strlen(text), &id) && uuid_version(&id) == 7 ? uuid_v7_ms(&id) : -1;
}

static void
say_time(int64_t ms, char *text)
{
    text[0] = 0;
    if (ms > 0)
        clock_format(ms * 1000, text);
}

/* ------------------------------------------------------------------ connections */

static bool
open_conn(const struct reconciling *r, const char *dsn, struct pgconn **ret, struct error *err)
{
    struct pgconn_options options = {.purpose = "reconcile", .system_search_path = true};

    if (!pgconn_open(dsn, &options, ret, err) || !schema_check(*ret, err))
        return false;
    if (r->wish->stop_fd >= 0)
        pgconn_stop_on(*ret, r->wish->stop_fd, 0);
    return true;
}

static bool
feeds(const struct reconciling *r, const struct relay_config *relay)
{
    return relay->destination == r->consumer->destination;
}

static bool
open_outboxes(struct reconciling *r, struct error *err)
{
    const struct config *c = r->config;
    bool any = false;

    for (size_t i = 0; i < c->relay_count; i++) {
        const struct relay_config *relay = &c->relays[i];
        struct pgconn **conn = &r->outboxes[relay->outbox - c->outboxes];
        if (!feeds(r, relay))
            continue;
        if (relay->outbox->table) {
            error_set_exit(err, ERR_STOP, EXIT_CONFIG, "reconcile.table",
                           "relay %s, which feeds consumer %s, reads table %s: only "
                           "postrider.outbox can be compared by event",
                           relay->name, r->consumer->name, relay->outbox->table);
            return error_hint(err, "compare what the business owns with a check: "
                                   "docs/guide/reconcile.md");
        }
        any = true;
        if (!*conn && !open_conn(r, relay->outbox->database, conn, err))
            return false;
    }
    if (any)
        return true;
    error_set_exit(err, ERR_STOP, EXIT_CONFIG, "reconcile.no_relay",
                   "no relay of this configuration feeds destination %s, which consumer %s reads",
                   r->consumer->destination->name, r->consumer->name);
    return error_hint(err, "use a configuration that names outbox and relay as well as the "
                           "consumer; it need not run them");
}

/* From when on the consumer must know every event. */
static void
set_begin(struct reconciling *r, const PGresult *res)
{
    int64_t floor = pgresult_i64(res, 0, 1), made = pgresult_i64(res, 0, 2);
    const char *first = pgresult_str(res, 0, 3);
    enum start_at start;
    int64_t start_us;

    PR_CHECK(start_parse(r->consumer->start, &start, &start_us)); /* it was checked */
    bool now = start == START_NOW;
    /* It began with what the log had then, with what came then, or at a moment. */
    int64_t begun = now ? made : made - r->consumer->destination->retention_us / 1000;

    if (start == START_TIME && begun < start_us / 1000)
        begun = start_us / 1000;

    if (now && (!first || id_ms(first) > begun))
        begun = first ? id_ms(first) : clock_wall_us() / 1000;
    r->from_ms = r->wish->since_ms;
    if (r->from_ms < floor)
        r->from_ms = floor;
    if (r->from_ms < begun)
        r->from_ms = begun;
    say_time(r->from_ms, r->report->since);
}

static bool
find_consumer(struct reconciling *r, bool first, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    PGresult *res;

    pgparams_text(&p, r->consumer->name);
    bool ok = pgconn_query(r->consumer_conn, &stmt_consumer, &p, &res, err);
    arena_release(&arena);
    if (!ok)
        return false;
    ok = PQntuples(res) == 1;
    if (!ok) {
        error_set_exit(err, ERR_STOP, EXIT_CONFIG, "consumer.unknown",
                       "consumer %s is not registered in %s", r->consumer->name,
                       pgconn_target(r->consumer_conn));
        error_hint(err, "run `postrider init` with this configuration");
    } else if (first) {
        r->number = (int) pgresult_i64(res, 0, 0);
        set_begin(r, res);
    } else if (r->from_ms < pgresult_i64(res, 0, 1)) {
        r->from_ms = pgresult_i64(res, 0, 1); /* the floor rose meanwhile */
    }
    PQclear(res);
    return ok;
}

static bool
open_all(struct reconciling *r, struct error *err)
{
    const struct destination_config *d = r->consumer->destination;
    PGresult *res;

    if (!d->database) {
        error_set_exit(err, ERR_STOP, EXIT_CONFIG, "reconcile.destination",
                       "consumer %s reads destination %s, whose transport is %s: what is still on "
                       "its way can be told of a log in PostgreSQL only",
                       r->consumer->name, d->name, d->transport);
        return error_hint(err, "compare what the business owns with a check: "
                               "docs/guide/reconcile.md");
    }
    if (!open_outboxes(r, err) || !open_conn(r, r->consumer->database, &r->consumer_conn, err) ||
        !open_conn(r, d->database, &r->log_conn, err) || !find_consumer(r, true, err) ||
        !pgconn_query(r->log_conn, &stmt_log_id, NULL, &res, err))
        return false;
    snprintf(r->log_id, sizeof(r->log_id), "%s", PQgetvalue(res, 0, 0));
    PQclear(res);
    return true;
}

/* ------------------------------------------------------------------ differences */

static struct reconcile_difference *
add_difference(struct reconcile_report *report, enum reconcile_kind kind, const char *id)
{
    (*(kind == RECONCILE_LOST ? &report->lost : &report->foreign_count))++;
    if (report->count >= RECONCILE_LISTED)
        return NULL;
    GROW(report->list, report->count, report->cap);
    struct reconcile_difference *d = &report->list[report->count++];
    *d = (struct reconcile_difference){.kind = kind, .event_id = arena_strdup(&report->arena, id)};
    return d;
}

static void
add_lost(struct reconcile_report *report, const struct suspect *s)
{
    struct reconcile_difference *d = add_difference(report, RECONCILE_LOST, s->id);

    if (!d)
        return;
    d->aggregate_type = arena_strdup(&report->arena, s->aggregate_type);
    d->aggregate_id = arena_strdup(&report->arena, s->aggregate_id);
    d->version = s->version;
    d->relay = s->relay->name;
}

/* ------------------------------------------------------------------ lost */

static void
add_ids(struct pgparams *p, const struct reconciling *r, size_t from)
{
    struct pgarray ids = {0};

    pgarray_start(&ids, PG_UUID);
    for (size_t i = from; i < r->count; i++) {
        struct uuid id;
        PR_CHECK(uuid_parse(r->suspects[i].id, strlen(r->suspects[i].id), &id));
        pgarray_uuid(&ids, &id);
    }
    pgparams_array(p, &ids);
    pgarray_release(&ids);
}

/* Takes those with an outcome from the suspects, beginning at `from`. */
static bool
drop_decided(struct reconciling *r, size_t from, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    PGresult *res;
    size_t left = from;

    pgparams_i16(&p, (int16_t) r->number);
    add_ids(&p, r, from);
    bool ok = from == r->count || pgconn_query(r->consumer_conn, &stmt_outcomes, &p, &res, err);
    arena_release(&arena);
    if (!ok || from == r->count)
        return ok;
    for (size_t i = from; i < r->count; i++) {
        const char *outcome = pgresult_str(res, (int) (i - from), 0);
        if (outcome)
            r->report->outcomes[outcome_of(outcome)]++;
        else
            r->suspects[left++] = r->suspects[i];
    }
    r->count = left;
    PQclear(res);
    return true;
}

static bool
find_in_flight(struct reconciling *r, PGresult **ret, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena}, q = {.arena = &arena};
    PGresult *res = NULL;

    pgparams_i16(&p, (int16_t) r->number);
    pgparams_text(&p, r->log_id);
    pgparams_text(&p, r->consumer->topic);
    bool ok = pgconn_query(r->consumer_conn, &stmt_positions, &p, &res, err);
    if (ok) {
        pgparams_text(&q, r->consumer->topic);
        pgparams_text(&q, pgresult_str(res, 0, 0));
        pgparams_text(&q, pgresult_str(res, 0, 1));
        add_ids(&q, r, 0);
        ok = pgconn_query(r->log_conn, &stmt_in_flight, &q, ret, err);
    }
    PQclear(res);
    arena_release(&arena);
    return ok;
}

static int
compare_suspects(const void *a, const void *b)
{
    return strcmp(((const struct suspect *) a)->id, ((const struct suspect *) b)->id);
}

/* Both in the order of the ids. */
static void
drop_in_flight(struct reconciling *r, const PGresult *res)
{
    size_t left = 0;
    int row = 0;

    qsort(r->suspects, r->count, sizeof(*r->suspects), compare_suspects);
    for (size_t i = 0; i < r->count; i++) {
        while (row < PQntuples(res) && strcmp(PQgetvalue(res, row, 0), r->suspects[i].id) < 0)
            row++;
        if (row < PQntuples(res) && strcmp(PQgetvalue(res, row, 0), r->suspects[i].id) == 0)
            r->report->in_flight++;
        else
            r->suspects[left++] = r->suspects[i];
    }
    r->count = left;
}

/* Steps 2 to 4 of the proof above. */
static bool
settle(struct reconciling *r, struct error *err)
{
    PGresult *res = NULL;

    if (r->count == 0) {
        arena_reset(&r->arena);
        return true;
    }
    if (!find_in_flight(r, &res, err))
        return false;
    drop_in_flight(r, res);
    PQclear(res);
    if (!drop_decided(r, 0, err) || !find_consumer(r, false, err))
        return false;
    for (size_t i = 0; i < r->count; i++)
        if (id_ms(r->suspects[i].id) >= r->from_ms)
            add_lost(r->report, &r->suspects[i]);
    r->count = 0;
    arena_reset(&r->arena);
    return true;
}

static void
take_row(struct reconciling *r, const struct relay_config *relay, const PGresult *res, int row)
{
    const char *state = PQgetvalue(res, row, 4);

    if (strcmp(state, "pending") == 0)
        r->report->pending++;
    else if (strcmp(state, "held") == 0)
        r->report->held++;
    else if (strcmp(state, "given up") == 0)
        r->report->given_up++;
    if (strcmp(state, "published") != 0)
        return;
    struct suspect *s = &r->suspects[r->count++];
    snprintf(s->id, sizeof(s->id), "%s", PQgetvalue(res, row, 0));
    s->aggregate_type = arena_strdup(&r->arena, PQgetvalue(res, row, 1));
    s->aggregate_id = arena_strdup(&r->arena, PQgetvalue(res, row, 2));
    s->version = pgresult_i64(res, row, 3);
    s->relay = relay;
    r->report->published++;
}

/* Reads the page after *after, which moves; *more: there may be another. */
static bool
read_page(struct reconciling *r, const struct relay_config *relay, char after[UUID_TEXT],
          bool *more, struct error *err)
{
    struct pgconn *conn = r->outboxes[relay->outbox - r->config->outboxes];
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    size_t from = r->count;
    PGresult *res;

    pgparams_text(&p, relay->name);
    pgparams_text(&p, relay->destination->topic);
    pgparams_text(&p, r->consumer->topic);
    pgparams_text(&p, after);
    bool ok = pgconn_query(conn, &stmt_page, &p, &res, err);
    arena_release(&arena);
    if (!ok)
        return false;
    int rows = PQntuples(res);
    for (int row = 0; row < rows; row++)
        take_row(r, relay, res, row);
    if (rows > 0)
        snprintf(after, UUID_TEXT, "%s", PQgetvalue(res, rows - 1, 0));
    *more = rows == PAGE;
    PQclear(res);
    return drop_decided(r, from, err);
}

static bool
is_registered(struct reconciling *r, const struct relay_config *relay, struct error *err)
{
    struct pgconn *conn = r->outboxes[relay->outbox - r->config->outboxes];
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    PGresult *res;

    pgparams_text(&p, relay->name);
    bool ok = pgconn_query(conn, &stmt_relay, &p, &res, err);
    arena_release(&arena);
    if (!ok)
        return false;
    ok = PQntuples(res) == 1;
    PQclear(res);
    if (ok)
        return true;
    error_set_exit(err, ERR_STOP, EXIT_CONFIG, "config.unregistered",
                   "relay %s is not registered in %s", relay->name, pgconn_target(conn));
    return error_hint(err, "run `postrider init` with this configuration");
}

static bool
find_lost(struct reconciling *r, const struct relay_config *relay, struct error *err)
{
    char after[UUID_TEXT];
    bool more = true;
    int pages = 0; /* since the last settling: names of their streams are kept until then */

    if (!is_registered(r, relay, err))
        return false;
    id_floor(r->from_ms, after);
    while (more) {
        if (!reconcile_pause(r->wish->stop_fd, 0, err) || !read_page(r, relay, after, &more, err))
            return false;
        if (r->count <= SUSPECTS - PAGE && ++pages < PAGES_PER_SETTLE)
            continue;
        if (!settle(r, err))
            return false;
        pages = 0;
    }
    return settle(r, err);
}

/* ------------------------------------------------------------------ foreign */

/* The begin of the outbox that forgets first: an older outcome may be of a row it has dropped. */
static bool
find_outbox_begin(struct reconciling *r, int64_t *ret, struct error *err)
{
    *ret = r->from_ms;
    for (size_t i = 0; i < r->config->outbox_count; i++) {
        PGresult *res;
        if (!r->outboxes[i])
            continue;
        if (!pgconn_query(r->outboxes[i], &stmt_begin, NULL, &res, err))
            return false;
        if (*ret < pgresult_i64(res, 0, 0))
            *ret = pgresult_i64(res, 0, 0);
        PQclear(res);
    }
    return true;
}

/* Sets known[row] for those that some outbox has. */
static bool
find_known(struct reconciling *r, const PGresult *page, bool *known, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    struct pgarray ids = {0};
    bool ok = true;

    pgarray_start(&ids, PG_UUID);
    for (int row = 0; row < PQntuples(page); row++) {
        struct uuid id;
        PR_CHECK(uuid_parse(PQgetvalue(page, row, 1), strlen(PQgetvalue(page, row, 1)), &id));
        pgarray_uuid(&ids, &id);
    }
    pgparams_array_lent(&p, &ids);
    for (size_t i = 0; ok && i < r->config->outbox_count; i++) {
        PGresult *res = NULL;
        ok = !r->outboxes[i] || pgconn_query(r->outboxes[i], &stmt_known, &p, &res, err);
        for (int row = 0; ok && res && row < PQntuples(res); row++)
            known[row] |= !PQgetisnull(res, row, 0);
        PQclear(res);
    }
    pgarray_release(&ids);
    arena_release(&arena);
    return ok;
}

static bool
judge_page(struct reconciling *r, const PGresult *page, struct error *err)
{
    bool *known = xcalloc((size_t) PQntuples(page) + 1, sizeof(bool));
    int64_t begin;
    bool ok = find_known(r, page, known, err) && find_outbox_begin(r, &begin, err);

    for (int row = 0; ok && row < PQntuples(page); row++) {
        const char *id = PQgetvalue(page, row, 1);
        /* An id that is no UUIDv7 does not tell its time: when it was decided on counts. */
        int64_t ms = id_ms(id) >= 0 ? id_ms(id) : pgresult_i64(page, row, 3);
        if (known[row] || ms < begin)
            continue;
        struct reconcile_difference *d = add_difference(r->report, RECONCILE_FOREIGN, id);
        if (d)
            d->outcome = outcome_of(PQgetvalue(page, row, 2));
    }
    free(known);
    return ok;
}

/* Outcomes of these days, in pages. */
static bool
walk_outcomes(struct reconciling *r, const char *from_day, const char *to_day, const char *after,
              struct error *err)
{
    char day[32], id[UUID_TEXT];
    int rows = PAGE;

    snprintf(day, sizeof(day), "%s", from_day);
    snprintf(id, sizeof(id), "%s", after);
    while (rows == PAGE) {
        struct arena arena = {0};
        struct pgparams p = {.arena = &arena};
        PGresult *res = NULL;
        pgparams_i16(&p, (int16_t) r->number);
        pgparams_text(&p, day);
        pgparams_text(&p, to_day);
        pgparams_text(&p, id);
        bool ok = reconcile_pause(r->wish->stop_fd, 0, err) &&
                  pgconn_query(r->consumer_conn, &stmt_decided, &p, &res, err) &&
                  judge_page(r, res, err);
        rows = ok ? PQntuples(res) : 0;
        if (rows > 0) {
            snprintf(day, sizeof(day), "%s", PQgetvalue(res, rows - 1, 0));
            snprintf(id, sizeof(id), "%s", PQgetvalue(res, rows - 1, 1));
        }
        PQclear(res);
        arena_release(&arena);
        if (!ok)
            return false;
    }
    return true;
}

static bool
find_foreign(struct reconciling *r, struct error *err)
{
    char day[CLOCK_TEXT] = "0001-01-01", after[UUID_TEXT];
    int64_t begin;

    if (!find_outbox_begin(r, &begin, err))
        return false;
    say_time(begin, r->report->foreign);
    if (begin > 0) {
        clock_format(begin * 1000, day);
        day[10] = 0;
    }
    id_floor(begin, after);
    /* Ids that are no UUIDv7 lie in a "day" of their own. */
    return walk_outcomes(r, "-infinity", "-infinity", "00000000-0000-0000-0000-000000000000",
                         err) &&
           walk_outcomes(r, day, "infinity", after, err);
}

/* ------------------------------------------------------------------ the whole */

bool
reconcile_run(const struct config *config, const struct consumer_config *consumer,
              const struct reconcile_wish *wish, struct reconcile_report *ret, struct error *err)
{
    struct reconciling r = {.config = config, .consumer = consumer, .wish = wish, .report = ret};

    memset(ret, 0, sizeof(*ret));
    r.suspects = xcalloc(SUSPECTS, sizeof(*r.suspects));
    r.outboxes = xcalloc(config->outbox_count + 1, sizeof(struct pgconn *));
    bool ok = open_all(&r, err);
    for (size_t i = 0; ok && i < config->relay_count; i++)
        if (feeds(&r, &config->relays[i]))
            ok = find_lost(&r, &config->relays[i], err);
    ok = ok && find_foreign(&r, err);
    for (size_t i = 0; i < config->outbox_count; i++)
        pgconn_close(r.outboxes[i]);
    pgconn_close(r.consumer_conn);
    pgconn_close(r.log_conn);
    free(r.outboxes);
    free(r.suspects);
    arena_release(&r.arena);
    if (!ok)
        error_wrap(err, "while consumer %s is reconciled", consumer->name);
    return ok;
}

bool
reconcile_record(const struct consumer_config *consumer, const struct reconcile_report *report,
                 struct error *err)
{
    struct pgconn_options options = {.purpose = "reconcile", .system_search_path = true};
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    struct pgconn *conn = NULL;

    pgparams_text(&p, consumer->name);
    pgparams_i64(&p, report->lost);
    pgparams_i64(&p, report->foreign_count);
    bool ok = pgconn_open(consumer->database, &options, &conn, err) &&
              pgconn_run(conn, &stmt_record, &p, err);
    pgconn_close(conn);
    arena_release(&arena);
    return ok;
}

void
reconcile_release(struct reconcile_report *report)
{
    arena_release(&report->arena);
    free(report->list);
}
