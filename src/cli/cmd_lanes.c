#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/relays.h"
#include "core/jsonw.h"

static const struct pgstmt stmt_lanes = {
    "lanes_list",
    "WITH g AS MATERIALIZED (SELECT r.relay, x.* FROM postrider.relay r"
    "  CROSS JOIN LATERAL postrider.relay_lag(r.relay, " RELAYS_MOST ") x"
    "  WHERE $1::text IS NULL OR r.name = $1::text)"
    " SELECT r.name, l.lane, i.host, l.owner, l.epoch,"
    "  CASE WHEN l.owner IS NOT NULL"
    "   THEN round(extract(epoch FROM l.lease_until - clock_timestamp()) * 1000)::bigint END,"
    "  l.done_snap, l.open_snap, l.open_pos, g.pending, g.more,"
    "  round(extract(epoch FROM clock_timestamp() - g.oldest_at) * 1000)::bigint,"
    "  r.outbox = 'postrider.outbox'"
    " FROM postrider.relay r JOIN postrider.lane l USING (relay)"
    " LEFT JOIN postrider.instance i ON i.id = l.owner"
    " LEFT JOIN g ON g.relay = l.relay AND g.lane = l.lane"
    " WHERE $1::text IS NULL OR r.name = $1::text ORDER BY r.name, l.lane",
};

enum { NAME, LANE, HOST, OWNER, EPOCH, LEASE, DONE, OPEN, OPEN_POS, PENDING, MORE, AGE, OURS };

struct listing {
    const struct config *config;
    const char *wanted; /* a relay's name; NULL: all */
    struct jsonw *json; /* NULL: text */
    int count;
};

static void
json_i64(struct jsonw *w, const char *key, const PGresult *res, int row, int col)
{
    if (PQgetisnull(res, row, col))
        jsonw_null(w, key);
    else
        jsonw_i64(w, key, pgresult_i64(res, row, col));
}

/* age_ms: -1: nothing waits. */
static void
show_json(struct jsonw *w, const PGresult *res, int row, int64_t age_ms)
{
    bool open = !PQgetisnull(res, row, OPEN);

    jsonw_object(w, NULL);
    jsonw_str(w, "relay", PQgetvalue(res, row, NAME));
    jsonw_i64(w, "lane", pgresult_i64(res, row, LANE));
    jsonw_str(w, "owner", pgresult_str(res, row, OWNER));
    jsonw_str(w, "host", pgresult_str(res, row, HOST));
    jsonw_i64(w, "epoch", pgresult_i64(res, row, EPOCH));
    json_i64(w, "lease_left_ms", res, row, LEASE);
    jsonw_str(w, "position", pgresult_bool(res, row, OURS) ? PQgetvalue(res, row, DONE) : NULL);
    jsonw_str(w, "window", pgresult_str(res, row, OPEN));
    if (open)
        jsonw_i64(w, "window_published_to", pgresult_i64(res, row, OPEN_POS));
    json_i64(w, "pending", res, row, PENDING);
    jsonw_bool(w, "pending_more", pgresult_bool(res, row, MORE));
    if (age_ms < 0)
        jsonw_null(w, "oldest_pending_ms");
    else
        jsonw_i64(w, "oldest_pending_ms", age_ms);
    jsonw_end(w);
}

/* "app1:5c0f93d2" by the last digits of its id, since two processes may be on one host. */
static void
describe_owner(const PGresult *res, int row, char *ret, size_t size)
{
    const char *owner = PQgetvalue(res, row, OWNER), *host = pgresult_str(res, row, HOST);
    size_t len = strlen(owner);

    if (len == 0)
        snprintf(ret, size, "nobody");
    else
        snprintf(ret, size, "%.40s:%s", host ? host : "?", len > 8 ? owner + len - 8 : owner);
}

