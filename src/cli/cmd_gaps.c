#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/consumers.h"
#include "cli/origins.h"
#include "config/values.h"
#include "core/jsonw.h"
#include "pg/pgerror.h"
#include "pg/pgparams.h"

static const struct pgstmt stmt_gaps = {
    "gaps",
    "SELECT aggregate_type, aggregate_id, last, missing_from, missing_to,"
    "  to_char(since AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), parked,"
    "  (SELECT string_agg(CASE WHEN f = t THEN f::text ELSE f || '-' || t END, ', ' ORDER BY f)"
    "   FROM unnest(missing_from, missing_to) AS r(f, t)),"
    "  (SELECT sum(t - f + 1) FROM unnest(missing_from, missing_to) AS r(f, t))"
    " FROM postrider.gaps($1::text)",
};
static const struct pgstmt stmt_close = {
    "gap_close",
    "SELECT * FROM postrider.gap_close($1::text, $2::text, $3::text, $4::bigint, $5::text,"
    " $6::text, $7::text, $8::boolean)",
};

enum { TYPE, AGGREGATE, LAST, FROM, TO, SINCE, PARKED, MISSING, VERSIONS };

struct listing {
    const struct command_env *env;
    struct origins origins;
    struct jsonw json;
    int64_t found; /* of the stream at hand */
    int count;
};

/* ------------------------------------------------------------------ list */

static void
show_origin(const struct origin *origin, void *arg)
{
    struct listing *listing = arg;

    listing->found++;
    if (!listing->env->json) {
        printf("    version %lld: event %s, %s (relay %s)\n", (long long) origin->version,
               origin->event_id, origin->state, origin->relay);
        return;
    }
    jsonw_object(&listing->json, NULL);
    jsonw_i64(&listing->json, "version", origin->version);
    jsonw_str(&listing->json, "event_id", origin->event_id);
    jsonw_str(&listing->json, "state", origin->state);
    jsonw_str(&listing->json, "relay", origin->relay);
    jsonw_end(&listing->json);
}

static void
begin_text(const struct consumer_config *c, const PGresult *res, int row)
{
    printf("%s  ", c->name);
    cli_print_safe(PQgetvalue(res, row, TYPE));
    putchar(':');
    cli_print_safe(PQgetvalue(res, row, AGGREGATE));
    printf("  at version %s, missing %s, %s parked behind, since %s\n", PQgetvalue(res, row, LAST),
           PQgetvalue(res, row, MISSING), PQgetvalue(res, row, PARKED),
           PQgetvalue(res, row, SINCE));
}

static void
begin_json(struct jsonw *w, const struct consumer_config *c, const PGresult *res, int row)
{
    jsonw_object(w, NULL);
    jsonw_str(w, "consumer", c->name);
    jsonw_str(w, "aggregate_type", PQgetvalue(res, row, TYPE));
    jsonw_str(w, "aggregate_id", PQgetvalue(res, row, AGGREGATE));
    jsonw_i64(w, "last", pgresult_i64(res, row, LAST));
    jsonw_str(w, "missing", PQgetvalue(res, row, MISSING));
    jsonw_str(w, "since", PQgetvalue(res, row, SINCE));
    jsonw_i64(w, "parked", pgresult_i64(res, row, PARKED));
    jsonw_array(w, "found");
}

static bool
show_gap(struct listing *listing, const struct consumer_config *c, const PGresult *res, int row,
         struct error *err)
{
    struct origins_wanted wanted = {PQgetvalue(res, row, TYPE), PQgetvalue(res, row, AGGREGATE),
                                    PQgetvalue(res, row, FROM), PQgetvalue(res, row, TO)};
    bool json = listing->env->json;

    listing->found = 0;
    if (json)
        begin_json(&listing->json, c, res, row);
    else
        begin_text(c, res, row);
    if (!origins_find(&listing->origins, c->destination, &wanted, show_origin, listing, err))
        return false;
    if (json) {
        jsonw_end(&listing->json);
        jsonw_i64(&listing->json, "missing_versions", pgresult_i64(res, row, VERSIONS));
        jsonw_end(&listing->json);
    } else if (listing->found < pgresult_i64(res, row, VERSIONS)) {
        printf("    %s: not there, in no outbox whose relay feeds %s\n",
               listing->found ? "the others" : "all of them", c->destination->name);
    }
    listing->count++;
    return true;
}

static bool
list_consumer(struct listing *listing, const struct consumer_config *c, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    struct pgconn *conn = NULL;
    PGresult *res = NULL;

    pgparams_text(&p, c->name);
    bool ok = consumers_open(c->database, "gaps", &conn, err) &&
              pgconn_query(conn, &stmt_gaps, &p, &res, err);
    for (int row = 0; ok && row < PQntuples(res); row++)
        ok = show_gap(listing, c, res, row, err);
    PQclear(res);
    pgconn_close(conn);
    arena_release(&arena);
    return ok;
}

