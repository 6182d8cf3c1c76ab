#include "cli/origins.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "pg/pgparams.h"
#include "pg/schema.h"

static const struct pgstmt stmt_find = {
    "origins_find",
    "SELECT o.aggregate_version, o.event_id, o.publish_state"
    " FROM unnest($3::bigint[], $4::bigint[]) AS r(f, t) JOIN postrider.outbox_state o"
    "   ON o.aggregate_type = $1::text AND o.aggregate_id = $2::text"
    "   AND o.aggregate_version BETWEEN r.f AND r.t"
    " WHERE o.relay = $5::text ORDER BY 1 LIMIT 100",
};
/* Of a table of the user's own: $1 type, $2 aggregate, $3 and $4 the ranges. */
static const struct pgstmt stmt_write = {
    "origins_write",
    "SELECT format('SELECT o.%1$I, o.%2$I, CASE o.%3$I::text WHEN %4$L THEN ''PENDING'' WHEN %5$L"
    " THEN ''PUBLISHED'' WHEN %6$L THEN ''DEAD'' ELSE o.%3$I::text END"
    " FROM unnest($3::bigint[], $4::bigint[]) AS r(f, t)"
    " JOIN %7$s o ON o.%8$I = $2::text::%9$s AND o.%1$I BETWEEN r.f AND r.t"
    " WHERE %10$s = $1::text ORDER BY 1 LIMIT 100', $1::text, $2::text, $3::text, $4::text, "
    "$5::text,"
    " $6::text, t.name, $8::text, format_type(a.atttypid, a.atttypmod),"
    " coalesce(quote_literal($9::text), format('o.%I::text', $10::text)))"
    " FROM (SELECT CASE WHEN strpos($7::text, '.') > 0 THEN"
    "   format('%I.%I', split_part($7::text, '.', 1), split_part($7::text, '.', 2))"
    "   ELSE format('public.%I', $7::text) END AS name) t"
    " JOIN pg_attribute a ON a.attrelid = t.name::regclass AND a.attname = $8::text",
};

void
origins_init(struct origins *o, const struct config *config)
{
    o->config = config;
    o->conns = xcalloc(config->outbox_count + 1, sizeof(struct pgconn *));
}

void
origins_release(struct origins *o)
{
    for (size_t i = 0; i < o->config->outbox_count; i++)
        pgconn_close(o->conns[i]);
    free(o->conns);
}

static bool
connect_to(struct origins *o, const struct outbox_config *outbox, struct pgconn **ret,
           struct error *err)
{
    struct pgconn_options options = {.purpose = "gaps", .system_search_path = true};
    struct pgconn **conn = &o->conns[outbox - o->config->outboxes];

    if (!*conn && (!pgconn_open(outbox->database, &options, conn, err) ||
                   (!outbox->table && !schema_check(*conn, err))))
        return false;
    *ret = *conn;
    return true;
}

static void
add_wanted(struct pgparams *p, const struct origins_wanted *wanted)
{
    pgparams_text(p, wanted->aggregate_type);
    pgparams_text(p, wanted->aggregate_id);
    pgparams_text(p, wanted->from);
    pgparams_text(p, wanted->to);
}

/* The statement for a table of the user's own, written by the server, which knows how to quote. */
static bool
query_table(struct pgconn *conn, const struct outbox_config *outbox,
            const struct origins_wanted *wanted, struct arena *arena, PGresult **ret,
            struct error *err)
{
    struct pgparams names = {.arena = arena}, p = {.arena = arena};
    PGresult *res;

    pgparams_text(&names, outbox->columns.aggregate_version);
    pgparams_text(&names, outbox->columns.event_id);
    pgparams_text(&names, outbox->mark.column);
    pgparams_text(&names, outbox->mark.pending);
    pgparams_text(&names, outbox->mark.published);
    pgparams_text(&names, outbox->mark.discarded);
    pgparams_text(&names, outbox->table);
    pgparams_text(&names, outbox->columns.aggregate_id);
    pgparams_text(&names, outbox->aggregate_type);
    pgparams_text(&names, outbox->columns.aggregate_type);
    if (!pgconn_query(conn, &stmt_write, &names, &res, err))
        return false;
    struct pgstmt stmt = {"origins_table", PQgetvalue(res, 0, 0)};
    add_wanted(&p, wanted);
    bool ok = PQntuples(res) == 1
                  ? pgconn_query(conn, &stmt, &p, ret, err)
                  : error_set_exit(err, ERR_STOP, EXIT_CONFIG, "outbox.column",
                                   "table %s in %s has no column %s", outbox->table,
                                   pgconn_target(conn), outbox->columns.aggregate_id);
    PQclear(res);
    /* "r1" cannot be an id of a table whose ids are UUIDs. */
    return ok || strncmp(err->sqlstate, "22", 2) == 0;
}

static bool
find_in(struct origins *o, const struct relay_config *relay, const struct origins_wanted *wanted,
        origins_visit on, void *arg, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    struct pgconn *conn;
    PGresult *res = NULL;
    bool ok = connect_to(o, relay->outbox, &conn, err);

    if (ok && relay->outbox->table) {
        ok = query_table(conn, relay->outbox, wanted, &arena, &res, err);
    } else if (ok) {
        add_wanted(&p, wanted);
        pgparams_text(&p, relay->name);
        ok = pgconn_query(conn, &stmt_find, &p, &res, err);
    }
    for (int row = 0; ok && row < PQntuples(res); row++) {
        struct origin origin = {pgresult_i64(res, row, 0), pgresult_str(res, row, 1),
                                pgresult_str(res, row, 2), relay->name};
        on(&origin, arg);
    }
    PQclear(res);
    arena_release(&arena);
    return ok;
}

bool
origins_find(struct origins *o, const struct destination_config *destination,
             const struct origins_wanted *wanted, origins_visit on, void *arg, struct error *err)
{
    for (size_t i = 0; i < o->config->relay_count; i++)
        if (o->config->relays[i].destination == destination &&
            !find_in(o, &o->config->relays[i], wanted, on, arg, err))
            return false;
    return true;
}
