/*
 * consume.c BUS_DSN CONSUMER_DSN TOPIC PARTITIONS — a bare idempotent consumer: batches of
 * 100 from the log, the next one asked for before this one is applied, and per batch one
 * pipelined transaction with position, dedupe and stream version each in one statement and
 * an UPDATE per message.  No digest, no decisions, no parking, no leases.
 */
#include "common.h"

#include <stddef.h>

enum { BATCH = 100, MOST_PARTITIONS = 64, LIST = 8192 };

struct message {
    char part[8], off[24], id[40], aggregate[64], version[24], player[64], points[24];
};

static char *bus_topic;
static int partitions;
static long next_off[MOST_PARTITIONS];
static int turn;

static const char read_sql[] =
    "SELECT l.part, l.off, l.event_id, convert_from(l.key, 'UTF8'), "
    "convert_from(l.header_values[5], 'UTF8'),"
    " convert_from(l.body, 'UTF8')"
    " FROM unnest($2::int[], $3::bigint[]) WITH ORDINALITY p(part, off, n)"
    " CROSS JOIN LATERAL (SELECT * FROM postrider.log g WHERE g.topic = $1::text AND g.part = "
    "p.part"
    "  AND g.off >= p.off ORDER BY g.off LIMIT 100) l ORDER BY p.n, l.off LIMIT 100";

static void
ask(PGconn *bus)
{
    static char parts[1024], offs[4096];
    const char *values[] = {bus_topic, parts, offs};
    int p = snprintf(parts, sizeof(parts), "{"), o = snprintf(offs, sizeof(offs), "{");

    for (int i = 0; i < partitions; i++) {
        int part = (turn + i) % partitions;
        p += snprintf(parts + p, sizeof(parts) - (size_t) p, "%s%d", i ? "," : "", part);
        o += snprintf(offs + o, sizeof(offs) - (size_t) o, "%s%ld", i ? "," : "", next_off[part]);
    }
    snprintf(parts + p, sizeof(parts) - (size_t) p, "}");
    snprintf(offs + o, sizeof(offs) - (size_t) o, "}");
    turn = (turn + 1) % partitions;
    if (!PQsendQueryPrepared(bus, "read", 3, values, NULL, NULL, 0) || PQflush(bus) < 0)
        fail("send", PQerrorMessage(bus));
}

/* The value behind "key": in a flat JSON object, without quotes. */
static void
json_value(const char *json, const char *key, char *ret, size_t size)
{
    const char *at = strstr(json, key);

    at += strlen(key) + 2;
    at += strspn(at, " \"");
    snprintf(ret, size, "%.*s", (int) strcspn(at, "\",}"), at);
}

static int
take(PGconn *bus, struct message *batch)
{
    PGresult *res = good(bus, PQgetResult(bus)), *end;
    int count = PQntuples(res);

    for (int i = 0; i < count; i++) {
        struct message *m = &batch[i];
        snprintf(m->part, sizeof(m->part), "%s", PQgetvalue(res, i, 0));
        snprintf(m->off, sizeof(m->off), "%s", PQgetvalue(res, i, 1));
        snprintf(m->id, sizeof(m->id), "%s", PQgetvalue(res, i, 2));
        snprintf(m->aggregate, sizeof(m->aggregate), "%s", PQgetvalue(res, i, 3));
        snprintf(m->version, sizeof(m->version), "%s", PQgetvalue(res, i, 4));
        json_value(PQgetvalue(res, i, 5), "\"playerId\"", m->player, sizeof(m->player));
        json_value(PQgetvalue(res, i, 5), "\"points\"", m->points, sizeof(m->points));
        next_off[strtol(m->part, NULL, 10)] = strtol(m->off, NULL, 10) + 1;
    }
    PQclear(res);
    while ((end = PQgetResult(bus)))
        PQclear(end);
    return count;
}

