#include "pg/pgconn.h"

#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/bytes.h"
#include "core/clock.h"
#include "pg/pgerror.h"

enum {
    CONNECT_TIMEOUT_MS = 10000,
    STATEMENT_TIMEOUT_MS = 30000,
    ANSWER_GRACE_MS = 15000, /* beyond statement_timeout: the server or the network is gone */
};

struct pgconn {
    PGconn *pg;
    PGcancel *cancel;
    char *purpose;
    char *target;
    int answer_timeout_ms;
    const struct pgstmt **prepared;
    int prepared_count, prepared_cap;
    const struct pgstmt *sent; /* by pgconn_send(), for messages */
    bool unsynced;             /* statements of a pipeline wait for their sync */
    int stop_fd, stop_grace_ms;
    int64_t cancel_at_us; /* 0: not told to stop */
    bool stopped;         /* a statement was cancelled for it */
    struct pgconn *next;  /* in `asked` */
};

/*
 * Connections of this thread with an answer on its way.  A big answer does not fit the
 * sockets' buffers: the server would stand still until somebody reads.  So whoever waits
 * for another connection takes in meanwhile what comes here.
 */
static _Thread_local struct pgconn *asked;

static void
asked_remove(struct pgconn *conn)
{
    for (struct pgconn **at = &asked; *at; at = &(*at)->next) {
        if (*at == conn) {
            *at = conn->next;
            return;
        }
    }
}

static void
asked_add(struct pgconn *conn)
{
    asked_remove(conn);
    conn->next = asked;
    asked = conn;
}

/* ------------------------------------------------------------------ waiting */

/* Waits for the socket; false when the deadline passed. */
static bool
wait_socket(PGconn *pg, short events, int64_t deadline_us)
{
    for (;;) {
        struct pollfd fd = {.fd = PQsocket(pg), .events = events};
        int64_t left_us = deadline_us - clock_mono_us();
        if (left_us <= 0 || fd.fd < 0)
            return false;
        int n = poll(&fd, 1, (int) (left_us / 1000 + 1));
        if (n > 0)
            return true;
        if (n < 0 && errno != EINTR)
            return false;
    }
}

static int64_t
deadline(const struct pgconn *conn)
{
    return clock_mono_us() + (int64_t) conn->answer_timeout_ms * 1000;
}

static bool
lost(struct pgconn *conn, const char *what, struct error *err)
{
    return pgerror_lost(conn->pg, conn->purpose, conn->target, what, err);
}

/* wait_socket() that also minds pgconn_stop_on(). */
static bool
wait_or_stop(struct pgconn *conn, short events, int64_t deadline_us)
{
    for (;;) {
        struct pollfd fds[2] = {{.fd = PQsocket(conn->pg), .events = events},
                                {.fd = conn->cancel_at_us ? -1 : conn->stop_fd, .events = POLLIN}};
        int64_t now = clock_mono_us(), until = deadline_us;
        if (conn->cancel_at_us && !conn->stopped && conn->cancel_at_us < until)
            until = conn->cancel_at_us;
        int n = until > now ? poll(fds, 2, (int) ((until - now) / 1000 + 1)) : 0;
        if (n > 0 && fds[0].revents)
            return true;
        if (n > 0)
            conn->cancel_at_us = clock_mono_us() + conn->stop_grace_ms * 1000LL;
        if (n < 0 && errno != EINTR)
            return false;
        if (n != 0)
            continue;
        if (until == deadline_us)
            return false;
        conn->stopped = true;
        pgconn_cancel(conn);
    }
}

/* Waits until a result can be taken without blocking. */
static bool
wait_result(struct pgconn *conn, struct error *err)
{
    int64_t until = deadline(conn);

    while (PQisBusy(conn->pg)) {
        int unsent = PQflush(conn->pg);
        if (unsent < 0)
            return lost(conn, "sending", err);
        if (!wait_or_stop(conn, unsent ? POLLIN | POLLOUT : POLLIN, until)) {
            pgconn_cancel(conn);
            return pgerror_silent(conn->purpose, conn->target, conn->answer_timeout_ms, err);
        }
        if (!PQconsumeInput(conn->pg))
            return lost(conn, "waiting for an answer", err);
    }
    return true;
}

/* ------------------------------------------------------------------ opening */

static const char *
option_value(const PQconninfoOption *options, const char *keyword)
{
    for (; options->keyword; options++)
        if (strcmp(options->keyword, keyword) == 0)
            return options->val;
    return NULL;
}

