/*
 * latency.c DSN BUS_DSN RATE SECONDS — writes events at a steady rate, one commit each, and
 * watches the log's only partition: milliseconds from an event's commit to its sight there.
 * What it watches with (a query every half millisecond) is part of the figure.
 */
#include "common.h"

#include <pthread.h>

enum { WRITERS = 4 };

static const char *dsn;
static long rate, total, first_version;
static double begins;
static double *committed, *seen;

static void
sleep_until(double at)
{
    struct timespec ts = {.tv_sec = (time_t) at,
                          .tv_nsec = (long) ((at - (double) (time_t) at) * 1e9)};

    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL);
}

/* Every WRITERS-th event; one connection alone could not commit a thousand times a second
 * everywhere. */
static void *
write_events(void *which)
{
    PGconn *conn = connect_to(dsn);

    PQclear(good(conn, PQprepare(conn, "emit",
                                 "INSERT INTO postrider.outbox (aggregate_type, aggregate_id,"
                                 " aggregate_version, event_type, body) VALUES ('registration',"
                                 " 'a' || $1::bigint % 1000, $1::bigint + $2::bigint, $1::text,"
                                 " convert_to(repeat('x', 300), 'UTF8'))",
                                 0, NULL)));
    for (long n = *(long *) which; n < total; n += WRITERS) {
        char number[24], base[24];
        const char *values[] = {number, base};
        snprintf(number, sizeof(number), "%ld", n);
        snprintf(base, sizeof(base), "%ld", first_version);
        sleep_until(begins + (double) n / (double) rate);
        PQclear(good(conn, PQexecPrepared(conn, "emit", 2, values, NULL, NULL, 0)));
        committed[n] = now_seconds();
    }
    PQfinish(conn);
    return NULL;
}

static long
watch(PGconn *conn, long *next)
{
    char from[24];
    const char *values[] = {from};

    snprintf(from, sizeof(from), "%ld", *next);
    PGresult *res = good(conn, PQexecPrepared(conn, "watch", 1, values, NULL, NULL, 0));
    int count = PQntuples(res);
    double now = now_seconds();
    for (int i = 0; i < count; i++) {
        seen[strtol(PQgetvalue(res, i, 1), NULL, 10)] = now;
        *next = strtol(PQgetvalue(res, i, 0), NULL, 10) + 1;
    }
    PQclear(res);
    return count;
}

static int
by_value(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;

    return x < y ? -1 : x > y;
}

int
main(int argc, char **argv)
{
    if (argc != 5)
        fail("usage", "latency DSN BUS_DSN RATE SECONDS");
    PGconn *conn = connect_to(argv[2]);
    pthread_t writers[WRITERS];
    long numbers[WRITERS], count = 0;

    dsn = argv[1];
    rate = strtol(argv[3], NULL, 10);
    total = rate * strtol(argv[4], NULL, 10);
    committed = calloc((size_t) total, sizeof(double));
    seen = calloc((size_t) total, sizeof(double));
    run(conn, "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET "
              "enable_bitmapscan = off");
    PQclear(
        good(conn, PQprepare(conn, "watch",
                             "SELECT off, convert_from(header_values[2], 'UTF8') FROM postrider.log"
                             " WHERE topic = 'registration' AND part = 0 AND off >= $1::bigint"
                             " ORDER BY off",
                             0, NULL)));
    PGresult *head = good(
        conn, PQexec(conn, "SELECT next_off FROM postrider.log_head WHERE topic = 'registration'"));
    long next = strtol(PQgetvalue(head, 0, 0), NULL, 10);
    PQclear(head);
    head = good(conn, PQexec(conn, "SELECT coalesce(max(aggregate_version), 0) + 1 FROM"
                                   " postrider.outbox"));
    first_version = strtol(PQgetvalue(head, 0, 0), NULL, 10);
    PQclear(head);
    begins = now_seconds() + 0.1;
    for (long i = 0; i < WRITERS; i++) {
        numbers[i] = i;
        if (pthread_create(&writers[i], NULL, write_events, &numbers[i]) != 0)
            fail("thread", "cannot be made");
    }
    for (double give_up = now_seconds() + 120; count < total && now_seconds() < give_up;) {
        count += watch(conn, &next);
        sleep_until(now_seconds() + 0.0005);
    }
    for (int i = 0; i < WRITERS; i++)
        pthread_join(writers[i], NULL);
    double *taken = calloc((size_t) total, sizeof(double));
    for (long i = 0; i < total; i++)
        taken[i] = seen[i] > 0 ? (seen[i] - committed[i]) * 1e3 : 1e9;
    qsort(taken, (size_t) total, sizeof(double), by_value);
    printf("{\"count\":%ld,\"seconds\":%.3f,\"p50_ms\":%.3f,\"p99_ms\":%.3f,\"max_ms\":%.3f}\n",
           count, committed[total - 1] - committed[0], taken[total / 2],
           taken[total - total / 100 - 1], taken[total - 1]);
    PQfinish(conn);
    return 0;
}
