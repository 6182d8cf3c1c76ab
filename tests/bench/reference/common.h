/* What both references need: a connection that must work, and a clock. */
#ifndef PR_REFERENCE_COMMON_H
#define PR_REFERENCE_COMMON_H

#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static inline double
now_seconds(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double) ts.tv_sec + (double) ts.tv_nsec / 1e9;
}

static inline void
fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static inline PGresult *
good(PGconn *conn, PGresult *res)
{
    ExecStatusType status = PQresultStatus(res);

    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK && status != PGRES_PIPELINE_SYNC)
        fail("reference", res ? PQresultErrorMessage(res) : PQerrorMessage(conn));
    return res;
}

static inline PGconn *
connect_to(const char *dsn)
{
    PGconn *conn = PQconnectdb(dsn);

    if (PQstatus(conn) != CONNECTION_OK)
        fail("connect", PQerrorMessage(conn));
    return conn;
}

static inline void
run(PGconn *conn, const char *sql)
{
    PQclear(good(conn, PQexec(conn, sql)));
}

static inline void
report(long count, double began)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    printf("{\"count\":%ld,\"seconds\":%.6f,\"cpu\":%.6f}\n", count, now_seconds() - began,
           (double) usage.ru_utime.tv_sec + (double) usage.ru_stime.tv_sec +
               (double) (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
}

#endif