static char *
describe_target(PGconn *pg)
{
    return xasprintf("%s:%s/%s", PQhost(pg) ? PQhost(pg) : "", PQport(pg) ? PQport(pg) : "",
                     PQdb(pg) ? PQdb(pg) : "");
}

/*
 * The connection string with our own defaults under it: what it says itself wins.
 * Starts connecting; NULL (err pg.dsn) if it cannot be read.
 */
static PGconn *
start_connecting(const char *dsn, const struct pgconn_options *options, struct error *err)
{
    static const char *const defaults[][2] = {
        {"client_encoding", "UTF8"}, {"target_session_attrs", "read-write"},
        {"keepalives_idle", "10"},   {"keepalives_interval", "5"},
        {"keepalives_count", "3"},   {"tcp_user_timeout", "20000"},
        {"gssencmode", "disable"},
    };
    const char *keys[64], *values[64];
    char name[64], *why = NULL;
    int n = 0;
    PQconninfoOption *given = PQconninfoParse(dsn, &why);

    if (!given) {
        pgerror_dsn(options->purpose, why ? why : "out of memory", err);
        PQfreemem(why);
        return NULL;
    }
    for (const PQconninfoOption *o = given; o->keyword && n < 48; o++) {
        if (o->val) {
            keys[n] = o->keyword;
            values[n++] = o->val;
        }
    }
    for (size_t i = 0; i < PR_LENGTH(defaults); i++) {
        if (option_value(given, defaults[i][0]))
            continue;
        keys[n] = defaults[i][0];
        values[n++] = defaults[i][1];
    }
    snprintf(name, sizeof(name), "postrider %s", options->purpose);
    keys[n] = "application_name";
    values[n++] = name;
    keys[n] = values[n] = NULL;
    PGconn *pg = PQconnectStartParams(keys, values, 0);
    PQconninfoFree(given);
    PR_CHECK(pg != NULL);
    return pg;
}

static bool
finish_connecting(PGconn *pg)
{
    int64_t until = clock_mono_us() + CONNECT_TIMEOUT_MS * 1000LL;
    PostgresPollingStatusType want = PGRES_POLLING_WRITING;

    /* Only this verbosity puts the SQLSTATE of a refused connection into the text. */
    PQsetErrorVerbosity(pg, PQERRORS_VERBOSE);
    while (PQstatus(pg) != CONNECTION_BAD) {
        if (!wait_socket(pg, want == PGRES_POLLING_READING ? POLLIN : POLLOUT, until))
            return false;
        want = PQconnectPoll(pg);
        if (want == PGRES_POLLING_OK) {
            PQsetErrorVerbosity(pg, PQERRORS_DEFAULT);
            return true;
        }
        if (want == PGRES_POLLING_FAILED)
            return false;
    }
    return false;
}

static void
ignore_notice(void *arg, const PGresult *res)
{
    (void) arg;
    (void) res; /* a handler's RAISE NOTICE is not our log's business */
}

/*
 * Takes every result of what was sent and keeps the last, or the first failed one.
 * NULL only when the connection is lost (err set).
 */
static PGresult *
collect(struct pgconn *conn, struct error *err)
{
    PGresult *kept = NULL;

    for (;;) {
        if (!wait_result(conn, err)) {
            PQclear(kept);
            return NULL;
        }
        PGresult *res = PQgetResult(conn->pg);
        if (!res)
            break;
        ExecStatusType status = PQresultStatus(res);
        bool failed = kept && PQresultStatus(kept) == PGRES_FATAL_ERROR;
        if (failed) {
            PQclear(res);
        } else {
            PQclear(kept);
            kept = res;
        }
        if (status == PGRES_COPY_IN || status == PGRES_COPY_OUT || status == PGRES_COPY_BOTH)
            break; /* would wait for ever for the copy to end */
    }
    if (!kept)
        lost(conn, "waiting for an answer", err);
    return kept;
}

/* Hands over a good result; turns any other into err. */
static bool
judge(struct pgconn *conn, PGresult *res, const char *what, PGresult **ret, struct error *err)
{
    ExecStatusType status = PQresultStatus(res);

    *ret = NULL;
    if (status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK || status == PGRES_EMPTY_QUERY) {
        *ret = res;
        return true;
    }
    pgerror_result(res, conn->purpose, conn->target, what, err);
    PQclear(res);
    return false;
}

/*
 * Between transactions a pooler may give us another session: what set_up() sets would then hold
 * for strangers, and statements would be prepared elsewhere.  So this comes before any SET.
 */
