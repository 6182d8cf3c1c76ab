#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/doctor.h"
#include "consume/consumer.h"
#include "consume/source.h"
#include "pg/regression.h"
#include "pg/schema.h"
#include "source/mark/mark.h"
#include "transport/transport.h"

static bool
query_texts(struct pgconn *conn, const struct pgstmt *stmt, const char *a, const char *b,
            PGresult **ret, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};

    pgparams_text(&p, a);
    if (b)
        pgparams_text(&p, b);
    bool ok = pgconn_query(conn, stmt, &p, ret, err);
    arena_release(&arena);
    return ok;
}

/* ------------------------------------------------------------------ outboxes */

/*
 * A look at the last events only.  A version that is missing between two of them must not
 * be found elsewhere either: it may have been written by a transaction that began earlier.
 */
static const struct pgstmt stmt_skips = {
    "doctor_skips",
    "WITH last AS MATERIALIZED (SELECT aggregate_type, aggregate_id, aggregate_version"
    "   FROM postrider.outbox ORDER BY xid DESC LIMIT 5000),"
    "  pairs AS (SELECT *, lag(aggregate_version) OVER (PARTITION BY aggregate_type, aggregate_id"
    "   ORDER BY aggregate_version) AS before FROM last)"
    " SELECT format('%s:%s has version %s after %s', p.aggregate_type, p.aggregate_id,"
    "   p.aggregate_version, p.before), count(*) OVER ()"
    " FROM (SELECT * FROM pairs WHERE aggregate_version > before + 1 LIMIT 100) p"
    " WHERE NOT EXISTS (SELECT FROM postrider.outbox o WHERE o.aggregate_type = p.aggregate_type"
    "  AND o.aggregate_id = p.aggregate_id AND o.aggregate_version > p.before"
    "  AND o.aggregate_version < p.aggregate_version) LIMIT 1",
};

static void
check_skips(struct doctor *d, struct pgconn *conn, const struct outbox_config *outbox)
{
    static const char name[] = "versions without gaps";
    static const char why[] = "a consumer in stream order waits for the version that is missing";
    char what[512], remedy[256];
    struct error err;
    PGresult *res;

    if (!pgconn_query(conn, &stmt_skips, NULL, &res, &err)) {
        doctor_error(d, DOCTOR_SKIPS, name, why, &err);
        return;
    }
    if (PQntuples(res) > 0) {
        snprintf(what, sizeof(what), "outbox %s is declared dense, but %s", outbox->name,
                 PQgetvalue(res, 0, 0));
        snprintf(remedy, sizeof(remedy), "set outboxes.%s.versions to sparse and reload",
                 outbox->name);
        doctor_finding(d, DOCTOR_SKIPS, name, true, what, why, remedy);
    } else {
        doctor_ok(d, DOCTOR_SKIPS, name);
    }
    PQclear(res);
}

static void
check_mapped(struct doctor *d, struct pgconn *conn, const struct outbox_config *outbox)
{
    static const char name[] = "a table of your own";
    static const char why[] = "the relay sweeps it by state, in version order";
    struct mark *mark;
    struct error err;
    char what[256];

    if (!mark_open(conn, outbox, &mark, &err)) {
        doctor_error(d, DOCTOR_MAPPED, name, why, &err);
        return;
    }
    if (!mark_prepare(conn, mark, &err)) {
        doctor_error(d, DOCTOR_MAPPED, name, why, &err);
    } else if (!mark->indexed) {
        snprintf(what, sizeof(what), "table %s has no index on its pending rows", outbox->table);
        doctor_finding(d, DOCTOR_MAPPED, name, true, what,
                       "every sweep then reads and sorts the whole table",
                       strbuf_str(&mark->index));
    } else {
        doctor_ok(d, DOCTOR_MAPPED, name);
    }
    mark_free(mark);
}

