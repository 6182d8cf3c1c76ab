#include "daemon/janitor.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "pg/pgconn.h"

enum { MOST_DATABASES = 256, ROUND_MS = 60000, ROUNDS_PER_PRUNE = 60 };

static const struct pgstmt stmt_partitions = {
    "janitor_partitions",
    "SELECT postrider.make_partitions(3)",
};

/* Each takes the age in microseconds and whether to look only. */
#define PRUNE(function)                                                                            \
    "SELECT * FROM postrider." function                                                            \
    "(clock_timestamp() - $1::bigint * interval '1 microsecond', $2::boolean)"
static const struct pgstmt stmt_prune_outbox = {"prune_outbox", PRUNE("prune_outbox")};
static const struct pgstmt stmt_prune_log = {"prune_log", PRUNE("prune_log")};
static const struct pgstmt stmt_prune_consumed = {"prune_consumed", PRUNE("prune_consumed")};

size_t
janitor_databases(const struct config *c, const char **ret, size_t cap)
{
    size_t count = 0, total = c->outbox_count + c->destination_count + c->consumer_count;

    for (size_t i = 0; i < total && count < cap; i++) {
        const char *dsn = i < c->outbox_count ? c->outboxes[i].database
                          : i < c->outbox_count + c->destination_count
                              ? c->destinations[i - c->outbox_count].database
                              : c->consumers[i - c->outbox_count - c->destination_count].database;
        bool seen = !dsn;
        for (size_t j = 0; j < count && !seen; j++)
            seen = strcmp(ret[j], dsn) == 0;
        if (!seen)
            ret[count++] = dsn;
    }
    return count;
}

/* One step drops the oldest partition; it is repeated until nothing is old or one is held. */
static bool
prune_table(struct pgconn *conn, const struct pgstmt *stmt, const char *table, int64_t retention_us,
            bool dry_run, void (*on)(const struct pruned *, void *), void *arg, struct error *err)
{
    for (bool more = true; more;) {
        struct arena arena = {0};
        struct pgparams p = {.arena = &arena};
        struct pruned pruned = {.table = table};
        PGresult *res;
        pgparams_i64(&p, retention_us);
        pgparams_text(&p, dry_run ? "t" : "f");
        bool ok = pgconn_query(conn, stmt, &p, &res, err);
        arena_release(&arena);
        if (!ok)
            return error_wrap(err, "while pruning %s", table);
        more = PQntuples(res) > 0;
        if (more) {
            const char *held = pgresult_str(res, 0, 1);
            snprintf(pruned.partition, sizeof(pruned.partition), "%s", PQgetvalue(res, 0, 0));
            snprintf(pruned.held_by, sizeof(pruned.held_by), "%s", held ? held : "");
            on(&pruned, arg);
            more = !held && !dry_run;
        }
        PQclear(res);
    }
    return true;
}

/* The longest retention that anyone who uses this database asks for; 0: nobody does. */
static void
find_retentions(const struct config *c, const char *dsn, int64_t *outbox, int64_t *log,
                int64_t *consumed)
{
    *outbox = *log = *consumed = 0;
    for (size_t i = 0; i < c->outbox_count; i++)
        if (strcmp(c->outboxes[i].database, dsn) == 0 && c->outboxes[i].retention_us > *outbox)
            *outbox = c->outboxes[i].retention_us;
    for (size_t i = 0; i < c->destination_count; i++)
        if (c->destinations[i].database && strcmp(c->destinations[i].database, dsn) == 0 &&
            c->destinations[i].retention_us > *log)
            *log = c->destinations[i].retention_us;
    for (size_t i = 0; i < c->consumer_count; i++)
        if (strcmp(c->consumers[i].database, dsn) == 0 && c->consumers[i].retention_us > *consumed)
            *consumed = c->consumers[i].retention_us;
}

static bool
open_database(const char *dsn, struct pgconn **ret, struct error *err)
{
    struct pgconn_options options = {.purpose = "janitor", .system_search_path = true};

    return pgconn_open(dsn, &options, ret, err);
}

bool
janitor_prune(const struct config *config, const char *dsn, bool dry_run,
              void (*on)(const struct pruned *pruned, void *arg), void *arg, struct error *err)
{
    int64_t outbox, log, consumed;
    struct pgconn *conn;

    find_retentions(config, dsn, &outbox, &log, &consumed);
    if (!open_database(dsn, &conn, err))
        return false;
    bool ok = (!outbox ||
               prune_table(conn, &stmt_prune_outbox, "outbox", outbox, dry_run, on, arg, err)) &&
              (!log || prune_table(conn, &stmt_prune_log, "log", log, dry_run, on, arg, err)) &&
              (!consumed || prune_table(conn, &stmt_prune_consumed, "consumed", consumed, dry_run,
                                        on, arg, err));
    pgconn_close(conn);
    return ok;
}

static void
log_pruned(const struct pruned *pruned, void *arg)
{
    (void) arg;
    if (pruned->held_by[0])
        log_warn("janitor.held", F_STR("partition", pruned->partition),
                 F_STR("held_by", pruned->held_by));
    else
        log_info("janitor.dropped", F_STR("partition", pruned->partition));
}

static void
make_partitions(const char *dsn)
{
    struct pgconn *conn = NULL;
    struct error err;
    PGresult *res;

    if (!open_database(dsn, &conn, &err) ||
        !pgconn_query(conn, &stmt_partitions, NULL, &res, &err)) {
        log_failure(LOG_WARN, "janitor.failed", &err);
    } else {
        if (pgresult_i64(res, 0, 0) > 0)
            log_info("janitor.partitions", F_STR("database", pgconn_target(conn)),
                     F_I64("made", pgresult_i64(res, 0, 0)));
        PQclear(res);
    }
    pgconn_close(conn);
}

void
janitor_run(const struct config *config, int stop_fd)
{
    const char *databases[MOST_DATABASES];
    size_t count = janitor_databases(config, databases, MOST_DATABASES);
    struct pollfd fd = {.fd = stop_fd, .events = POLLIN};

    log_context("part", "janitor");
    for (int round = 0; poll(&fd, 1, round ? ROUND_MS : 1000) == 0; round++) {
        for (size_t i = 0; i < count; i++) {
            struct error err;
            make_partitions(databases[i]);
            if (round % ROUNDS_PER_PRUNE == 0 &&
                !janitor_prune(config, databases[i], false, log_pruned, NULL, &err))
                log_failure(LOG_WARN, "janitor.failed", &err);
        }
    }
}