static bool
check_direct(struct pgconn *conn, struct error *err)
{
    PGresult *res;

    conn->answer_timeout_ms = STATEMENT_TIMEOUT_MS + ANSWER_GRACE_MS;
    if (!PQsendQuery(conn->pg, "SELECT pg_catalog.pg_backend_pid()"))
        return lost(conn, "sending", err);
    res = collect(conn, err);
    if (!res || !judge(conn, res, NULL, &res, err))
        return false;
    bool direct = pgresult_i64(res, 0, 0) == PQbackendPID(conn->pg);
    PQclear(res);
    if (direct)
        return true;
    error_set_exit(err, ERR_STOP, EXIT_CONFIG, "pg.pooler",
                   "%s: at %s is a pooler of connections, not the server", conn->purpose,
                   conn->target);
    return error_hint(err, "connect to the server itself; the application's sessions may pool");
}

static bool
set_up(struct pgconn *conn, const struct pgconn_options *options, struct error *err)
{
    int timeout =
        options->statement_timeout_ms ? options->statement_timeout_ms : STATEMENT_TIMEOUT_MS;
    char sql[512];

    conn->answer_timeout_ms = timeout + ANSWER_GRACE_MS;
    /*
     * Whatever is usual on that server: what a commit of ours confirms is on disk, and each
     * statement sees what was committed before it.
     */
    snprintf(sql, sizeof(sql),
             "SET statement_timeout = %d; SET idle_in_transaction_session_timeout = 15000;"
             " SET default_transaction_isolation = 'read committed';"
             " SELECT pg_catalog.set_config('synchronous_commit', 'on', false)"
             "  WHERE pg_catalog.current_setting('synchronous_commit') = 'off';%s",
             timeout, options->system_search_path ? " SET search_path = pg_catalog" : "");
    if (!pgconn_exec(conn, sql, err))
        return false;
    for (const char *const *more = options->setup; more && *more; more++)
        if (!pgconn_exec(conn, *more, err))
            return false;
    return true;
}

bool
pgconn_open(const char *dsn, const struct pgconn_options *options, struct pgconn **ret,
            struct error *err)
{
    struct pgconn *conn = NULL;
    PGconn *pg = start_connecting(dsn, options, err);
    bool ok = false;

    *ret = NULL;
    if (!pg)
        return false;
    conn = xcalloc(1, sizeof(*conn));
    conn->pg = pg;
    conn->stop_fd = -1;
    conn->purpose = xstrdup(options->purpose);
    bool connected = finish_connecting(pg);
    conn->target = describe_target(pg);
    if (!connected) {
        pgerror_connect(pg, conn->purpose, conn->target, err);
        goto out;
    }
    conn->cancel = PQgetCancel(pg);
    PQsetNoticeReceiver(pg, ignore_notice, NULL);
    PQsetnonblocking(pg, 1); /* or a full pipeline would deadlock with the server's answers */
    if (!check_direct(conn, err) || !set_up(conn, options, err))
        goto out;
    *ret = conn;
    conn = NULL;
    ok = true;

out:
    pgconn_close(conn);
    return ok;
}

void
pgconn_close(struct pgconn *conn)
{
    if (!conn)
        return;
    asked_remove(conn);
    PQfreeCancel(conn->cancel);
    PQfinish(conn->pg);
    free(conn->prepared);
    free(conn->purpose);
    free(conn->target);
    free(conn);
}

bool
pgconn_ok(const struct pgconn *conn)
{
    return conn && PQstatus(conn->pg) == CONNECTION_OK;
}

int
pgconn_socket(const struct pgconn *conn)
{
    return PQsocket(conn->pg);
}

int
pgconn_server_version(const struct pgconn *conn)
{
    return PQserverVersion(conn->pg);
}

int
pgconn_backend_pid(const struct pgconn *conn)
{
    return PQbackendPID(conn->pg);
}

const char *
pgconn_target(const struct pgconn *conn)
{
    return conn->target;
}

void
pgconn_cancel(struct pgconn *conn)
{
    char why[256];

    if (conn->cancel)
        PQcancel(conn->cancel, why, sizeof(why));
}

void
pgconn_stop_on(struct pgconn *conn, int fd, int grace_ms)
{
    conn->stop_fd = fd;
    conn->stop_grace_ms = grace_ms;
}

bool
pgconn_was_stopped(const struct pgconn *conn)
{
    return conn->stopped;
}

/* ------------------------------------------------------------------ statements */

static bool
is_prepared(const struct pgconn *conn, const struct pgstmt *stmt)
{
    for (int i = 0; i < conn->prepared_count; i++)
        if (conn->prepared[i] == stmt)
            return true;
    return false;
}

