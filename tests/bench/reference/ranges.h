/*
 * The bare read of an outbox, for references that publish what they read: id range after
 * id range in binary, the next one asked for before this one is looked at, and a cursor
 * row updated at most every 20 ms.
 */
#ifndef PR_REFERENCE_RANGES_H
#define PR_REFERENCE_RANGES_H

#include <endian.h>
#include <stdint.h>

#include "common.h"

enum { RANGE = 10000 };
enum {
    ID,
    LANE,
    EVENT_ID,
    TYPE,
    AGGREGATE,
    VERSION,
    EVENT,
    PAYLOAD,
    BODY,
    CONTENT,
    HEADERS,
    OCCURRED
};

struct ranges {
    PGconn *conn;
    char *snapshot;
    long low, high;
    double wrote;
};

static inline void
ranges_ask(struct ranges *r)
{
    int64_t low = (int64_t) htobe64((uint64_t) r->low),
            high = (int64_t) htobe64((uint64_t) (r->low + RANGE));
    const char *values[] = {(const char *) &low, (const char *) &high, r->snapshot};
    int lengths[] = {8, 8, 0}, formats[] = {1, 1, 0};

    if (!PQsendQueryPrepared(r->conn, "read", 3, values, lengths, formats, 1) ||
        PQflush(r->conn) < 0)
        fail("send", PQerrorMessage(r->conn));
}

static inline void
ranges_open(struct ranges *r, const char *dsn)
{
    r->conn = connect_to(dsn);
    r->wrote = 0;
    run(r->conn,
        "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off;"
        " SET enable_bitmapscan = on; SET enable_indexscan = off; SET work_mem = '32MB';"
        " SET max_parallel_workers_per_gather = 0");
    PQclear(
        good(r->conn,
             PQprepare(r->conn, "read",
                       "SELECT id, lane, event_id, aggregate_type, aggregate_id, aggregate_version,"
                       " event_type, payload::text, body, content_type, headers::text, occurred_at,"
                       " inserted_at FROM postrider.outbox"
                       " WHERE id > $1::bigint AND id <= $2::bigint"
                       "   AND (pg_visible_in_snapshot(xid, $3::pg_snapshot)) IS TRUE ORDER BY id",
                       0, NULL)));
    PQclear(good(r->conn, PQprepare(r->conn, "cursor",
                                    "UPDATE reference_cursor SET at = $1::bigint", 0, NULL)));
    PGresult *bounds = good(r->conn, PQexec(r->conn, "SELECT pg_current_snapshot(), min(id) - 1,"
                                                     " max(id) FROM postrider.outbox"));
    r->snapshot = strdup(PQgetvalue(bounds, 0, 0));
    r->low = strtol(PQgetvalue(bounds, 0, 1), NULL, 10);
    r->high = strtol(PQgetvalue(bounds, 0, 2), NULL, 10);
    PQclear(bounds);
    ranges_ask(r);
}

static inline void
ranges_cursor(struct ranges *r, long at)
{
    char text[24];
    const char *values[] = {text};

    snprintf(text, sizeof(text), "%ld", at);
    PQclear(good(r->conn, PQexecPrepared(r->conn, "cursor", 1, values, NULL, NULL, 0)));
}

/* The range asked for; the next one is under way after.  NULL at the end. */
static inline PGresult *
ranges_take(struct ranges *r)
{
    PGresult *res, *end;

    if (r->low >= r->high)
        return NULL;
    res = good(r->conn, PQgetResult(r->conn));
    while ((end = PQgetResult(r->conn)))
        PQclear(end);
    if (now_seconds() - r->wrote >= 0.02) {
        ranges_cursor(r, r->low);
        r->wrote = now_seconds();
    }
    r->low += RANGE;
    if (r->low < r->high)
        ranges_ask(r);
    return res;
}

/* Takes in what has come meanwhile, so that the server is not held up by a full socket. */
static inline void
ranges_drain(struct ranges *r)
{
    if (!PQconsumeInput(r->conn))
        fail("read", PQerrorMessage(r->conn));
}

static inline void
ranges_close(struct ranges *r)
{
    ranges_cursor(r, r->high);
    free(r->snapshot);
    PQfinish(r->conn);
}

/* ------------------------------------------------------------------ what a message says */

enum { MESSAGE_HEADERS = 11 };

static const char *const header_name[MESSAGE_HEADERS] = {
    "postrider-id",           "postrider-type",    "postrider-aggregate-type",
    "postrider-aggregate-id", "postrider-version", "postrider-occurred-at",
    "postrider-relay",        "postrider-lane",    "postrider-epoch",
    "postrider-sequence",     "content-type"};

struct value {
    const char *at;
    int len;
};

static inline struct value
column(const PGresult *res, int row, int col)
{
    return (struct value){PQgetvalue(res, row, col), PQgetlength(res, row, col)};
}

static inline long
integer(const PGresult *res, int row, int col)
{
    uint64_t value;

    memcpy(&value, PQgetvalue(res, row, col), 8);
    return (long) be64toh(value);
}

static inline struct value
number(char *at, long value, int width)
{
    int len = 0;
    char digits[24];

    do
        digits[len++] = (char) ('0' + value % 10);
    while ((value /= 10) > 0);
    while (len < width)
        digits[len++] = '0';
    for (int i = 0; i < len; i++)
        at[i] = digits[len - 1 - i];
    return (struct value){at, len};
}

/* Microseconds since 2000 as "2026-12-01T10:03:20.954663Z"; the second is kept from the last call.
 */
static inline struct value
when(char *at, long us)
{
    static time_t last = -1;
    static char text[24];
    time_t second = us / 1000000 + 946684800;

    if (second != last) {
        struct tm tm;
        strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S.", gmtime_r(&second, &tm));
        last = second;
    }
    memcpy(at, text, 20);
    number(at + 20, us % 1000000, 6);
    at[26] = 'Z';
    return (struct value){at, 27};
}

static inline struct value
uuid(char *at, const char *bytes)
{
    static const char hex[] = "0123456789abcdef";
    char *out = at;

    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *out++ = '-';
        *out++ = hex[(unsigned char) bytes[i] >> 4];
        *out++ = hex[bytes[i] & 15];
    }
    return (struct value){at, 36};
}

/* All headers of a row; those made here lie in `text`, of at least 200 bytes. */
static inline void
headers_of(const PGresult *res, int row, char *text, struct value ret[MESSAGE_HEADERS])
{
    uint16_t lane;

    memcpy(&lane, PQgetvalue(res, row, LANE), 2);
    ret[0] = uuid(text, PQgetvalue(res, row, EVENT_ID));
    ret[1] = column(res, row, EVENT);
    ret[2] = column(res, row, TYPE);
    ret[3] = column(res, row, AGGREGATE);
    ret[4] = number(text + 40, integer(res, row, VERSION), 1);
    ret[5] = when(text + 70, integer(res, row, OCCURRED));
    ret[6] = (struct value){"r", 1};
    ret[7] = number(text + 100, be16toh(lane), 1);
    ret[8] = (struct value){"1", 1};
    ret[9] = number(text + 110, integer(res, row, ID), 20);
    ret[10] = column(res, row, CONTENT);
}

static inline uint32_t
spread(const char *key, int len)
{
    uint32_t h = 2166136261U;

    for (int i = 0; i < len; i++)
        h = (h ^ (unsigned char) key[i]) * 16777619U;
    return h ^ h >> 15;
}

#endif