/* As docs/guide/operations.md says it, "After a restore". */
static void
check_regression(struct doctor *d, struct pgconn *conn)
{
    static const char remedy[] =
        "BEGIN; SET LOCAL ROLE postrider_owner; UPDATE postrider.lane SET done_snap = '1:1:', "
        "open_snap = NULL, open_pos = 0; UPDATE postrider.outbox SET xid = DEFAULT; COMMIT";
    static const char positions[] = "positions and the server's transactions";
    static const char events[] = "events and the server's transactions";
    struct error err;

    if (regression_check_positions(conn, NULL, &err))
        doctor_ok(d, DOCTOR_AHEAD, positions);
    else
        doctor_finding(d, DOCTOR_AHEAD, positions, true, err.text,
                       "a position of another server takes events for published that are not",
                       remedy);
    if (regression_check_events(conn, &err))
        doctor_ok(d, DOCTOR_FUTURE, events);
    else
        doctor_finding(d, DOCTOR_FUTURE, events, true, err.text,
                       "it is not published before the server's transactions get there", remedy);
}

void
doctor_outboxes(struct doctor *d, struct pgconn *conn, const char *dsn)
{
    check_regression(d, conn);
    for (size_t i = 0; i < d->config->outbox_count; i++) {
        const struct outbox_config *outbox = &d->config->outboxes[i];
        if (strcmp(outbox->database, dsn) != 0)
            continue;
        if (outbox->table)
            check_mapped(d, conn, outbox);
        else if (outbox->versions == VERSIONS_DENSE)
            check_skips(d, conn, outbox);
    }
}

/* ------------------------------------------------------------------ routes */

static const struct pgstmt stmt_routes = {
    "doctor_routes",
    "SELECT t.topic, t.partitions FROM postrider.route t JOIN postrider.relay r USING (relay)"
    " WHERE r.name = $1::text ORDER BY t.topic",
};
static const struct pgstmt stmt_topic = {
    "doctor_topic",
    "SELECT partitions FROM postrider.log_topic WHERE topic = $1::text",
};

static const char routes_name[] = "topics of the destination";
static const char routes_why[] =
    "with another partition count later events of a stream go elsewhere, past earlier ones";

/* One topic whose partition count was fixed at its first use; true: all is well. */
static bool
check_topic(struct doctor *d, struct pgconn *bus, const char *topic, int fixed)
{
    char what[512], remedy[512];
    struct error err;
    PGresult *res;

    if (!query_texts(bus, &stmt_topic, topic, NULL, &res, &err)) {
        doctor_error(d, DOCTOR_ROUTES, routes_name, routes_why, &err);
        return false;
    }
    int has = PQntuples(res) > 0 ? (int) pgresult_i64(res, 0, 0) : 0;
    PQclear(res);
    if (has == fixed)
        return true;
    if (has == 0) {
        snprintf(what, sizeof(what), "topic %s is not in %s", topic, pgconn_target(bus));
        snprintf(remedy, sizeof(remedy), "there: SELECT postrider.log_create_topic('%s', %d)",
                 topic, fixed);
    } else {
        snprintf(what, sizeof(what), "topic %s was begun with %d partitions, %s has %d", topic,
                 fixed, pgconn_target(bus), has);
        snprintf(remedy, sizeof(remedy),
                 "there: UPDATE postrider.log_topic SET partitions = %d WHERE topic = '%s'", fixed,
                 topic);
    }
    doctor_finding(d, DOCTOR_ROUTES, routes_name, true, what, routes_why, remedy);
    return false;
}

/* The words of the relay itself, relay.partitions. */
static bool
check_asked(struct doctor *d, const struct relay_config *r, const char *topic, int fixed)
{
    char what[512], remedy[256];

    if (r->destination->partitions == 0 || r->destination->partitions == fixed)
        return true;
    snprintf(what, sizeof(what), "topic %s was begun with %d partitions, the configuration says %d",
             topic, fixed, r->destination->partitions);
    snprintf(remedy, sizeof(remedy), "set destinations.%s.partitions to %d", r->destination->name,
             fixed);
    doctor_finding(d, DOCTOR_ROUTES, routes_name, true, what, routes_why, remedy);
    return false;
}

/* A log in PostgreSQL: asked by SQL, since its transport makes a topic that is not there. */
static bool
check_log(struct doctor *d, const struct relay_config *r, const PGresult *routes)
{
    struct pgconn_options options = {.purpose = "doctor", .system_search_path = true};
    struct pgconn *bus = NULL;
    struct error err;
    bool ok = true;

    if (!pgconn_open(r->destination->database, &options, &bus, &err) || !schema_check(bus, &err)) {
        doctor_error(d, DOCTOR_ROUTES, routes_name, routes_why, &err);
        ok = false;
    }
    for (int row = 0; ok && row < PQntuples(routes); row++)
        ok = check_topic(d, bus, PQgetvalue(routes, row, 0), (int) pgresult_i64(routes, row, 1));
    pgconn_close(bus);
    return ok;
}

