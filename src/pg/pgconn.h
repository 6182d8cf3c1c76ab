/*
 * pgconn.h — a connection to PostgreSQL that never waits without a limit, and says
 * what a failure means: every error carries the class and scope of sqlstate.h, the
 * server's own words, and what to do.
 *
 * Threads: one worker owns a connection; another thread may only pgconn_cancel().
 * Memory:  results are the caller's (PQclear); statements are static and shared.
 */
#ifndef PR_PGCONN_H
#define PR_PGCONN_H

#include <libpq-fe.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/error.h"
#include "pg/pgparams.h"

struct pgconn;

/*
 * A statement known at compile time, or made once per worker.  It is prepared on a
 * connection at its first use there, and again if the server lost it.
 */
struct pgstmt {
    const char *name; /* unique within the connection; also named in errors */
    const char *sql;
};

struct pgconn_options {
    const char *purpose;      /* "relay orders": application_name and error texts */
    bool system_search_path;  /* pg_catalog only; false where a user's handler runs */
    const char *const *setup; /* statements run after connecting, NULL ends; may be NULL */
    int statement_timeout_ms; /* 0: 30 s */
};

/*
 * Connects (10 s at most) and runs the set-up.  The server must be writable.
 * Errors: pg.away, pg.auth, pg.database, pg.readonly, pg.dsn, and those of pgconn_query.
 */
bool pgconn_open(const char *dsn, const struct pgconn_options *options, struct pgconn **ret,
                 struct error *err) PR_MUSTCHECK;
void pgconn_close(struct pgconn *conn); /* NULL is fine */

/* False after the connection was lost; nothing but pgconn_close() is left then. */
bool pgconn_ok(const struct pgconn *conn);
int pgconn_socket(const struct pgconn *conn);
int pgconn_server_version(const struct pgconn *conn); /* 150018 */
int pgconn_backend_pid(const struct pgconn *conn);

/* "host:port/database", without user or password: for messages and logs. */
const char *pgconn_target(const struct pgconn *conn);

/*
 * Runs one statement and waits.  `params` may be NULL.  Results come in binary
 * format with `pgparams_binary(params)`, else as text.  *ret is NULL on failure.
 */
bool pgconn_query(struct pgconn *conn, const struct pgstmt *stmt, const struct pgparams *params,
                  PGresult **ret, struct error *err) PR_MUSTCHECK;

/* The same, result thrown away. */
bool pgconn_run(struct pgconn *conn, const struct pgstmt *stmt, const struct pgparams *params,
                struct error *err) PR_MUSTCHECK;

/* One or more statements as text, no parameters: BEGIN, COMMIT, SET, migrations. */
bool pgconn_exec(struct pgconn *conn, const char *sql, struct error *err) PR_MUSTCHECK;

/* First half of pgconn_query: sends, does not wait.  Exactly one may be under way. */
bool pgconn_send(struct pgconn *conn, const struct pgstmt *stmt, const struct pgparams *params,
                 struct error *err) PR_MUSTCHECK;
/* Second half: waits for what pgconn_send() sent. */
bool pgconn_receive(struct pgconn *conn, PGresult **ret, struct error *err) PR_MUSTCHECK;
/* Waits until pgconn_receive() would not, or until the deadline (clock_mono_us(); 0: no wait). */
bool pgconn_wait(struct pgconn *conn, int64_t until_us);

/*
 * Pipeline: queue any number of statements (the names must have been prepared with
 * pgconn_prepare), then a sync; then take their results in order.  A failed one makes
 * the server skip the rest up to the sync.
 */
bool pgconn_prepare(struct pgconn *conn, const struct pgstmt *stmt, struct error *err) PR_MUSTCHECK;
/* What a prepared statement takes and returns: a result without rows (PQnfields, PQftype, …). */
bool pgconn_describe(struct pgconn *conn, const struct pgstmt *stmt, PGresult **ret,
                     struct error *err) PR_MUSTCHECK;
bool pgconn_pipeline_enter(struct pgconn *conn, struct error *err) PR_MUSTCHECK;
bool pgconn_pipeline_queue(struct pgconn *conn, const struct pgstmt *stmt,
                           const struct pgparams *params, struct error *err) PR_MUSTCHECK;
bool pgconn_pipeline_sync(struct pgconn *conn, struct error *err) PR_MUSTCHECK;
/*
 * Result of the next queued statement.  False if it failed (err tells) or was skipped
 * after a failure (err code pg.skipped); the pipeline goes on.
 */
bool pgconn_pipeline_next(struct pgconn *conn, PGresult **ret, struct error *err) PR_MUSTCHECK;
/* Takes the answer to the sync; call after the last queued result. */
bool pgconn_pipeline_synced(struct pgconn *conn, struct error *err) PR_MUSTCHECK;
bool pgconn_pipeline_exit(struct pgconn *conn, struct error *err) PR_MUSTCHECK;
/* Leaves it after a failure: takes and drops the answers still to come. */
void pgconn_pipeline_abort(struct pgconn *conn);

/* Asks the server to stop what runs; any thread. */
void pgconn_cancel(struct pgconn *conn);

/* A statement that still runs `grace_ms` after `fd` became readable is cancelled. */
void pgconn_stop_on(struct pgconn *conn, int fd, int grace_ms);
bool pgconn_was_stopped(const struct pgconn *conn);

/* Fields of a result in text format. */
const char *pgresult_str(const PGresult *res, int row, int col); /* NULL for null */
int64_t pgresult_i64(const PGresult *res, int row, int col);     /* 0 for null */
bool pgresult_bool(const PGresult *res, int row, int col);

/* Of one in binary format: an integer of 4 or 8 bytes. */
int64_t pgresult_binary_i64(const PGresult *res, int row, int col);

#endif
