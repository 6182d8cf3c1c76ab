#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/consumers.h"
#include "core/jsonw.h"
#include "pg/pgparams.h"

static const struct pgstmt stmt_consumer = {
    "consumer_state",
    "SELECT to_char(nullif(c.floor, '-infinity') AT TIME ZONE 'UTC', 'YYYY-MM-DD'),"
    "  count(*) FILTER (WHERE p.state = 'waiting'), count(*) FILTER (WHERE p.state = 'retry'),"
    "  count(*) FILTER (WHERE p.state = 'dead')"
    " FROM postrider.consumer c LEFT JOIN postrider.parked p"
    "   ON p.side = 'consumer' AND p.reader = c.consumer AND p.state <> 'discarded'"
    " WHERE c.name = $1::text GROUP BY c.consumer",
};
static const struct pgstmt stmt_partitions = {
    "consumer_partitions",
    "SELECT p.part, p.next_off, p.epoch, CASE WHEN p.lease_until > clock_timestamp()"
    "  THEN coalesce(i.host, '?') || ':' || right(p.owner::text, 8) END, p.reread_to"
    " FROM postrider.consumer c JOIN postrider.consumer_partition p USING (consumer)"
    " LEFT JOIN postrider.instance i ON i.id = p.owner"
    " WHERE c.name = $1::text AND p.topic = $2::text ORDER BY p.part",
};
static const struct pgstmt stmt_heads = {
    "consumer_heads",
    "SELECT part, first_off, next_off FROM postrider.log_head WHERE topic = $1::text ORDER BY part",
};

enum { FLOOR, WAITING, RETRY, DEAD };
enum { PART, AT, EPOCH, OWNER, REREAD };

struct look {
    const struct consumer_config *consumer;
    struct pgconn *conn, *bus;
    PGresult *state, *partitions, *heads;
    struct jsonw *json; /* NULL: text */
};

/* The log's row about a partition, -1: it has none. */
static int
head_of(const struct look *look, int row)
{
    for (int i = 0; i < PQntuples(look->heads); i++)
        if (strcmp(PQgetvalue(look->heads, i, 0), PQgetvalue(look->partitions, row, PART)) == 0)
            return i;
    return -1;
}

static void
partition_json(const struct look *look, int row)
{
    struct jsonw *w = look->json;
    int head = head_of(look, row);

    jsonw_object(w, NULL);
    jsonw_i64(w, "partition", pgresult_i64(look->partitions, row, PART));
    jsonw_i64(w, "position", pgresult_i64(look->partitions, row, AT));
    jsonw_i64(w, "epoch", pgresult_i64(look->partitions, row, EPOCH));
    jsonw_str(w, "owner", pgresult_str(look->partitions, row, OWNER));
    if (head >= 0) {
        jsonw_i64(w, "log_first", pgresult_i64(look->heads, head, 1));
        jsonw_i64(w, "log_next", pgresult_i64(look->heads, head, 2));
    }
    jsonw_end(w);
}

static void
partition_text(const struct look *look, int row)
{
    int head = head_of(look, row);
    int64_t at = pgresult_i64(look->partitions, row, AT);
    const char *owner = pgresult_str(look->partitions, row, OWNER);

    printf("  partition %-4s at %lld", PQgetvalue(look->partitions, row, PART), (long long) at);
    if (head < 0)
        fputs(", the log has no such partition", stdout);
    else
        printf(", %lld behind, the log holds %s to %s",
               (long long) (pgresult_i64(look->heads, head, 2) - at),
               PQgetvalue(look->heads, head, 1), PQgetvalue(look->heads, head, 2));
    if (pgresult_i64(look->partitions, row, REREAD) > at)
        printf(", up to %s again", PQgetvalue(look->partitions, row, REREAD));
    printf(", %s\n", owner ? owner : "nobody");
}

