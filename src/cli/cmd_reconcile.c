#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/consumers.h"
#include "config/values.h"
#include "core/clock.h"
#include "core/jsonw.h"
#include "pg/pgparams.h"
#include "repair/checks.h"
#include "repair/reconcile.h"

enum { DEFAULT_LIMIT = 100 };

struct comparing {
    const struct command_env *env;
    const struct config *config;
    const char *only; /* the consumer; NULL: all */
    int64_t limit;
    struct strbuf out;
    struct jsonw json;
    bool differs;
};

static const struct pgstmt stmt_time = {
    "reconcile_time",
    "SELECT (extract(epoch FROM $1::timestamptz) * 1000)::bigint",
};

/* ------------------------------------------------------------------ text */

static void
say_outcomes(const struct reconcile_report *r)
{
    printf("    %lld published:", (long long) r->published);
    for (int i = 0; i < RECONCILE_OUTCOMES; i++)
        if (r->outcomes[i] > 0)
            printf(" %lld %s,", (long long) r->outcomes[i],
                   reconcile_outcome_name((enum reconcile_outcome) i));
    printf(" %lld in flight, %lld lost\n", (long long) r->in_flight, (long long) r->lost);
    if (r->pending + r->held + r->given_up > 0)
        printf("    not published: %lld pending, %lld held by the relay, %lld given up\n",
               (long long) r->pending, (long long) r->held, (long long) r->given_up);
    if (r->since[0])
        printf("    events before %s are left out\n", r->since);
    if (strcmp(r->foreign, r->since) != 0)
        printf("    outcomes of events before %s are left out: the outbox has dropped them\n",
               r->foreign);
}

static void
say_difference(const struct reconcile_difference *d)
{
    if (d->kind == RECONCILE_FOREIGN) {
        printf("    foreign  %s  %s, and in no outbox\n", d->event_id,
               reconcile_outcome_name(d->outcome));
        return;
    }
    printf("    lost     %s  ", d->event_id);
    cli_print_safe(d->aggregate_type);
    putchar(':');
    cli_print_safe(d->aggregate_id);
    printf(" version %lld, published by %s, no outcome\n", (long long) d->version, d->relay);
}

static void
say_text(const struct comparing *c, const char *name, const struct reconcile_report *r)
{
    int64_t total = r->lost + r->foreign_count;

    printf("%s  %s", name, total == 0 ? "agrees" : "DIFFERS");
    if (total > 0)
        printf(": %lld lost, %lld foreign", (long long) r->lost, (long long) r->foreign_count);
    putchar('\n');
    say_outcomes(r);
    int64_t shown = 0;
    for (size_t i = 0; i < r->count && shown < c->limit; i++, shown++)
        say_difference(&r->list[i]);
    if (shown < total)
        printf("    and %lld more\n", (long long) (total - shown));
    if (total > 0)
        puts("    -> docs/guide/reconcile.md says what to do about each");
}

/* ------------------------------------------------------------------ JSON */

static void
json_difference(struct jsonw *w, const struct reconcile_difference *d)
{
    bool lost = d->kind == RECONCILE_LOST;

    jsonw_object(w, NULL);
    jsonw_str(w, "kind", lost ? "lost" : "foreign");
    jsonw_str(w, "event_id", d->event_id);
    if (lost) {
        jsonw_str(w, "aggregate_type", d->aggregate_type);
        jsonw_str(w, "aggregate_id", d->aggregate_id);
        jsonw_i64(w, "version", d->version);
        jsonw_str(w, "relay", d->relay);
    } else {
        jsonw_str(w, "outcome", reconcile_outcome_name(d->outcome));
    }
    jsonw_end(w);
}