static void
show_text(const PGresult *res, int row, int64_t age_ms)
{
    char owner[64], lease[32] = "-", age[32];
    int64_t left = pgresult_i64(res, row, LEASE);

    describe_owner(res, row, owner, sizeof(owner));
    if (!PQgetisnull(res, row, LEASE))
        snprintf(lease, sizeof(lease), left < 0 ? "expired" : "%.1f s", (double) left / 1000);
    printf("%-28s %4s  %-24s %5s  %-8s ", PQgetvalue(res, row, NAME), PQgetvalue(res, row, LANE),
           owner, PQgetvalue(res, row, EPOCH), lease);
    if (!PQgetisnull(res, row, PENDING))
        printf("%7s%s ", PQgetvalue(res, row, PENDING), pgresult_bool(res, row, MORE) ? "+" : " ");
    else
        printf("%7s  ", "");
    relays_duration(age_ms, age, sizeof(age));
    printf("%-8s %s", age_ms < 0 ? "-" : age,
           pgresult_bool(res, row, OURS) ? PQgetvalue(res, row, DONE) : "its state column");
    if (!PQgetisnull(res, row, OPEN))
        printf(", big window %s published to id %s", PQgetvalue(res, row, OPEN),
               PQgetvalue(res, row, OPEN_POS));
    putchar('\n');
}

/* Of our own table the statement tells; of another its own state column does. */
static bool
find_age(struct pgconn *conn, const struct listing *listing, const PGresult *res, int row,
         int64_t *ret, struct error *err)
{
    const struct relay_config *r = relays_find(listing->config, PQgetvalue(res, row, NAME));

    *ret = PQgetisnull(res, row, AGE) ? -1 : pgresult_i64(res, row, AGE);
    if (pgresult_bool(res, row, OURS) || !r || !r->outbox->table)
        return true;
    return relays_mark_age(conn, r->outbox, ret, err);
}

static bool
list_database(struct pgconn *conn, const struct outbox_config *outbox, void *arg, struct error *err)
{
    struct listing *listing = arg;
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    PGresult *res;

    (void) outbox;
    pgparams_text(&p, listing->wanted);
    bool ok = pgconn_query(conn, &stmt_lanes, &p, &res, err);
    arena_release(&arena);
    if (!ok)
        return false;
    for (int row = 0; ok && row < PQntuples(res); row++) {
        int64_t age_ms;
        ok = find_age(conn, listing, res, row, &age_ms, err);
        if (ok && listing->json)
            show_json(listing->json, res, row, age_ms);
        else if (ok)
            show_text(res, row, age_ms);
        listing->count++;
    }
    PQclear(res);
    return ok;
}

static bool
list_all(struct listing *listing, struct error *err)
{
    if (!relays_each_database(listing->config, "lanes", list_database, listing, err))
        return false;
    if (listing->count > 0 || !listing->wanted)
        return true;
    error_set_exit(err, ERR_PERMANENT, EXIT_DIFFERS, "relay.unknown",
                   "relay %s is not registered in any outbox database of the configuration",
                   listing->wanted);
    return error_hint(err, "postrider relay list");
}

int
cmd_lanes(const struct command_env *env, int argc, char **argv)
{
    struct strbuf out = {0};
    struct jsonw json = {.out = &out};
    struct listing listing = {.wanted = command_option("relay"), .json = env->json ? &json : NULL};
    struct config *config = NULL;
    struct error err;

    (void) argc;
    (void) argv;
    if (!cli_config(env, &config, &err))
        return cli_fail(env, &err);
    listing.config = config;
    jsonw_array(&json, NULL);
    if (!env->json)
        printf("%-28s %4s  %-24s %5s  %-8s %7s  %-8s %s\n", "relay", "lane", "owner", "epoch",
               "lease", "pending", "oldest", "position");
    bool ok = list_all(&listing, &err);
    jsonw_end(&json);
    if (ok && env->json)
        puts(strbuf_str(&out));
    strbuf_release(&out);
    config_free(config);
    return ok ? EXIT_OK : cli_fail(env, &err);
}