static void
show(const struct look *look)
{
    const struct consumer_config *c = look->consumer;
    const char *floor = pgresult_str(look->state, 0, FLOOR);

    if (!look->json) {
        printf("%s in %s\n", c->name, pgconn_target(look->conn));
        printf("  reads        topic %s of %s (%s)\n", c->topic, c->destination->name,
               pgconn_target(look->bus));
        printf("  parked       %s waiting, %s retry, %s dead\n",
               PQgetvalue(look->state, 0, WAITING), PQgetvalue(look->state, 0, RETRY),
               PQgetvalue(look->state, 0, DEAD));
        printf("  remembers    %s%s\n", floor ? "events with ids from " : "every event",
               floor ? floor : "");
        for (int row = 0; row < PQntuples(look->partitions); row++)
            partition_text(look, row);
        return;
    }
    jsonw_object(look->json, NULL);
    jsonw_str(look->json, "consumer", c->name);
    jsonw_str(look->json, "topic", c->topic);
    jsonw_str(look->json, "destination", c->destination->name);
    jsonw_str(look->json, "remembers_from", floor);
    jsonw_i64(look->json, "waiting", pgresult_i64(look->state, 0, WAITING));
    jsonw_i64(look->json, "retry", pgresult_i64(look->state, 0, RETRY));
    jsonw_i64(look->json, "dead", pgresult_i64(look->state, 0, DEAD));
    jsonw_array(look->json, "partitions");
    for (int row = 0; row < PQntuples(look->partitions); row++)
        partition_json(look, row);
    jsonw_end(look->json);
    jsonw_end(look->json);
}

static bool
look_up(struct look *look, struct arena *arena, struct error *err)
{
    const struct consumer_config *c = look->consumer;
    struct pgparams state = {.arena = arena}, partitions = {.arena = arena},
                    heads = {.arena = arena};

    pgparams_text(&state, c->name);
    pgparams_text(&partitions, c->name);
    pgparams_text(&partitions, c->topic);
    pgparams_text(&heads, c->topic);
    if (!consumers_has_log(c,
                           "postrider doctor compares its positions with the topic; "
                           "kafka-consumer-groups.sh shows its lag",
                           err) ||
        !consumers_open(c->database, "consumer list", &look->conn, err) ||
        !consumers_open(c->destination->database, "consumer list, source", &look->bus, err) ||
        !pgconn_query(look->conn, &stmt_consumer, &state, &look->state, err) ||
        !pgconn_query(look->conn, &stmt_partitions, &partitions, &look->partitions, err) ||
        !pgconn_query(look->bus, &stmt_heads, &heads, &look->heads, err))
        return false;
    if (PQntuples(look->state) == 1)
        return true;
    error_set_exit(err, ERR_STOP, EXIT_CONFIG, "consumer.unknown",
                   "consumer %s is not registered in %s", c->name, pgconn_target(look->conn));
    return error_hint(err, "postrider init");
}

static bool
show_consumer(const struct consumer_config *c, struct jsonw *json, struct error *err)
{
    struct look look = {.consumer = c, .json = json};
    struct arena arena = {0};
    bool ok = look_up(&look, &arena, err);

    if (ok)
        show(&look);
    PQclear(look.state);
    PQclear(look.partitions);
    PQclear(look.heads);
    pgconn_close(look.conn);
    pgconn_close(look.bus);
    arena_release(&arena);
    return ok;
}

int
cmd_consumer_list(const struct command_env *env, int argc, char **argv)
{
    const char *name = command_option("consumer");
    struct strbuf out = {0};
    struct jsonw json = {.out = &out};
    struct config *config = NULL;
    struct error err;

    (void) argc;
    (void) argv;
    if (!cli_config(env, &config, &err))
        return cli_fail(env, &err);
    const struct consumer_config *only = name ? consumers_find(config, name, &err) : NULL;
    bool ok = !name || only;
    jsonw_array(&json, NULL);
    for (size_t i = 0; ok && i < config->consumer_count; i++)
        if (!only || only == &config->consumers[i])
            ok = show_consumer(&config->consumers[i], env->json ? &json : NULL, &err);
    jsonw_end(&json);
    if (ok && env->json)
        puts(strbuf_str(&out));
    strbuf_release(&out);
    config_free(config);
    return ok ? EXIT_OK : cli_fail(env, &err);
}
