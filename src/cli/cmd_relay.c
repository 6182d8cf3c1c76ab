#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/relays.h"
#include "core/jsonw.h"

/* A process shows as in `postrider lanes`: host and the end of its own id. */
static const struct pgstmt stmt_list = {
    "relay_list",
    "SELECT r.name, r.outbox, CASE WHEN r.start::text = '1:1:' THEN 'earliest'"
    "   ELSE to_char(r.made_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') END,"
    "  (SELECT string_agg(i.host || ':' || right(i.id::text, 8), ', ' ORDER BY i.id)"
    "   FROM postrider.instance i WHERE i.side = 'relay' AND i.reader = r.relay"
    "    AND i.until > clock_timestamp()),"
    "  CASE WHEN g.lanes > 0 THEN g.pending END, g.more,"
    "  round(extract(epoch FROM clock_timestamp() - g.oldest_at) * 1000)::bigint,"
    "  p.dead, p.waiting, least(nullif(postrider.event_day(g.oldest_id), '-infinity'), "
    "p.oldest_day)"
    " FROM postrider.relay r"
    " CROSS JOIN LATERAL (SELECT count(*) AS lanes, sum(x.pending) AS pending, bool_or(x.more) AS "
    "more,"
    "   min(x.oldest_at) AS oldest_at,"
    "   (array_agg(x.oldest_id ORDER BY x.oldest_id) FILTER (WHERE x.oldest_id IS NOT NULL))[1]"
    "    AS oldest_id FROM postrider.relay_lag(r.relay, " RELAYS_MOST ") x) g"
    " CROSS JOIN LATERAL (SELECT count(*) FILTER (WHERE d.state = 'dead') AS dead,"
    "   count(*) FILTER (WHERE d.state <> 'dead') AS waiting,"
    "   min(nullif(postrider.event_day(d.event_id), '-infinity')) AS oldest_day FROM "
    "postrider.parked d"
    "   WHERE d.side = 'relay' AND d.reader = r.relay AND d.state <> 'discarded') p"
    " ORDER BY r.name",
};
static const struct pgstmt stmt_known = {
    "relay_known",
    "SELECT count(*) FROM postrider.relay WHERE name = $1::text",
};
static const struct pgstmt stmt_drop = {
    "relay_drop",
    "SELECT * FROM postrider.relay_drop($1::text, $2::text, $3::text, $4::text, $5::boolean, "
    "$6::boolean)",
};

/* ------------------------------------------------------------------ list */

enum { NAME, OUTBOX, START, PROCESSES, PENDING, MORE, AGE, DEAD, WAITING, HOLDS };

struct listing {
    const struct config *config;
    struct jsonw *json; /* NULL: text */
};

/* The configuration's relay, if it is this one and not its namesake in another database. */
static const struct relay_config *
configured(const struct config *config, const char *name, const char *database)
{
    const struct relay_config *r = relays_find(config, name);

    return r && strcmp(r->outbox->database, database) == 0 ? r : NULL;
}

static void
json_row(struct jsonw *w, const struct pgconn *conn, const struct relay_config *r,
         const PGresult *res, int row, int64_t age_ms)
{
    jsonw_object(w, NULL);
    jsonw_str(w, "relay", PQgetvalue(res, row, NAME));
    jsonw_str(w, "database", pgconn_target(conn));
    jsonw_str(w, "outbox", PQgetvalue(res, row, OUTBOX));
    jsonw_bool(w, "registered", true);
    jsonw_bool(w, "configured", r != NULL);
    jsonw_str(w, "destination", r ? r->destination->name : NULL);
    jsonw_str(w, "start", PQgetvalue(res, row, START));
    jsonw_str(w, "processes", pgresult_str(res, row, PROCESSES));
    if (PQgetisnull(res, row, PENDING))
        jsonw_null(w, "pending");
    else
        jsonw_i64(w, "pending", pgresult_i64(res, row, PENDING));
    jsonw_bool(w, "pending_more", pgresult_bool(res, row, MORE));
    if (age_ms < 0)
        jsonw_null(w, "oldest_pending_ms");
    else
        jsonw_i64(w, "oldest_pending_ms", age_ms);
    jsonw_i64(w, "dead", pgresult_i64(res, row, DEAD));
    jsonw_i64(w, "waiting", pgresult_i64(res, row, WAITING));
    jsonw_str(w, "holds_back_from", pgresult_str(res, row, HOLDS));
    jsonw_end(w);
}