static void
queue(PGconn *conn, const char *name, int count, const char *const *values)
{
    if (!PQsendQueryPrepared(conn, name, count, values, NULL, NULL, 0))
        fail("queue", PQerrorMessage(conn));
}

static void
join(char *out, const struct message *batch, int count, size_t field)
{
    int at = snprintf(out, LIST, "{");

    for (int i = 0; i < count; i++)
        at += snprintf(out + at, LIST - (size_t) at, "%s%s", i ? "," : "",
                       (const char *) &batch[i] + field);
    snprintf(out + at, LIST - (size_t) at, "}");
}

static void
apply(PGconn *conn, const struct message *batch, int count)
{
    static char parts[LIST], offs[LIST], ids[LIST], aggregates[LIST], versions[LIST];
    const char *position[] = {parts, offs}, *dedupe[] = {ids}, *stream[] = {aggregates, versions};

    join(parts, batch, count, offsetof(struct message, part));
    join(offs, batch, count, offsetof(struct message, off));
    join(ids, batch, count, offsetof(struct message, id));
    join(aggregates, batch, count, offsetof(struct message, aggregate));
    join(versions, batch, count, offsetof(struct message, version));
    queue(conn, "begin", 0, NULL);
    queue(conn, "position", 2, position);
    queue(conn, "dedupe", 1, dedupe);
    queue(conn, "stream", 2, stream);
    for (int i = 0; i < count; i++) {
        const char *effect[] = {batch[i].points, batch[i].player};
        queue(conn, "effect", 2, effect);
    }
    queue(conn, "commit", 0, NULL);
    if (!PQpipelineSync(conn))
        fail("sync", PQerrorMessage(conn));
    for (int i = 0; i < count + 5; i++) {
        PQclear(good(conn, PQgetResult(conn)));
        PQgetResult(conn); /* the NULL behind each */
    }
    PQclear(good(conn, PQgetResult(conn))); /* the sync */
}

static void
prepare(PGconn *conn, const char *name, const char *sql)
{
    PQclear(good(conn, PQprepare(conn, name, sql, 0, NULL)));
}

int
main(int argc, char **argv)
{
    static struct message batch[BATCH];
    long done = 0;

    if (argc != 5)
        fail("usage", "consume BUS_DSN CONSUMER_DSN TOPIC PARTITIONS");
    PGconn *bus = connect_to(argv[1]), *conn = connect_to(argv[2]);
    double began = now_seconds();
    bus_topic = argv[3];
    partitions = (int) strtol(argv[4], NULL, 10);
    run(conn, "SET plan_cache_mode = force_generic_plan");
    prepare(bus, "read", read_sql);
    prepare(conn, "begin", "BEGIN");
    prepare(conn, "commit", "COMMIT");
    prepare(
        conn, "position",
        "UPDATE reference_position p SET next_off = m.off + 1 FROM (SELECT part, max(off) AS off"
        " FROM unnest($1::int[], $2::bigint[]) u(part, off) GROUP BY part) m WHERE p.part = "
        "m.part");
    prepare(conn, "dedupe",
            "INSERT INTO reference_dedupe SELECT u FROM unnest($1::uuid[]) u ORDER BY u"
            " ON CONFLICT DO NOTHING");
    prepare(conn, "stream",
            "INSERT INTO reference_stream SELECT a, max(v) FROM unnest($1::text[], $2::bigint[]) "
            "u(a, v)"
            " GROUP BY a ORDER BY a ON CONFLICT (aggregate_id) DO UPDATE SET version = "
            "excluded.version");
    prepare(conn, "effect",
            "UPDATE reward_account SET balance = balance + $1::int WHERE player_id = $2::text");
    PQenterPipelineMode(conn);
    ask(bus);
    for (;;) {
        int count = take(bus, batch);
        if (count == 0)
            break;
        ask(bus);
        apply(conn, batch, count);
        done += count;
    }
    report(done, began);
    PQfinish(bus);
    PQfinish(conn);
    return 0;
}
