#include "daemon/preflight.h"

#include "consume/consumer.h"
#include "pg/pgconn.h"
#include "pg/regression.h"
#include "pg/schema.h"
#include "relay/worker.h"
#include "transport/transport.h"

static const struct pgstmt stmt_consumer = {
    "preflight_consumer",
    "SELECT count(*) FROM postrider.consumer WHERE name = $1::text",
};

static const struct pgstmt stmt_routes = {
    "preflight_routes",
    "SELECT t.topic, t.partitions FROM postrider.route t JOIN postrider.relay r USING (relay)"
    " WHERE r.name = $1::text AND t.partitions <> $2::int ORDER BY 1 LIMIT 1",
};

static bool
check_database(const char *dsn, const char *purpose, const char *consumer, struct error *err)
{
    struct pgconn_options options = {.purpose = purpose, .system_search_path = true};
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    struct pgconn *conn = NULL;
    PGresult *res = NULL;
    bool ok = pgconn_open(dsn, &options, &conn, err) && schema_check(conn, err);

    if (ok && consumer) {
        pgparams_text(&p, consumer);
        ok = pgconn_query(conn, &stmt_consumer, &p, &res, err);
    }
    if (res && pgresult_i64(res, 0, 0) == 0) {
        ok = error_set_exit(err, ERR_STOP, EXIT_CONFIG, "config.unregistered",
                            "consumer %s is not registered in %s", consumer, pgconn_target(conn));
        error_hint(err, "run `postrider init` with this configuration");
    }
    PQclear(res);
    pgconn_close(conn);
    arena_release(&arena);
    return ok;
}

static bool
check_destination(const struct destination_config *d, struct error *err)
{
    const struct transport_ops *ops = transport_find(d->transport);
    struct transport *t;

    if (d->database)
        return check_database(d->database, d->name, NULL, err);
    if (!ops) {
        error_set_exit(err, ERR_STOP, EXIT_CONFIG, "config.transport",
                       "destination %s: this program was built without transport %s", d->name,
                       d->transport);
        return error_hint(err, "build it with -D%s=enabled, or install a package that has it",
                          d->transport);
    }
    if (!d->bootstrap)
        return true;
    if (!ops->open(d, d->name, NULL, &t, err))
        return false;
    ops->close(t);
    return true;
}

/* Better not to begin than to stop at the first window. */
static bool
check_positions(const struct relay_config *r, struct error *err)
{
    struct pgconn_options options = {.purpose = r->name, .system_search_path = true};
    struct pgconn *conn = NULL;
    bool ok = r->outbox->table || (pgconn_open(r->outbox->database, &options, &conn, err) &&
                                   regression_check_positions(conn, r->name, err) &&
                                   regression_check_events(conn, err));

    pgconn_close(conn);
    return ok;
}

/* Another count would be refused at the first event: better before anything starts. */
static bool
check_routes(const struct relay_config *r, struct error *err)
{
    struct pgconn_options options = {.purpose = r->name, .system_search_path = true};
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    struct pgconn *conn = NULL;
    PGresult *res = NULL;

    if (r->destination->partitions == 0)
        return true;
    pgparams_text(&p, r->name);
    pgparams_i32(&p, r->destination->partitions);
    bool ok = pgconn_open(r->outbox->database, &options, &conn, err) &&
              pgconn_query(conn, &stmt_routes, &p, &res, err);
    if (ok && PQntuples(res) > 0) {
        ok = error_set_exit(err, ERR_STOP, EXIT_CONFIG, "relay.partitions",
                            "relay %s: topic %s was begun with %s partitions, the configuration "
                            "says %d",
                            r->name, PQgetvalue(res, 0, 0), PQgetvalue(res, 0, 1),
                            r->destination->partitions);
        error_hint(err,
                   "set destinations.%s.partitions to %s: another count would send later events of "
                   "a stream elsewhere, past earlier ones",
                   r->destination->name, PQgetvalue(res, 0, 1));
    }
    PQclear(res);
    pgconn_close(conn);
    arena_release(&arena);
    return ok;
}

bool
preflight(const struct config *config, bool relays, bool consumers, struct error *err)
{
    for (size_t i = 0; relays && i < config->relay_count; i++) {
        const struct relay_config *r = &config->relays[i];
        if (!relay_check(r, err) || !check_positions(r, err) || !check_routes(r, err) ||
            !check_destination(r->destination, err))
            return false;
    }
    for (size_t i = 0; consumers && i < config->consumer_count; i++) {
        const struct consumer_config *c = &config->consumers[i];
        if (!check_database(c->database, c->name, c->name, err) ||
            !check_destination(c->destination, err) || !consumer_check(c, err))
            return false;
    }
    return true;
}