static void
text_row(const struct pgconn *conn, const struct relay_config *r, const PGresult *res, int row,
         int64_t age_ms)
{
    const char *processes = pgresult_str(res, row, PROCESSES);
    char age[32];

    printf("%s in %s\n", PQgetvalue(res, row, NAME), pgconn_target(conn));
    printf("  outbox       %s, from %s\n", PQgetvalue(res, row, OUTBOX),
           PQgetvalue(res, row, START));
    printf("  destination  %s\n", r ? r->destination->name : "not in this configuration");
    printf("  processes    %s\n", processes ? processes : "none");
    relays_duration(age_ms, age, sizeof(age));
    if (age_ms < 0)
        puts("  pending      none");
    else if (PQgetisnull(res, row, PENDING))
        printf("  pending      oldest %s\n", age);
    else
        printf("  pending      %s%s, oldest %s\n", PQgetvalue(res, row, PENDING),
               pgresult_bool(res, row, MORE) ? "+" : "", age);
    printf("  parked       %s dead, %s waiting\n", PQgetvalue(res, row, DEAD),
           PQgetvalue(res, row, WAITING));
    if (PQgetisnull(res, row, HOLDS))
        puts("  holds back   nothing");
    else
        printf("  holds back   the outbox from %s on\n", PQgetvalue(res, row, HOLDS));
}

static bool
show_row(const struct listing *listing, struct pgconn *conn, const char *database,
         const PGresult *res, int row, struct error *err)
{
    const struct relay_config *r =
        configured(listing->config, PQgetvalue(res, row, NAME), database);
    int64_t age_ms = PQgetisnull(res, row, AGE) ? -1 : pgresult_i64(res, row, AGE);

    if (r && r->outbox->table && !relays_mark_age(conn, r->outbox, &age_ms, err))
        return false;
    if (listing->json)
        json_row(listing->json, conn, r, res, row, age_ms);
    else
        text_row(conn, r, res, row, age_ms);
    return true;
}

/* What the configuration has and the database does not know yet. */
static void
show_unregistered(const struct listing *listing, const struct pgconn *conn, const char *database,
                  const PGresult *res)
{
    for (size_t i = 0; i < listing->config->relay_count; i++) {
        const struct relay_config *r = &listing->config->relays[i];
        bool known = strcmp(r->outbox->database, database) != 0;
        for (int row = 0; row < PQntuples(res) && !known; row++)
            known = strcmp(r->name, PQgetvalue(res, row, NAME)) == 0;
        if (known)
            continue;
        if (!listing->json) {
            printf("%s is not registered in %s: postrider init\n", r->name, pgconn_target(conn));
            continue;
        }
        jsonw_object(listing->json, NULL);
        jsonw_str(listing->json, "relay", r->name);
        jsonw_str(listing->json, "database", pgconn_target(conn));
        jsonw_bool(listing->json, "registered", false);
        jsonw_bool(listing->json, "configured", true);
        jsonw_str(listing->json, "destination", r->destination->name);
        jsonw_end(listing->json);
    }
}

static bool
list_database(struct pgconn *conn, const struct outbox_config *outbox, void *arg, struct error *err)
{
    const struct listing *listing = arg;
    PGresult *res;
    bool ok = true;

    if (!pgconn_query(conn, &stmt_list, NULL, &res, err))
        return false;
    for (int row = 0; ok && row < PQntuples(res); row++)
        ok = show_row(listing, conn, outbox->database, res, row, err);
    if (ok)
        show_unregistered(listing, conn, outbox->database, res);
    PQclear(res);
    return ok;
}

