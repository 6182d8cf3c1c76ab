/*
 * poll_postgres.c DSN BUS_DSN TOPIC PARTITIONS — the bare read of an outbox feeding
 * postrider.log_append(): the same statement in units of the same size and the same
 * headers; the next range is read and the next unit made while one is appended.  No
 * lanes, no leases, no routing, no retries.
 */
#include "ranges.h"

#include <poll.h>
#include <stdbool.h>

enum { UNIT = 2000, MOST_PARTITIONS = 64, PARAMS = 12 };
enum { WRITER, LANES, EPOCHS, TOPICS, PARTS, COUNTS, KEYS, IDS, NAMES, NAMES_OF, VALUES, BODIES };

struct buffer {
    char *at;
    size_t len, cap;
};

static struct buffer param[PARAMS];
static uint32_t values_type, names_type;
static int partitions;
static const char *topic;

static char *
extend(struct buffer *b, size_t more)
{
    if (b->len + more > b->cap) {
        b->cap = (b->len + more) * 2;
        b->at = realloc(b->at, b->cap);
        if (!b->at)
            fail("memory", "none left");
    }
    b->len += more;
    return b->at + b->len - more;
}

static char *
put_u32(char *at, uint32_t value)
{
    value = htobe32(value);
    memcpy(at, &value, 4);
    return at + 4;
}

static void
add_u32(struct buffer *b, uint32_t value)
{
    put_u32(extend(b, 4), value);
}

static void
add(struct buffer *b, const void *data, size_t len)
{
    char *at = put_u32(extend(b, len + 4), (uint32_t) len);

    memcpy(at, data, len);
}

static void
add_int(struct buffer *b, uint64_t value, size_t bytes)
{
    value = htobe64(value);
    add(b, (const char *) &value + 8 - bytes, bytes);
}

static void
start_array(struct buffer *b, uint32_t type, int count)
{
    b->len = 0;
    add_u32(b, 1);
    add_u32(b, 0);
    add_u32(b, type);
    add_u32(b, (uint32_t) count);
    add_u32(b, 1);
}

/* A composite whose only field is an array of `count` elements. */
static void
add_list(struct buffer *b, uint32_t array, uint32_t element, const struct value *list, int count)
{
    size_t bytes = 0;

    for (int i = 0; i < count; i++)
        bytes += 4 + (size_t) list[i].len;
    char *at = extend(b, 36 + bytes);
    const uint32_t front[] = {(uint32_t) bytes + 32, 1, array, (uint32_t) bytes + 20, 1, 0, element,
                              (uint32_t) count,      1};
    for (int i = 0; i < 9; i++)
        at = put_u32(at, front[i]);
    for (int i = 0; i < count; i++) {
        at = put_u32(at, (uint32_t) list[i].len);
        memcpy(at, list[i].at, (size_t) list[i].len);
        at += list[i].len;
    }
}

static void
start_unit(int count)
{
    struct value names[MESSAGE_HEADERS];

    for (int i = 0; i < MESSAGE_HEADERS; i++)
        names[i] = (struct value){header_name[i], (int) strlen(header_name[i])};
    start_array(&param[NAMES], names_type, 1);
    add_list(&param[NAMES], 1009, 25, names, MESSAGE_HEADERS);
    start_array(&param[KEYS], 17, count);
    start_array(&param[IDS], 2950, count);
    start_array(&param[NAMES_OF], 21, count);
    start_array(&param[VALUES], values_type, count);
    start_array(&param[BODIES], 17, count);
}

static void
add_heads(const int *counts)
{
    int heads = 0;

    for (int i = 0; i < partitions; i++)
        heads += counts[i] > 0;
    start_array(&param[TOPICS], 25, heads);
    start_array(&param[PARTS], 23, heads);
    start_array(&param[COUNTS], 23, heads);
    for (int i = 0; i < partitions; i++) {
        if (counts[i] == 0)
            continue;
        add(&param[TOPICS], topic, strlen(topic));
        add_int(&param[PARTS], (uint64_t) i, 4);
        add_int(&param[COUNTS], (uint64_t) counts[i], 4);
    }
}

static void
add_message(const PGresult *res, int row)
{
    char text[200];
    struct value headers[MESSAGE_HEADERS];

    headers_of(res, row, text, headers);
    add(&param[KEYS], headers[3].at, (size_t) headers[3].len);
    add(&param[IDS], PQgetvalue(res, row, EVENT_ID), 16);
    add_int(&param[NAMES_OF], 1, 2);
    add_list(&param[VALUES], 1001, 17, headers, MESSAGE_HEADERS);
    add(&param[BODIES], PQgetvalue(res, row, BODY), (size_t) PQgetlength(res, row, BODY));
}

