/*
 * poll.c DSN — the bare read of an outbox: id range after id range in binary, the next
 * one asked for before this one is looked at, every byte touched, and a cursor row
 * updated at most every 20 ms.  No lanes, no routing, no messages.
 */
#include "common.h"

#include <endian.h>
#include <stdint.h>

enum { RANGE = 10000 };

static const char read_sql[] =
    "SELECT id, lane, event_id, aggregate_type, aggregate_id, aggregate_version, event_type,"
    " payload::text, body, content_type, headers::text, occurred_at, inserted_at FROM "
    "postrider.outbox"
    " WHERE id > $1::bigint AND id <= $2::bigint AND (pg_visible_in_snapshot(xid, "
    "$3::pg_snapshot)) IS TRUE"
    " ORDER BY id";

static uint64_t checksum;

static void
ask(PGconn *conn, long from, const char *snapshot)
{
    int64_t low = (int64_t) htobe64((uint64_t) from),
            high = (int64_t) htobe64((uint64_t) (from + RANGE));
    const char *values[] = {(const char *) &low, (const char *) &high, snapshot};
    int lengths[] = {8, 8, 0}, formats[] = {1, 1, 0};

    if (!PQsendQueryPrepared(conn, "read", 3, values, lengths, formats, 1) || PQflush(conn) < 0)
        fail("send", PQerrorMessage(conn));
}

static void
touch(const PGresult *res)
{
    for (int row = 0; row < PQntuples(res); row++)
        for (int col = 0; col < PQnfields(res); col++) {
            const unsigned char *at = (const unsigned char *) PQgetvalue(res, row, col);
            for (int i = PQgetlength(res, row, col); i > 0; i--)
                checksum = checksum * 31 + *at++;
        }
}

static PGresult *
take(PGconn *conn)
{
    PGresult *res = good(conn, PQgetResult(conn)), *end;

    while ((end = PQgetResult(conn)))
        PQclear(end);
    return res;
}

static void
move_cursor(PGconn *conn, long at)
{
    char text[24];
    const char *values[] = {text};

    snprintf(text, sizeof(text), "%ld", at);
    PQclear(good(conn, PQexecPrepared(conn, "cursor", 1, values, NULL, NULL, 0)));
}

int
main(int argc, char **argv)
{
    if (argc != 2)
        fail("usage", "poll DSN");
    PGconn *conn = connect_to(argv[1]);
    double began = now_seconds(), wrote = 0;
    long count = 0, low, high;

    run(conn, "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off;"
              " SET enable_bitmapscan = on; SET enable_indexscan = off; SET work_mem = '32MB';"
              " SET max_parallel_workers_per_gather = 0");
    PQclear(good(conn, PQprepare(conn, "read", read_sql, 0, NULL)));
    PQclear(good(
        conn, PQprepare(conn, "cursor", "UPDATE reference_cursor SET at = $1::bigint", 0, NULL)));
    PGresult *bounds = good(
        conn,
        PQexec(conn, "SELECT pg_current_snapshot(), min(id) - 1, max(id) FROM postrider.outbox"));
    char *snapshot = strdup(PQgetvalue(bounds, 0, 0));
    low = strtol(PQgetvalue(bounds, 0, 1), NULL, 10);
    high = strtol(PQgetvalue(bounds, 0, 2), NULL, 10);
    PQclear(bounds);
    ask(conn, low, snapshot);
    while (low < high) {
        PGresult *res = take(conn);
        low += RANGE;
        if (now_seconds() - wrote >= 0.02) {
            move_cursor(conn, low);
            wrote = now_seconds();
        }
        if (low < high)
            ask(conn, low, snapshot);
        touch(res);
        count += PQntuples(res);
        PQclear(res);
    }
    move_cursor(conn, high);
    report(count, began);
    fprintf(stderr, "checksum %llx\n", (unsigned long long) checksum);
    free(snapshot);
    PQfinish(conn);
    return 0;
}