static void
say_json(struct comparing *c, const char *name, const struct reconcile_report *r)
{
    struct jsonw *w = &c->json;

    jsonw_object(w, NULL);
    jsonw_str(w, "consumer", name);
    jsonw_bool(w, "ok", r->lost + r->foreign_count == 0);
    jsonw_str(w, "since", r->since[0] ? r->since : NULL);
    jsonw_str(w, "foreign_since", r->foreign[0] ? r->foreign : NULL);
    jsonw_i64(w, "published", r->published);
    jsonw_object(w, "outcomes");
    for (int i = 0; i < RECONCILE_OUTCOMES; i++)
        jsonw_i64(w, reconcile_outcome_name((enum reconcile_outcome) i), r->outcomes[i]);
    jsonw_end(w);
    jsonw_i64(w, "in_flight", r->in_flight);
    jsonw_i64(w, "pending", r->pending);
    jsonw_i64(w, "held", r->held);
    jsonw_i64(w, "given_up", r->given_up);
    jsonw_i64(w, "lost", r->lost);
    jsonw_i64(w, "foreign", r->foreign_count);
    jsonw_array(w, "differences");
    for (size_t i = 0; i < r->count && (int64_t) i < c->limit; i++)
        json_difference(w, &r->list[i]);
    jsonw_end(w);
    jsonw_end(w);
}

/* ------------------------------------------------------------------ checks */

static void
say_side(const char *word, bool is_there, const char *value)
{
    printf("  %s ", word);
    cli_print_safe(!is_there ? "has no such row" : value ? value : "null");
}

static void
say_check(const struct comparing *c, const char *name, const struct check_report *r)
{
    int64_t shown = 0;

    printf("check %s  %s: %lld keys", name, r->differs == 0 ? "agrees" : "DIFFERS",
           (long long) r->keys);
    printf(", %s%lld differ", r->more ? "at least " : "", (long long) r->differs);
    if (r->moving > 0)
        printf(", %lld differ and still move", (long long) r->moving);
    putchar('\n');
    for (size_t i = 0; i < r->count && shown < c->limit; i++, shown++) {
        fputs("    ", stdout);
        cli_print_safe(r->list[i].key);
        say_side("left:", r->list[i].on_left, r->list[i].left);
        say_side("right:", r->list[i].on_right, r->list[i].right);
        putchar('\n');
    }
    if (shown < r->differs)
        printf("    and %lld more\n", (long long) (r->differs - shown));
}

static void
json_side(struct jsonw *w, const char *word, bool is_there, const char *value)
{
    jsonw_object(w, word);
    jsonw_bool(w, "found", is_there);
    jsonw_str(w, "value", value);
    jsonw_end(w);
}

static void
json_check(struct comparing *c, const char *name, const struct check_report *r)
{
    struct jsonw *w = &c->json;

    jsonw_object(w, NULL);
    jsonw_str(w, "check", name);
    jsonw_bool(w, "ok", r->differs == 0);
    jsonw_i64(w, "keys", r->keys);
    jsonw_i64(w, "differ", r->differs);
    jsonw_bool(w, "more", r->more);
    jsonw_i64(w, "moving", r->moving);
    jsonw_array(w, "differences");
    for (size_t i = 0; i < r->count && (int64_t) i < c->limit; i++) {
        jsonw_object(w, NULL);
        jsonw_str(w, "key", r->list[i].key);
        json_side(w, "left", r->list[i].on_left, r->list[i].left);
        json_side(w, "right", r->list[i].on_right, r->list[i].right);
        jsonw_end(w);
    }
    jsonw_end(w);
    jsonw_end(w);
}

static bool
run_check(struct comparing *c, const struct check_config *check, struct error *err)
{
    struct check_report report = {0};
    bool ok = check_run(check, -1, &report, err);

    if (ok && c->env->json)
        json_check(c, check->name, &report);
    else if (ok)
        say_check(c, check->name, &report);
    c->differs |= report.differs > 0;
    check_release(&report);
    return ok;
}