/* `fixed`: 0 before the first event.  More partitions than that stay empty, which is for
 * information. */
static bool
ask_broker(struct doctor *d, struct transport *t, const char *topic, int fixed)
{
    char what[512];
    struct error err;
    int has = 0;

    if (!t->ops->topic(t, topic, &has, &err) ||
        (has < fixed && !t->ops->topic(t, topic, &fixed, &err))) {
        doctor_error(d, DOCTOR_ROUTES, routes_name, routes_why, &err);
        return false;
    }
    if (fixed == 0 || has == fixed)
        return true;
    snprintf(what, sizeof(what), "topic %s was begun with %d partitions and has %d now", topic,
             fixed, has);
    doctor_finding(d, DOCTOR_ROUTES, routes_name, false, what, routes_why,
                   "nothing: the relay keeps to those it began with; for more, use a new topic");
    return false;
}

/* A broker that never makes a topic by itself is asked as the relay asks it, in its words. */
static bool
check_broker(struct doctor *d, const struct relay_config *r, const PGresult *routes)
{
    const struct destination_config *to = r->destination;
    const struct transport_ops *ops = transport_find(to->transport);
    struct transport *t = NULL;
    struct error err;
    bool ok = true;

    if (!ops) {
        error_set_exit(&err, ERR_STOP, EXIT_CONFIG, "config.transport",
                       "destination %s: this program was built without transport %s", to->name,
                       to->transport);
        error_hint(&err, "build it with -D%s=enabled, or install a package that has it",
                   to->transport);
    }
    if (!ops || !ops->open(to, "doctor", NULL, &t, &err)) {
        doctor_error(d, DOCTOR_ROUTES, routes_name, routes_why, &err);
        return false;
    }
    for (int row = 0; ok && row < PQntuples(routes); row++)
        ok = ask_broker(d, t, PQgetvalue(routes, row, 0), (int) pgresult_i64(routes, row, 1));
    /* Before the first event only a topic that has one name can be asked for. */
    if (PQntuples(routes) == 0 && !strchr(to->topic, '{'))
        ok = ask_broker(d, t, to->topic, to->partitions);
    t->ops->close(t);
    return ok;
}

static void
check_routes(struct doctor *d, struct pgconn *conn, const struct relay_config *r)
{
    PGresult *res;
    struct error err;
    bool ok = true;

    if (!query_texts(conn, &stmt_routes, r->name, NULL, &res, &err)) {
        doctor_error(d, DOCTOR_ROUTES, routes_name, routes_why, &err);
        return;
    }
    for (int row = 0; ok && row < PQntuples(res); row++)
        ok = check_asked(d, r, PQgetvalue(res, row, 0), (int) pgresult_i64(res, row, 1));
    if (ok && r->destination->database)
        ok = check_log(d, r, res);
    else if (ok && r->destination->bootstrap)
        ok = check_broker(d, r, res);
    if (ok)
        doctor_ok(d, DOCTOR_ROUTES, routes_name);
    PQclear(res);
}

void
doctor_routes(struct doctor *d, struct pgconn *conn, const char *dsn)
{
    for (size_t i = 0; i < d->config->relay_count; i++)
        if (strcmp(d->config->relays[i].outbox->database, dsn) == 0)
            check_routes(d, conn, &d->config->relays[i]);
}

/* ------------------------------------------------------------------ consumers */

static const struct pgstmt stmt_positions = {
    "doctor_positions",
    "SELECT p.part, p.next_off, p.last_id, p.source FROM postrider.consumer_partition p"
    " JOIN postrider.consumer c USING (consumer)"
    " WHERE c.name = $1::text AND p.topic = $2::text ORDER BY p.part",
};

static void
add_position(struct partitions *p, const PGresult *res, int row)
{
    const char *last = pgresult_str(res, row, 2);
    struct partition *it = &p->list[p->count++];

    *it = (struct partition){.part = (int32_t) pgresult_i64(res, row, 0),
                             .next_off = pgresult_i64(res, row, 1)};
    it->has_last_id = last && uuid_parse(last, strlen(last), &it->last_id);
}

static const char positions_name[] = "positions and the log";