int
cmd_relay_list(const struct command_env *env, int argc, char **argv)
{
    struct strbuf out = {0};
    struct jsonw json = {.out = &out};
    struct config *config = NULL;
    struct error err;

    (void) argc;
    (void) argv;
    if (!cli_config(env, &config, &err))
        return cli_fail(env, &err);
    struct listing listing = {.config = config, .json = env->json ? &json : NULL};
    jsonw_array(&json, NULL);
    bool ok = relays_each_database(config, "relay list", list_database, &listing, &err);
    jsonw_end(&json);
    if (ok && env->json)
        puts(strbuf_str(&out));
    strbuf_release(&out);
    config_free(config);
    return ok ? EXIT_OK : cli_fail(env, &err);
}

/* ------------------------------------------------------------------ drop */

enum { REFUSED, LIVE, D_PENDING, D_MORE, D_DEAD, D_WAITING, D_SINCE, D_OTHERS };

struct dropping {
    const struct command_env *env;
    const struct config *config;
    const char *name;
    const char *database; /* NULL: wherever it is found … */
    int found;            /* … which must be one place */
};

static bool
look_for(struct pgconn *conn, const struct outbox_config *outbox, void *arg, struct error *err)
{
    struct dropping *drop = arg;
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    PGresult *res;

    pgparams_text(&p, drop->name);
    bool ok = pgconn_query(conn, &stmt_known, &p, &res, err);
    arena_release(&arena);
    if (!ok)
        return false;
    if (pgresult_i64(res, 0, 0) > 0) {
        drop->database = outbox->database;
        drop->found++;
    }
    PQclear(res);
    return true;
}

static bool
refuse(const struct dropping *drop, const PGresult *res, struct error *err)
{
    const char *more = pgresult_bool(res, 0, D_MORE) ? "more than " : "";

    if (strcmp(PQgetvalue(res, 0, REFUSED), "live") == 0) {
        error_set_exit(err, ERR_PERMANENT, EXIT_DIFFERS, "relay.live",
                       "relay %s is running: %s; nothing was done", drop->name,
                       PQgetvalue(res, 0, LIVE));
        return error_hint(err,
                          "take it out of that process's configuration and reload it (SIGHUP),"
                          " or stop it; `postrider lanes --relay %s` tells when it is gone",
                          drop->name);
    }
    error_set_exit(err, ERR_PERMANENT, EXIT_DIFFERS, "relay.unpublished",
                   "relay %s has %s%s unpublished events, %s dead letters and %s waiting behind "
                   "them; nothing was done",
                   drop->name, more, PQgetvalue(res, 0, D_PENDING), PQgetvalue(res, 0, D_DEAD),
                   PQgetvalue(res, 0, D_WAITING));
    return error_hint(err, "let it publish them, or give them up with --force");
}

static void
say_dropped(const struct dropping *drop, const struct pgconn *conn, const PGresult *res)
{
    const char *more = pgresult_bool(res, 0, D_MORE) ? "more than " : "";
    bool dry = command_option("dry-run") != NULL;

    printf("%s: relay %s %s, %s%s unpublished events, %s dead letters and %s waiting %s\n",
           pgconn_target(conn), drop->name, dry ? "would be dropped" : "dropped", more,
           PQgetvalue(res, 0, D_PENDING), PQgetvalue(res, 0, D_DEAD), PQgetvalue(res, 0, D_WAITING),
           dry ? "would be given up" : "given up");
    if (!PQgetisnull(res, 0, D_SINCE))
        printf("  %s: the outbox from %s on\n",
               dry ? "would no longer be held back" : "no longer held back",
               PQgetvalue(res, 0, D_SINCE));
    if (pgresult_i64(res, 0, D_OTHERS) == 0)
        puts("  no other relay reads this outbox: retention keeps all of it until one is there");
    if (configured(drop->config, drop->name, drop->database))
        puts("  it is still in the configuration: take it out, or `postrider init` makes it anew");
}