static void
forget_prepared(struct pgconn *conn, const struct pgstmt *stmt)
{
    for (int i = 0; i < conn->prepared_count; i++)
        if (conn->prepared[i] == stmt)
            conn->prepared[i] = conn->prepared[--conn->prepared_count];
}

bool
pgconn_exec(struct pgconn *conn, const char *sql, struct error *err)
{
    PGresult *res;

    if (!PQsendQuery(conn->pg, sql))
        return lost(conn, "sending", err);
    res = collect(conn, err);
    if (!res || !judge(conn, res, NULL, &res, err))
        return false;
    PQclear(res);
    return true;
}

bool
pgconn_prepare(struct pgconn *conn, const struct pgstmt *stmt, struct error *err)
{
    PGresult *res;

    if (is_prepared(conn, stmt))
        return true;
    if (!PQsendPrepare(conn->pg, stmt->name, stmt->sql, 0, NULL))
        return lost(conn, "sending", err);
    res = collect(conn, err);
    if (!res || !judge(conn, res, stmt->name, &res, err))
        return false;
    PQclear(res);
    GROW(conn->prepared, conn->prepared_count, conn->prepared_cap);
    conn->prepared[conn->prepared_count++] = stmt;
    return true;
}

bool
pgconn_describe(struct pgconn *conn, const struct pgstmt *stmt, PGresult **ret, struct error *err)
{
    PGresult *res;

    *ret = NULL;
    if (!PQsendDescribePrepared(conn->pg, stmt->name))
        return lost(conn, "sending", err);
    res = collect(conn, err);
    return res && judge(conn, res, stmt->name, ret, err);
}

static bool
send_prepared(struct pgconn *conn, const struct pgstmt *stmt, const struct pgparams *params,
              struct error *err)
{
    static const struct pgparams none;
    const struct pgparams *p = params ? params : &none;

    if (!PQsendQueryPrepared(conn->pg, stmt->name, p->count, p->values, p->lengths, p->formats,
                             p->binary_result))
        return lost(conn, "sending", err);
    return true;
}

bool
pgconn_send(struct pgconn *conn, const struct pgstmt *stmt, const struct pgparams *params,
            struct error *err)
{
    if (!pgconn_prepare(conn, stmt, err) || !send_prepared(conn, stmt, params, err))
        return false;
    conn->sent = stmt;
    asked_add(conn);
    if (PQflush(conn->pg) < 0)
        return lost(conn, "sending", err);
    return true;
}

/* wait_socket() for this connection's answer that takes in those of others. */
static bool
wait_beside_others(const struct pgconn *conn, short events, int64_t until_us)
{
    enum { MOST = 4 };
    struct pgconn *others[MOST];
    struct pollfd fds[MOST + 1] = {{.fd = PQsocket(conn->pg), .events = events}};

    for (;;) {
        int count = 0;
        for (struct pgconn *other = asked; other && count < MOST; other = other->next) {
            if (other == conn)
                continue;
            others[count++] = other;
            fds[count] = (struct pollfd){.fd = PQsocket(other->pg), .events = POLLIN};
        }
        int64_t left_us = until_us - clock_mono_us();
        if (left_us <= 0 || fds[0].fd < 0)
            return false;
        int n = poll(fds, (nfds_t) count + 1, (int) (left_us / 1000 + 1));
        if (n < 0 && errno != EINTR)
            return false;
        /* What is wrong with another connection is told where its answer is waited for. */
        for (int i = 0; n > 0 && i < count; i++)
            if (fds[i + 1].revents && (!PQconsumeInput(others[i]->pg) || !PQisBusy(others[i]->pg)))
                asked_remove(others[i]);
        if (n > 0 && fds[0].revents)
            return true;
    }
}

bool
pgconn_wait(struct pgconn *conn, int64_t until_us)
{
    for (;;) {
        int unsent = PQflush(conn->pg);
        /* A broken connection is news, too: pgconn_receive() then tells. */
        if (unsent < 0 || !PQconsumeInput(conn->pg) || !PQisBusy(conn->pg))
            return true;
        if (!wait_beside_others(conn, unsent ? POLLIN | POLLOUT : POLLIN, until_us))
            return false;
    }
}

bool
pgconn_receive(struct pgconn *conn, PGresult **ret, struct error *err)
{
    PGresult *res = collect(conn, err);

    asked_remove(conn);
    *ret = NULL;
    return res && judge(conn, res, conn->sent->name, ret, err);
}

