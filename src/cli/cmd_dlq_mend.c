/*
 * cmd_dlq_mend.c — replays and discards dead letters of a consumer.  The act is one call
 * of postrider.consumer_request(): all of them or none.
 */
#include <stdio.h>
#include <string.h>

#include "cli/consumers.h"
#include "cli/dlq.h"
#include "pg/pgerror.h"

/* --all leaves out what could only be refused. */
static const struct pgstmt stmt_selection = {
    "dlq_mend_selection",
    "SELECT p.id, postrider.repair_refusal(p.reader, p.id, $7::text) IS NULL"
    " FROM postrider.parked p JOIN postrider.consumer c ON c.consumer = p.reader"
    " WHERE p.side = 'consumer' AND p.state = 'dead' AND c.name = $1::text"
    "   AND ($2::bigint[] IS NULL OR p.id = ANY ($2::bigint[])) AND " DLQ_FILTER " ORDER BY p.id",
};
static const struct pgstmt stmt_request = {
    "consumer_request",
    "SELECT * FROM postrider.consumer_request($1::text, $2::bigint[], $3::text, $4::text, "
    "$5::text, $6::text, $7::boolean)",
};

enum { ID, EVENT, TYPE, AGGREGATE_TYPE, AGGREGATE_ID, VERSION, CLASS, AT, THEN, FOLLOW, STOPS };

/* ------------------------------------------------------------------ what comes of it */

static void
json_number(struct jsonw *w, const char *key, const PGresult *res, int row, int col)
{
    if (PQgetisnull(res, row, col))
        jsonw_null(w, key);
    else
        jsonw_i64(w, key, pgresult_i64(res, row, col));
}

static void
say_json(const struct dlq_asking *asking, const PGresult *res, int row)
{
    struct jsonw *w = asking->json;

    jsonw_object(w, NULL);
    jsonw_str(w, "request", asking->request);
    jsonw_bool(w, "done", command_option("dry-run") == NULL);
    jsonw_i64(w, "id", pgresult_i64(res, row, ID));
    jsonw_str(w, "event_id", pgresult_str(res, row, EVENT));
    jsonw_str(w, "event_type", pgresult_str(res, row, TYPE));
    jsonw_str(w, "aggregate_type", pgresult_str(res, row, AGGREGATE_TYPE));
    jsonw_str(w, "aggregate_id", pgresult_str(res, row, AGGREGATE_ID));
    json_number(w, "version", res, row, VERSION);
    jsonw_str(w, "class", pgresult_str(res, row, CLASS));
    json_number(w, "stream_at", res, row, AT);
    json_number(w, "stream_then", res, row, THEN);
    json_number(w, "follow", res, row, FOLLOW);
    jsonw_str(w, "stops", pgresult_str(res, row, STOPS));
    jsonw_end(w);
}

static void
say_text(const struct dlq_asking *asking, const PGresult *res, int row)
{
    bool replay = strcmp(asking->request, "replay") == 0, dry = command_option("dry-run") != NULL;

    printf("%s%s%s %s: ", dry ? "would " : "", asking->request, dry ? "" : "ed",
           PQgetvalue(res, row, ID));
    if (PQgetisnull(res, row, EVENT)) {
        puts("a message without an event");
        return;
    }
    printf("%s ", PQgetvalue(res, row, EVENT));
    cli_print_safe(PQgetvalue(res, row, TYPE));
    putchar(' ');
    cli_print_safe(PQgetvalue(res, row, AGGREGATE_TYPE));
    putchar(':');
    cli_print_safe(PQgetvalue(res, row, AGGREGATE_ID));
    printf(" v%s", PQgetvalue(res, row, VERSION));
    if (PQgetisnull(res, row, AT)) {
        puts(", holds nothing");
        return;
    }
    printf("\n       stream at version %s, %s to %s, %s parked events follow\n",
           PQgetvalue(res, row, AT), replay ? "if all goes well" : "then",
           PQgetvalue(res, row, THEN), PQgetvalue(res, row, FOLLOW));
    if (!PQgetisnull(res, row, STOPS))
        printf("       what is behind that waits: %s\n", PQgetvalue(res, row, STOPS));
}

/* ------------------------------------------------------------------ the act */

/* --all is frozen here: what dies later is not meant. */
static bool
select_all(const struct dlq_asking *asking, struct pgconn *conn, const struct dlq_reader *reader,
           PGresult **ret, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};

    dlq_selection(asking, reader, &p);
    pgparams_text(&p, asking->request);
    bool ok = pgconn_query(conn, &stmt_selection, &p, ret, err);
    arena_release(&arena);
    return ok;
}

static bool
refused(const char *consumer, struct error *err)
{
    if (pgerror_is(err, "PR020"))
        return error_hint(err, "postrider dlq list --all --consumer %s", consumer);
    return consumers_refused(consumer, err);
}

static bool
request(const struct command_env *env, const struct dlq_asking *asking, struct pgconn *conn,
        const char *consumer, const int64_t *ids, int count, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    PGresult *res;

    pgparams_text(&p, consumer);
    dlq_ids(&p, ids, count);
    pgparams_text(&p, asking->request);
    pgparams_text(&p, command_option("actor"));
    pgparams_text(&p, command_option("reason"));
    pgparams_text(&p, command_option("ticket"));
    pgparams_text(&p, command_option("dry-run") ? "t" : "f");
    bool ok = pgconn_query(conn, &stmt_request, &p, &res, err);
    arena_release(&arena);
    if (!ok)
        return refused(consumer, err);
    for (int row = 0; row < PQntuples(res); row++) {
        if (env->json)
            say_json(asking, res, row);
        else
            say_text(asking, res, row);
    }
    PQclear(res);
    return true;
}

static bool
mend_all(const struct command_env *env, const struct dlq_asking *asking, struct pgconn *conn,
         const struct dlq_reader *reader, struct error *err)
{
    struct arena arena = {0};
    PGresult *selection;
    int count = 0;

    if (!select_all(asking, conn, reader, &selection, err))
        return false;
    int found = PQntuples(selection);
    int64_t *ids = arena_alloc(&arena, sizeof(*ids) * (size_t) (found + 1));
    for (int row = 0; row < found; row++)
        if (pgresult_bool(selection, row, 1))
            ids[count++] = pgresult_i64(selection, row, 0);
    PQclear(selection);
    bool ok = count == 0 || request(env, asking, conn, reader->name, ids, count, err);
    arena_release(&arena);
    if (ok && !env->json && found == 0)
        puts("no dead letters");
    if (ok && !env->json && found > count)
        printf("%d left alone: conflicts and late events can only be discarded\n", found - count);
    return ok;
}

bool
dlq_mend(const struct command_env *env, struct pgconn *conn, const struct dlq_reader *reader,
         void *arg, struct error *err)
{
    const struct dlq_asking *asking = arg;

    if (!asking->ids)
        return mend_all(env, asking, conn, reader, err);
    return request(env, asking, conn, reader->name, asking->ids, asking->count, err);
}
