/*
 * cmd_dlq_ask.c — what an operator asks about dead letters.  Of a relay's nothing is
 * published or removed here: the owner of the lane does that, in the order of the stream.
 * A consumer's are dlq_mend()'s.
 */
#include <stdio.h>
#include <string.h>

#include "cli/dlq.h"
#include "config/values.h"

static const struct pgstmt stmt_selection = {
    "dlq_selection",
    "SELECT p.id, p.event_id, p.event_type, p.aggregate_type, p.aggregate_id, p.version,"
    "  (SELECT count(*) FROM postrider.parked b WHERE b.side = 'relay' AND b.reader = p.reader"
    "   AND b.aggregate_type = p.aggregate_type AND b.aggregate_id = p.aggregate_id"
    "   AND b.state = 'waiting')"
    " FROM postrider.parked p JOIN postrider.relay r ON r.relay = p.reader"
    " WHERE p.side = 'relay' AND p.state = 'dead' AND r.name = $1::text"
    "   AND ($2::bigint[] IS NULL OR p.id = ANY ($2::bigint[])) AND " DLQ_FILTER " ORDER BY p.id",
};
static const struct pgstmt stmt_request = {
    "dlq_request",
    "SELECT postrider.relay_request($1::text, $2::bigint[], $3::text, $4::text, $5::text, "
    "$6::text)",
};

void
dlq_ids(struct pgparams *p, const int64_t *ids, int count)
{
    struct pgarray list = {0};

    pgarray_start(&list, PG_INT8);
    for (int i = 0; i < count; i++)
        pgarray_i64(&list, ids[i]);
    pgparams_array(p, &list);
    pgarray_release(&list);
}

void
dlq_selection(const struct dlq_asking *asking, const struct dlq_reader *reader, struct pgparams *p)
{
    pgparams_text(p, reader->name);
    if (asking->ids)
        dlq_ids(p, asking->ids, asking->count);
    else
        pgparams_text(p, NULL);
    pgparams_text(p, command_option("type"));
    pgparams_text(p, command_option("class"));
    pgparams_text(p, command_option("aggregate"));
    pgparams_text(p, command_option("before"));
}

/* --all is frozen here: what dies later is not meant. */
static bool
select_them(const struct dlq_asking *asking, struct pgconn *conn, const struct dlq_reader *reader,
            PGresult **ret, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};

    dlq_selection(asking, reader, &p);
    bool ok = pgconn_query(conn, &stmt_selection, &p, ret, err);
    arena_release(&arena);
    return ok;
}

static bool
request(const struct dlq_asking *asking, struct pgconn *conn, const char *relay,
        const PGresult *selection, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    int count = PQntuples(selection);
    int64_t *ids = arena_alloc(&arena, sizeof(*ids) * (size_t) (count + 1));

    for (int row = 0; row < count; row++)
        ids[row] = pgresult_i64(selection, row, 0);
    pgparams_text(&p, relay);
    dlq_ids(&p, ids, count);
    pgparams_text(&p, asking->request);
    pgparams_text(&p, command_option("actor"));
    pgparams_text(&p, command_option("reason"));
    pgparams_text(&p, command_option("ticket"));
    bool ok = pgconn_run(conn, &stmt_request, &p, err);
    arena_release(&arena);
    return ok;
}

static void
say(const struct command_env *env, const struct dlq_asking *asking, const PGresult *res, int row)
{
    static const char *const names[] = {
        "id",           "event_id", "event_type",    "aggregate_type",
        "aggregate_id", "version",  "waiting_behind"};
    const char *verb = command_option("dry-run") ? "would ask for" : "asked for";

    if (env->json) {
        jsonw_object(asking->json, NULL);
        jsonw_str(asking->json, "request", asking->request);
        for (int col = 0; col < (int) PR_LENGTH(names); col++)
            jsonw_str(asking->json, names[col], pgresult_str(res, row, col));
        jsonw_end(asking->json);
        return;
    }
    printf("%s %s of %s: %s ", verb, asking->request, PQgetvalue(res, row, 0),
           PQgetvalue(res, row, 1));
    cli_print_safe(PQgetvalue(res, row, 2));
    putchar(' ');
    cli_print_safe(PQgetvalue(res, row, 3));
    putchar(':');
    cli_print_safe(PQgetvalue(res, row, 4));
    printf(" v%s, %s waiting behind\n", PQgetvalue(res, row, 5), PQgetvalue(res, row, 6));
}

static bool
ask_relay(const struct command_env *env, struct pgconn *conn, const struct dlq_reader *reader,
          void *arg, struct error *err)
{
    const struct dlq_asking *asking = arg;
    PGresult *res;

    if (!select_them(asking, conn, reader, &res, err))
        return false;
    bool ok = true;
    if (asking->ids && PQntuples(res) < asking->count) {
        ok = error_set_exit(err, ERR_PERMANENT, EXIT_DIFFERS, "dlq.unknown",
                            "only %d of %d IDs are dead letters of relay %s; nothing was done",
                            PQntuples(res), asking->count, reader->name);
        error_hint(err, "postrider dlq list --relay %s", reader->name);
    }
    if (ok && !command_option("dry-run") && PQntuples(res) > 0)
        ok = request(asking, conn, reader->name, res, err);
    for (int row = 0; ok && row < PQntuples(res); row++)
        say(env, asking, res, row);
    if (ok && !env->json && PQntuples(res) == 0)
        puts("no dead letters");
    PQclear(res);
    return ok;
}

static bool
has_filter(void)
{
    return command_option("type") || command_option("class") || command_option("aggregate") ||
           command_option("before");
}

static int
ask(const struct command_env *env, const char *what, int argc, char **argv)
{
    const char *relay = command_option("relay"), *consumer = command_option("consumer");
    int64_t ids[1000];
    struct strbuf out = {0};
    struct jsonw json = {.out = &out};
    struct dlq_asking asking = {.request = what, .count = argc, .json = &json};

    if (!relay == !consumer)
        return cli_usage("dlq %s needs --relay NAME or --consumer NAME", what);
    if (!cli_option_given("actor") || !cli_option_given("reason"))
        return cli_usage("dlq %s needs --actor NAME and --reason TEXT: both go to the audit", what);
    if ((argc > 0) == (command_option("all") != NULL) || argc > (int) PR_LENGTH(ids))
        return cli_usage("dlq %s takes up to %d IDs, or --all", what, (int) PR_LENGTH(ids));
    if (argc > 0 && has_filter())
        return cli_usage("--type, --class, --aggregate and --before go with --all, not with IDs");
    for (int i = 0; i < argc; i++)
        if (!value_integer(argv[i], &ids[i]))
            return cli_usage("\"%s\" is no ID as `postrider dlq list` shows them", argv[i]);
    asking.ids = argc > 0 ? ids : NULL;
    jsonw_array(&json, NULL);
    int code = dlq_each(env, relay, consumer, relay ? ask_relay : dlq_mend, &asking);
    jsonw_end(&json);
    if (code == EXIT_OK && env->json)
        puts(strbuf_str(&out));
    strbuf_release(&out);
    return code;
}

int
cmd_dlq_replay(const struct command_env *env, int argc, char **argv)
{
    return ask(env, "replay", argc, argv);
}

int
cmd_dlq_discard(const struct command_env *env, int argc, char **argv)
{
    return ask(env, "discard", argc, argv);
}
