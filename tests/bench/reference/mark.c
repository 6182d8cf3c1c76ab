/*
 * mark.c DSN TABLE — a bare relay of a table with a state column: batches of pending rows
 * in the order of the key, every byte touched, then marked by primary key in one
 * statement; the next batch is read on another connection meanwhile.  No lanes, no
 * messages.
 */
#include "common.h"

#include <stdbool.h>

enum { BATCH = 2000 };
enum { EVENT_ID, AGGREGATE, VERSION, EVENT, PAYLOAD, OCCURRED };

static unsigned long checksum;

/* The batch behind a position in the index. */
static void
ask(PGconn *conn, const char *aggregate, const char *version)
{
    const char *values[] = {aggregate, version};

    if (!PQsendQueryPrepared(conn, "read", 2, values, NULL, NULL, 0) || PQflush(conn) < 0)
        fail("read", PQerrorMessage(conn));
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
touch(const PGresult *res)
{
    for (int row = 0; row < PQntuples(res); row++)
        for (int col = 0; col < PQnfields(res); col++)
            for (const char *at = PQgetvalue(res, row, col); *at; at++)
                checksum = checksum * 31 + (unsigned char) *at;
}

static void
mark(PGconn *conn, const PGresult *res)
{
    static char list[BATCH * 40];
    const char *values[] = {list};
    char *at = list;

    *at++ = '{';
    for (int row = 0; row < PQntuples(res); row++) {
        memcpy(at, PQgetvalue(res, row, EVENT_ID), 36);
        at[36] = ',';
        at += 37;
    }
    at[-1] = '}';
    *at = '\0';
    if (!PQsendQueryPrepared(conn, "mark", 1, values, NULL, NULL, 0) || PQflush(conn) < 0)
        fail("mark", PQerrorMessage(conn));
}

static void
prepare(PGconn *conn, const char *name, const char *format, const char *table)
{
    char sql[1024];

    snprintf(sql, sizeof(sql), format, table);
    run(conn, "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off;"
              " SET enable_bitmapscan = off");
    PQclear(good(conn, PQprepare(conn, name, sql, 0, NULL)));
}

int
main(int argc, char **argv)
{
    if (argc != 3)
        fail("usage", "mark DSN TABLE");
    PGconn *reader = connect_to(argv[1]), *writer = connect_to(argv[1]);
    double began = now_seconds();
    bool marking = false;
    long count = 0;

    prepare(reader, "read",
            "SELECT event_id, aggregate_id, aggregate_version, event_type, payload, occurred_at"
            " FROM %s WHERE publish_state = 'PENDING'"
            " AND (aggregate_id, aggregate_version) > ($1::text, $2::bigint)"
            " ORDER BY aggregate_id, aggregate_version LIMIT 2000",
            argv[2]);
    prepare(writer, "mark",
            "UPDATE %s SET publish_state = 'PUBLISHED' WHERE event_id = ANY ($1::uuid[])", argv[2]);
    ask(reader, "", "0");
    for (;;) {
        PGresult *res = take(reader);
        int rows = PQntuples(res);
        if (rows == 0)
            break;
        ask(reader, PQgetvalue(res, rows - 1, AGGREGATE), PQgetvalue(res, rows - 1, VERSION));
        touch(res);
        if (marking)
            PQclear(take(writer));
        mark(writer, res);
        marking = true;
        count += rows;
        PQclear(res);
    }
    if (marking)
        PQclear(take(writer));
    report(count, began);
    fprintf(stderr, "checksum %lx\n", checksum);
    PQfinish(reader);
    PQfinish(writer);
    return 0;
}