static void
json_dropped(const struct dropping *drop, const struct pgconn *conn, const PGresult *res)
{
    struct strbuf out = {0};
    struct jsonw w = {.out = &out};

    jsonw_object(&w, NULL);
    jsonw_str(&w, "relay", drop->name);
    jsonw_str(&w, "database", pgconn_target(conn));
    jsonw_bool(&w, "dropped", command_option("dry-run") == NULL);
    jsonw_i64(&w, "pending", pgresult_i64(res, 0, D_PENDING));
    jsonw_bool(&w, "pending_more", pgresult_bool(res, 0, D_MORE));
    jsonw_i64(&w, "dead", pgresult_i64(res, 0, D_DEAD));
    jsonw_i64(&w, "waiting", pgresult_i64(res, 0, D_WAITING));
    jsonw_str(&w, "held_back_from", pgresult_str(res, 0, D_SINCE));
    jsonw_i64(&w, "other_relays", pgresult_i64(res, 0, D_OTHERS));
    jsonw_bool(&w, "configured", configured(drop->config, drop->name, drop->database) != NULL);
    jsonw_end(&w);
    puts(strbuf_str(&out));
    strbuf_release(&out);
}

static bool
drop_it(struct pgconn *conn, const struct outbox_config *outbox, void *arg, struct error *err)
{
    const struct dropping *drop = arg;
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    PGresult *res;

    if (strcmp(outbox->database, drop->database) != 0)
        return true;
    pgparams_text(&p, drop->name);
    pgparams_text(&p, command_option("actor"));
    pgparams_text(&p, command_option("reason"));
    pgparams_text(&p, command_option("ticket"));
    pgparams_text(&p, command_option("force") ? "t" : "f");
    pgparams_text(&p, command_option("dry-run") ? "t" : "f");
    bool ok = pgconn_query(conn, &stmt_drop, &p, &res, err);
    arena_release(&arena);
    if (!ok)
        return false;
    if (PQntuples(res) == 0)
        ok = error_set_exit(err, ERR_PERMANENT, EXIT_DIFFERS, "relay.unknown",
                            "relay %s was dropped by somebody else meanwhile", drop->name);
    else if (!PQgetisnull(res, 0, REFUSED))
        ok = refuse(drop, res, err);
    else if (drop->env->json)
        json_dropped(drop, conn, res);
    else
        say_dropped(drop, conn, res);
    PQclear(res);
    return ok;
}

/* Finds the one database that has it, or the one that --outbox tells. */
static bool
find_database(struct dropping *drop, struct error *err)
{
    const char *outbox = command_option("outbox");

    for (size_t i = 0; outbox && i < drop->config->outbox_count; i++)
        if (strcmp(drop->config->outboxes[i].name, outbox) == 0)
            drop->database = drop->config->outboxes[i].database;
    if (outbox && !drop->database)
        return error_set_exit(err, ERR_PERMANENT, EXIT_USAGE, "cli.usage",
                              "the configuration has no outbox \"%s\"", outbox);
    const char *wanted = drop->database;
    if (!relays_each_database(drop->config, "relay drop", look_for, drop, err))
        return false;
    if (drop->found == 0) {
        error_set_exit(err, ERR_PERMANENT, EXIT_DIFFERS, "relay.unknown",
                       "relay %s is not registered in any outbox database of the configuration",
                       drop->name);
        return error_hint(err, "postrider relay list");
    }
    if (drop->found > 1 && !wanted)
        return error_set_exit(err, ERR_PERMANENT, EXIT_USAGE, "cli.usage",
                              "%d databases have a relay %s: say whose with --outbox NAME",
                              drop->found, drop->name);
    drop->database = wanted ? wanted : drop->database;
    return true;
}

int
cmd_relay_drop(const struct command_env *env, int argc, char **argv)
{
    struct config *config = NULL;
    struct error err;

    if (argc != 1)
        return cli_usage("relay drop takes one NAME, as `postrider relay list` shows it");
    if (!cli_option_given("actor") || !cli_option_given("reason"))
        return cli_usage("relay drop needs --actor NAME and --reason TEXT: both go to the audit");
    if (!cli_config(env, &config, &err))
        return cli_fail(env, &err);
    struct dropping drop = {.env = env, .config = config, .name = argv[0]};
    bool ok = find_database(&drop, &err) &&
              relays_each_database(config, "relay drop", drop_it, &drop, &err);
    config_free(config);
    return ok ? EXIT_OK : cli_fail(env, &err);
}