bool
pgconn_query(struct pgconn *conn, const struct pgstmt *stmt, const struct pgparams *params,
             PGresult **ret, struct error *err)
{
    *ret = NULL;
    if (!pgconn_send(conn, stmt, params, err))
        return false;
    if (pgconn_receive(conn, ret, err))
        return true;
    /* The server lost the statement (DISCARD by a pooler), or DDL changed its result type. */
    if (strcmp(err->sqlstate, "26000") != 0 && strcmp(err->sqlstate, "0A000") != 0)
        return false;
    if (strcmp(err->sqlstate, "0A000") == 0) {
        char sql[96];
        struct error ignored;
        snprintf(sql, sizeof(sql), "DEALLOCATE \"%s\"", stmt->name);
        if (!pgconn_exec(conn, sql, &ignored))
            return false;
    }
    forget_prepared(conn, stmt);
    return pgconn_send(conn, stmt, params, err) && pgconn_receive(conn, ret, err);
}

bool
pgconn_run(struct pgconn *conn, const struct pgstmt *stmt, const struct pgparams *params,
           struct error *err)
{
    PGresult *res;

    if (!pgconn_query(conn, stmt, params, &res, err))
        return false;
    PQclear(res);
    return true;
}

/* ------------------------------------------------------------------ pipeline */

bool
pgconn_pipeline_enter(struct pgconn *conn, struct error *err)
{
    return PQenterPipelineMode(conn->pg) || lost(conn, "entering pipeline mode", err);
}

bool
pgconn_pipeline_queue(struct pgconn *conn, const struct pgstmt *stmt, const struct pgparams *params,
                      struct error *err)
{
    PR_CHECK(is_prepared(conn, stmt));
    conn->unsynced = true;
    return send_prepared(conn, stmt, params, err);
}

bool
pgconn_pipeline_sync(struct pgconn *conn, struct error *err)
{
    conn->unsynced = false;
    return PQpipelineSync(conn->pg) || lost(conn, "sending", err);
}

bool
pgconn_pipeline_next(struct pgconn *conn, PGresult **ret, struct error *err)
{
    PGresult *res, *end;

    *ret = NULL;
    if (!wait_result(conn, err))
        return false;
    res = PQgetResult(conn->pg);
    if (!res)
        return lost(conn, "waiting for an answer", err);
    /* A NULL closes each statement's results. */
    if (!wait_result(conn, err)) {
        PQclear(res);
        return false;
    }
    end = PQgetResult(conn->pg);
    if (end) {
        PQclear(end);
        PQclear(res);
        return lost(conn, "reading a pipeline", err);
    }
    if (PQresultStatus(res) == PGRES_PIPELINE_ABORTED) {
        PQclear(res);
        return error_set(err, ERR_TRANSIENT, "pg.skipped", "skipped: an earlier statement failed");
    }
    return judge(conn, res, NULL, ret, err);
}

bool
pgconn_pipeline_synced(struct pgconn *conn, struct error *err)
{
    PGresult *res;

    if (!wait_result(conn, err))
        return false;
    res = PQgetResult(conn->pg);
    bool ok = res && PQresultStatus(res) == PGRES_PIPELINE_SYNC;
    PQclear(res);
    return ok || lost(conn, "reading a pipeline", err);
}

bool
pgconn_pipeline_exit(struct pgconn *conn, struct error *err)
{
    return PQexitPipelineMode(conn->pg) || lost(conn, "leaving pipeline mode", err);
}

void
pgconn_pipeline_abort(struct pgconn *conn)
{
    struct error ignored;

    if (conn->unsynced && !pgconn_pipeline_sync(conn, &ignored))
        return;
    /* It says no for as long as an answer is missing. */
    while (!PQexitPipelineMode(conn->pg)) {
        if (!pgconn_ok(conn) || !wait_result(conn, &ignored))
            return;
        PQclear(PQgetResult(conn->pg));
    }
}

/* ------------------------------------------------------------------ results */

const char *
pgresult_str(const PGresult *res, int row, int col)
{
    return PQgetisnull(res, row, col) ? NULL : PQgetvalue(res, row, col);
}

int64_t
pgresult_i64(const PGresult *res, int row, int col)
{
    return strtoll(PQgetvalue(res, row, col), NULL, 10);
}

bool
pgresult_bool(const PGresult *res, int row, int col)
{
    return PQgetvalue(res, row, col)[0] == 't';
}

int64_t
pgresult_binary_i64(const PGresult *res, int row, int col)
{
    struct bytes in = {.at = PQgetvalue(res, row, col),
                       .left = (size_t) PQgetlength(res, row, col)};

    return in.left == 4 ? (int32_t) bytes_u32(&in) : (int64_t) bytes_u64(&in);
}