/* Each position by itself, so that each that is wrong is told. */
static bool
judge_positions(struct doctor *d, struct source *source, const PGresult *res)
{
    static const char why[] = "a position that does not fit the log would skip messages";
    struct partition one;
    struct error err;
    bool well = true;

    for (int row = 0; row < PQntuples(res); row++) {
        struct partitions p = {.list = &one};
        if (strcmp(PQgetvalue(res, row, 3), source->id) != 0)
            continue; /* of another log; it says nothing about this one */
        add_position(&p, res, row);
        if (source->ops->check(source, &p, &err))
            continue;
        doctor_error(d, DOCTOR_POSITIONS, positions_name, why, &err);
        well = false;
    }
    return well;
}

static void
check_positions(struct doctor *d, struct pgconn *conn, const struct consumer_config *c)
{
    struct partition_bounds *bounds = NULL;
    struct source *source = NULL;
    PGresult *res = NULL;
    struct error err;
    char what[256];
    int count = 0;

    if (!query_texts(conn, &stmt_positions, c->name, c->topic, &res, &err) ||
        !source_open(c, &source, &err) || !source->ops->bounds(source, &bounds, &count, &err)) {
        doctor_error(d, DOCTOR_POSITIONS, positions_name, "the log is where events come from",
                     &err);
    } else if (count == 0) {
        snprintf(what, sizeof(what), "topic %s of consumer %s is not there", c->topic, c->name);
        doctor_finding(d, DOCTOR_POSITIONS, positions_name, true, what,
                       "the consumer waits for a topic that nobody makes", "postrider init");
    } else if (judge_positions(d, source, res)) {
        doctor_ok(d, DOCTOR_POSITIONS, positions_name);
    }
    free(bounds);
    PQclear(res);
    source_close(source);
}

/* What was forgotten can only come back as long as the log has it. */
static const struct pgstmt stmt_floor = {
    "doctor_floor",
    "SELECT to_char(floor AT TIME ZONE 'UTC', 'YYYY-MM-DD'),"
    "  to_char((clock_timestamp() - $2::bigint * interval '1 microsecond') AT TIME ZONE 'UTC', "
    "'YYYY-MM-DD')"
    " FROM postrider.consumer WHERE name = $1::text"
    "  AND floor > clock_timestamp() - $2::bigint * interval '1 microsecond'",
};

static void
check_floor(struct doctor *d, struct pgconn *conn, const struct consumer_config *c)
{
    static const char name[] = "how far back it remembers";
    static const char why[] =
        "an event that is older than its records cannot be told from a new one";
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    char what[256], remedy[256];
    struct error err;
    PGresult *res;

    pgparams_text(&p, c->name);
    pgparams_i64(&p, c->destination->retention_us);
    bool ok = pgconn_query(conn, &stmt_floor, &p, &res, &err);
    arena_release(&arena);
    if (!ok) {
        doctor_error(d, DOCTOR_FLOOR, name, why, &err);
        return;
    }
    if (PQntuples(res) == 0) {
        doctor_ok(d, DOCTOR_FLOOR, name);
    } else {
        snprintf(what, sizeof(what),
                 "consumer %s has records from %s on, the log may have messages from %s on",
                 c->name, PQgetvalue(res, 0, 0), PQgetvalue(res, 0, 1));
        snprintf(remedy, sizeof(remedy),
                 "do not set its positions back past %s; find out who pruned with a retention "
                 "shorter than consumers.%s.retention",
                 PQgetvalue(res, 0, 0), c->name);
        doctor_finding(d, DOCTOR_FLOOR, name, false, what, why, remedy);
    }
    PQclear(res);
}

static void
check_handlers(struct doctor *d, const struct consumer_config *c)
{
    static const char name[] = "handlers";
    struct error err;

    if (consumer_check(c, &err))
        doctor_ok(d, DOCTOR_HANDLERS, name);
    else
        doctor_error(d, DOCTOR_HANDLERS, name,
                     "a handler that cannot be prepared pauses, and its streams wait", &err);
}

void
doctor_consumers(struct doctor *d, struct pgconn *conn, const char *dsn)
{
    for (size_t i = 0; i < d->config->consumer_count; i++) {
        const struct consumer_config *c = &d->config->consumers[i];
        if (strcmp(c->database, dsn) != 0)
            continue;
        check_handlers(d, c);
        check_positions(d, conn, c);
        check_floor(d, conn, c);
    }
}