/* All of them, or the one that --check names. */
static bool
run_checks(struct comparing *c, struct error *err)
{
    const char *name = command_option("check");
    bool found = !name, ok = true;

    for (size_t i = 0; ok && i < c->config->check_count; i++) {
        if (name && strcmp(name, c->config->checks[i].name) != 0)
            continue;
        found = true;
        ok = run_check(c, &c->config->checks[i], err);
    }
    return found ? ok
                 : error_set_exit(err, ERR_PERMANENT, EXIT_USAGE, "cli.usage",
                                  "the configuration has no check \"%s\"", name);
}

/* ------------------------------------------------------------------ the command */

/* A time is read by the server, as in all commands; a duration is counted from now. */
static bool
find_since(const struct consumer_config *c, int64_t *ret_ms, struct error *err)
{
    const char *since = command_option("since");
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    struct pgconn *conn = NULL;
    PGresult *res = NULL;
    int64_t us;

    *ret_ms = 0;
    if (!since)
        return true;
    if (value_duration(since, &us)) {
        *ret_ms = (clock_wall_us() - us) / 1000;
        return true;
    }
    pgparams_text(&p, since);
    bool ok = consumers_open(c->database, "reconcile", &conn, err) &&
              pgconn_query(conn, &stmt_time, &p, &res, err);
    if (ok)
        *ret_ms = pgresult_i64(res, 0, 0);
    else if (strncmp(err->sqlstate, "22", 2) == 0) {
        error_set_exit(err, ERR_PERMANENT, EXIT_USAGE, "cli.usage",
                       "--since takes a time or a duration, not \"%s\"", since);
        error_hint(err, "2026-12-01T05:00:00Z, or 2h");
    }
    PQclear(res);
    pgconn_close(conn);
    arena_release(&arena);
    return ok;
}

static bool
compare_consumer(struct comparing *c, const struct consumer_config *consumer, struct error *err)
{
    struct reconcile_wish wish = {.stop_fd = -1};
    struct reconcile_report report = {0};
    bool ok = find_since(consumer, &wish.since_ms, err) &&
              reconcile_run(c->config, consumer, &wish, &report, err);

    if (ok && c->env->json)
        say_json(c, consumer->name, &report);
    else if (ok)
        say_text(c, consumer->name, &report);
    c->differs |= report.lost + report.foreign_count > 0;
    reconcile_release(&report);
    return ok;
}

static bool
compare_all(struct comparing *c, struct error *err)
{
    const struct consumer_config *one = c->only ? consumers_find(c->config, c->only, err) : NULL;
    bool ok = !c->only || one;

    if (command_option("check"))
        return run_checks(c, err);
    for (size_t i = 0; ok && i < c->config->consumer_count; i++)
        if (!one || one == &c->config->consumers[i])
            ok = compare_consumer(c, &c->config->consumers[i], err);
    return ok && (one || run_checks(c, err));
}

int
cmd_reconcile(const struct command_env *env, int argc, char **argv)
{
    const char *limit = command_option("limit");
    struct comparing c = {.env = env, .limit = DEFAULT_LIMIT};
    struct config *config = NULL;
    struct error err;

    if (argc > 1)
        return cli_usage("reconcile takes one consumer, or none for all");
    if (argc == 1 && command_option("check"))
        return cli_usage("reconcile takes a consumer or --check NAME, not both");
    if (limit && (!value_integer(limit, &c.limit) || c.limit < 1 || c.limit > RECONCILE_LISTED))
        return cli_usage("--limit takes a number from 1 to %d, not \"%s\"", RECONCILE_LISTED,
                         limit);
    if (!cli_config(env, &config, &err))
        return cli_fail(env, &err);
    c.config = config;
    c.only = argc == 1 ? argv[0] : NULL;
    c.json.out = &c.out;
    jsonw_array(&c.json, NULL);
    bool ok = compare_all(&c, &err);
    jsonw_end(&c.json);
    if (ok && env->json)
        puts(strbuf_str(&c.out));
    strbuf_release(&c.out);
    config_free(config);
    if (!ok)
        return cli_fail(env, &err);
    return c.differs ? EXIT_DIFFERS : EXIT_OK;
}
