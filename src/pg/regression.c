#include "pg/regression.h"

static const struct pgstmt stmt_positions = {
    "regression_positions",
    "SELECT r.name, l.lane, l.done_snap, s.now FROM postrider.relay r"
    " JOIN postrider.lane l USING (relay), (SELECT pg_current_snapshot() AS now) s"
    " WHERE r.outbox = 'postrider.outbox' AND ($1::text IS NULL OR r.name = $1::text)"
    "  AND (pg_snapshot_xmax(l.done_snap) > pg_snapshot_xmax(s.now)"
    "   OR pg_snapshot_xmax(l.open_snap) > pg_snapshot_xmax(s.now))"
    " ORDER BY r.name, l.lane LIMIT 1",
};
/* The ends of the index: one look, however large the outbox is. */
static const struct pgstmt stmt_events = {
    "regression_events",
    "SELECT o.event_id, o.xid, pg_current_snapshot() FROM postrider.outbox o"
    " WHERE o.xid >= pg_snapshot_xmax(pg_current_snapshot()) ORDER BY o.xid LIMIT 1",
};

static bool
hint_restore(struct error *err)
{
    return error_hint(err, "this database was restored from a dump or is another cluster; see "
                           "docs/guide/operations.md, \"After a restore\"");
}

bool
regression_check_positions(struct pgconn *conn, const char *relay, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    PGresult *res;

    pgparams_text(&p, relay);
    bool ok = pgconn_query(conn, &stmt_positions, &p, &res, err);
    arena_release(&arena);
    if (!ok)
        return false;
    if (PQntuples(res) > 0) {
        error_set_exit(err, ERR_STOP, EXIT_DIFFERS, "relay.xid_regression",
                       "relay %s: the position of lane %s (%.200s) is ahead of the server's "
                       "transactions (%.200s)",
                       PQgetvalue(res, 0, 0), PQgetvalue(res, 0, 1), PQgetvalue(res, 0, 2),
                       PQgetvalue(res, 0, 3));
        ok = hint_restore(err);
    }
    PQclear(res);
    return ok;
}

bool
regression_check_events(struct pgconn *conn, struct error *err)
{
    PGresult *res;
    bool ok = true;

    if (!pgconn_query(conn, &stmt_events, NULL, &res, err))
        return false;
    if (PQntuples(res) > 0) {
        error_set_exit(err, ERR_STOP, EXIT_DIFFERS, "relay.xid_regression",
                       "event %s was written by transaction %s, which is ahead of the server's "
                       "transactions (%.200s)",
                       PQgetvalue(res, 0, 0), PQgetvalue(res, 0, 1), PQgetvalue(res, 0, 2));
        ok = hint_restore(err);
    }
    PQclear(res);
    return ok;
}