static void
make_unit(const PGresult *res, int from, int count)
{
    int part[UNIT], next[MOST_PARTITIONS] = {0}, counts[MOST_PARTITIONS] = {0}, ordered[UNIT];

    start_unit(count);
    for (int i = 0; i < count; i++) {
        struct value key = column(res, from + i, AGGREGATE);
        part[i] = (int) (spread(key.at, key.len) % (uint32_t) partitions);
        counts[part[i]]++;
    }
    for (int i = 1; i < partitions; i++)
        next[i] = next[i - 1] + counts[i - 1];
    for (int i = 0; i < count; i++)
        ordered[next[part[i]]++] = from + i;
    for (int i = 0; i < count; i++)
        add_message(res, ordered[i]);
    add_heads(counts);
}

/* Waits for the append under way; what the outbox sends meanwhile is taken in. */
static void
finish(PGconn *bus, struct ranges *ranges)
{
    PGresult *res;

    while (PQisBusy(bus)) {
        struct pollfd fds[] = {{PQsocket(bus), POLLIN, 0}, {PQsocket(ranges->conn), POLLIN, 0}};
        poll(fds, 2, 1000);
        if (fds[1].revents)
            ranges_drain(ranges);
        if (!PQconsumeInput(bus))
            fail("append", PQerrorMessage(bus));
    }
    while ((res = PQgetResult(bus)))
        PQclear(good(bus, res));
}

static void
append(PGconn *bus)
{
    const char *values[PARAMS];
    int lengths[PARAMS], formats[PARAMS];

    for (int i = 0; i < PARAMS; i++) {
        values[i] = param[i].at;
        lengths[i] = (int) param[i].len;
        formats[i] = 1;
    }
    if (!PQsendQueryPrepared(bus, "append", PARAMS, values, lengths, formats, 1) ||
        PQflush(bus) < 0)
        fail("append", PQerrorMessage(bus));
}

static void
prepare(PGconn *bus)
{
    PGresult *res = good(bus, PQexec(bus, "SELECT 'postrider.log_names'::regtype::oid,"
                                          " 'postrider.log_values'::regtype::oid"));

    names_type = (uint32_t) strtoul(PQgetvalue(res, 0, 0), NULL, 10);
    values_type = (uint32_t) strtoul(PQgetvalue(res, 0, 1), NULL, 10);
    PQclear(res);
    PQclear(
        good(bus, PQprepare(bus, "append",
                            "SELECT postrider.log_append($1::uuid, $2::smallint[], $3::bigint[],"
                            " $4::text[], $5::int[], $6::int[], $7::bytea[], $8::uuid[],"
                            " $9::postrider.log_names[], $10::smallint[],"
                            " $11::postrider.log_values[], $12::bytea[])",
                            0, NULL)));
    memset(extend(&param[WRITER], 16), 7, 16);
    start_array(&param[LANES], 21, 16);
    start_array(&param[EPOCHS], 20, 16);
    for (int i = 0; i < 16; i++) {
        add_int(&param[LANES], (uint64_t) i, 2);
        add_int(&param[EPOCHS], 1, 8);
    }
}

int
main(int argc, char **argv)
{
    if (argc != 5)
        fail("usage", "poll_postgres DSN BUS_DSN TOPIC PARTITIONS");
    struct ranges ranges;
    PGconn *bus = connect_to(argv[2]);
    double began = now_seconds();
    long count = 0;
    bool appending = false;
    PGresult *res;

    topic = argv[3];
    partitions = (int) strtol(argv[4], NULL, 10);
    prepare(bus);
    ranges_open(&ranges, argv[1]);
    while ((res = ranges_take(&ranges))) {
        int rows = PQntuples(res);
        for (int from = 0; from < rows; from += UNIT) {
            make_unit(res, from, rows - from < UNIT ? rows - from : UNIT);
            if (appending)
                finish(bus, &ranges);
            append(bus);
            appending = true;
        }
        count += rows;
        PQclear(res);
    }
    if (appending)
        finish(bus, &ranges);
    ranges_close(&ranges);
    report(count, began);
    PQfinish(bus);
    return 0;
}
