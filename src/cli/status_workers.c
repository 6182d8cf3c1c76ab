#include <stdio.h>
#include <string.h>

#include "cli/status.h"

static const struct pgstmt stmt_workers = {
    "status_workers",
    "WITH live AS (SELECT * FROM postrider.instance WHERE side = $1::text AND name = $2::text"
    "   AND until > clock_timestamp())"
    " SELECT i.state, i.host, i.reason, i.hint,"
    "  extract(epoch FROM clock_timestamp() - i.since)::bigint,"
    "  (SELECT string_agg(DISTINCT host, ', ') FROM live)"
    " FROM live i ORDER BY array_position(ARRAY['halted', 'paused', 'stopped', 'starting', "
    "'running'],"
    "   i.state), i.since",
};

const char *
age_text(int64_t seconds, char *text, size_t size)
{
    static const struct {
        int64_t seconds;
        char unit;
    } units[] = {{86400, 'd'}, {3600, 'h'}, {60, 'm'}, {1, 's'}};
    size_t i = 0;

    while (i + 1 < PR_LENGTH(units) && seconds < 2 * units[i].seconds)
        i++;
    snprintf(text, size, "%lld %c", (long long) (seconds / units[i].seconds), units[i].unit);
    return text;
}

static void
take_worst(const PGresult *res, struct workers *ret)
{
    const char *reason = pgresult_str(res, 0, 2), *hint = pgresult_str(res, 0, 3);
    char since[32];

    snprintf(ret->state, sizeof(ret->state), "%s", PQgetvalue(res, 0, 0));
    snprintf(ret->hosts, sizeof(ret->hosts), "%s", PQgetvalue(res, 0, 5));
    ret->well = strcmp(ret->state, "running") == 0 || strcmp(ret->state, "starting") == 0;
    if (ret->well)
        return;
    age_text(pgresult_i64(res, 0, 4), since, sizeof(since));
    snprintf(ret->why, sizeof(ret->why), "%s on %s for %s%s%s", ret->state, PQgetvalue(res, 0, 1),
             since, reason ? ": " : "", reason ? reason : "");
    snprintf(ret->todo, sizeof(ret->todo), "%s",
             hint ? hint : "mend what the reason names; it goes on by itself");
}

bool
workers_find(struct pgconn *conn, const char *side, const char *name, struct workers *ret,
             struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    PGresult *res;

    *ret = (struct workers){.well = true};
    pgparams_text(&p, side);
    pgparams_text(&p, name);
    bool ok = pgconn_query(conn, &stmt_workers, &p, &res, err);
    arena_release(&arena);
    if (!ok)
        return false;
    ret->live = PQntuples(res);
    if (ret->live > 0)
        take_worst(res, ret);
    PQclear(res);
    return true;
}