static bool
list_all(struct listing *listing, const struct config *config, struct error *err)
{
    const char *name = command_option("consumer");
    const struct consumer_config *only = name ? consumers_find(config, name, err) : NULL;
    bool ok = !name || only;

    for (size_t i = 0; ok && i < config->consumer_count; i++)
        if (!only || only == &config->consumers[i])
            ok = list_consumer(listing, &config->consumers[i], err);
    return ok;
}

int
cmd_gaps_list(const struct command_env *env, int argc, char **argv)
{
    struct strbuf out = {0};
    struct listing listing = {.env = env, .json = {.out = &out}};
    struct config *config = NULL;
    struct error err;

    (void) argc;
    (void) argv;
    if (!cli_config(env, &config, &err))
        return cli_fail(env, &err);
    origins_init(&listing.origins, config);
    jsonw_array(&listing.json, NULL);
    bool ok = list_all(&listing, config, &err);
    jsonw_end(&listing.json);
    if (ok && env->json)
        puts(strbuf_str(&out));
    else if (ok)
        puts(listing.count == 0 ? "no stream waits for a missing version"
                                : "postrider gaps close --help says how a stream goes on without");
    origins_release(&listing.origins);
    strbuf_release(&out);
    config_free(config);
    return ok ? EXIT_OK : cli_fail(env, &err);
}

/* ------------------------------------------------------------------ close */

static void
say_closed(const struct command_env *env, const PGresult *res)
{
    struct strbuf out = {0};
    struct jsonw w = {.out = &out};
    bool dry = command_option("dry-run") != NULL;

    if (!env->json) {
        printf("versions %s to %s %s, %s parked events follow, stream then at version %s\n",
               PQgetvalue(res, 0, 0), PQgetvalue(res, 0, 1), dry ? "would be given up" : "given up",
               PQgetvalue(res, 0, 3), PQgetvalue(res, 0, 2));
        if (!PQgetisnull(res, 0, 4))
            printf("what is behind that waits: %s\n", PQgetvalue(res, 0, 4));
        return;
    }
    jsonw_object(&w, NULL);
    jsonw_bool(&w, "done", !dry);
    jsonw_i64(&w, "given_up_from", pgresult_i64(res, 0, 0));
    jsonw_i64(&w, "given_up_to", pgresult_i64(res, 0, 1));
    jsonw_i64(&w, "stream_then", pgresult_i64(res, 0, 2));
    jsonw_i64(&w, "follow", pgresult_i64(res, 0, 3));
    jsonw_str(&w, "stops", pgresult_str(res, 0, 4));
    jsonw_end(&w);
    puts(strbuf_str(&out));
    strbuf_release(&out);
}

static bool
close_it(const struct command_env *env, const struct consumer_config *c, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    struct pgconn *conn = NULL;
    PGresult *res = NULL;

    pgparams_text(&p, c->name);
    pgparams_text(&p, command_option("aggregate-type"));
    pgparams_text(&p, command_option("aggregate-id"));
    pgparams_text(&p, command_option("up-to"));
    pgparams_text(&p, command_option("actor"));
    pgparams_text(&p, command_option("reason"));
    pgparams_text(&p, command_option("ticket"));
    pgparams_text(&p, command_option("dry-run") ? "t" : "f");
    bool ok = consumers_open(c->database, "gaps", &conn, err) &&
              pgconn_query(conn, &stmt_close, &p, &res, err);
    if (ok)
        say_closed(env, res);
    else if (pgerror_is(err, "PR024") && !err->hint[0])
        error_hint(err, "postrider gaps list --consumer %s", c->name);
    else
        consumers_refused(c->name, err);
    PQclear(res);
    pgconn_close(conn);
    arena_release(&arena);
    return ok;
}

int
cmd_gaps_close(const struct command_env *env, int argc, char **argv)
{
    const char *name = command_option("consumer"), *up_to = command_option("up-to");
    struct config *config = NULL;
    struct error err;
    int64_t version;

    (void) argc;
    (void) argv;
    if (!name || !command_option("aggregate-type") || !command_option("aggregate-id"))
        return cli_usage("gaps close needs --consumer NAME, --aggregate-type TYPE and "
                         "--aggregate-id ID");
    if (!cli_option_given("actor") || !cli_option_given("reason"))
        return cli_usage("gaps close needs --actor NAME and --reason TEXT: both go to the audit");
    if (up_to && !value_integer(up_to, &version))
        return cli_usage("--up-to takes a version, not \"%s\"", up_to);
    if (!cli_config(env, &config, &err))
        return cli_fail(env, &err);
    const struct consumer_config *c = consumers_find(config, name, &err);
    bool ok = c && close_it(env, c, &err);
    config_free(config);
    return ok ? EXIT_OK : cli_fail(env, &err);
}
