/*
 * window.h — reading the outbox by snapshot windows.
 *
 * A window is the rows visible in snapshot `open` and not in `done`, in id order.
 * Two kinds of reading serve it: a small window by the index on (xid, lane) in one
 * statement, a big one by id ranges, so that the cost stays linear in the backlog.
 * Why neither a highest id nor a transaction horizon will do is told, with numbers,
 * in docs/internals/windows.md.
 *
 * Threads: one worker, on its own connection.
 * Memory:  rows lend from the result they came in: window_rows_release().
 */
#ifndef PR_WINDOW_H
#define PR_WINDOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/config.h"
#include "core/arena.h"
#include "core/error.h"
#include "core/uuid.h"
#include "pg/pgconn.h"
#include "pg/snapshot.h"

struct outbox_row {
    int64_t id;
    int lane;
    struct uuid event_id;
    const char *aggregate_type;
    const char *aggregate_id;
    int64_t version;
    const char *event_type;
    const void *body; /* payload's text, or body's bytes */
    size_t body_len;
    const char *content_type;
    const char *headers;    /* JSON object, or NULL */
    int64_t occurred_at_pg; /* since 2000; INT64_MIN and INT64_MAX for the infinities */
    int64_t inserted_at_us; /* since 1970; a column of the user's own that says no such time counts
                               as its nearest */
    const char *source_key; /* a table of the user's own: its event_id as it stands there */
};

struct window_rows {
    PGresult *result;
    struct outbox_row *rows; /* in the arena given */
    int count;
    bool cut;  /* the limit or the byte budget ended it: there is more behind the last row */
    bool wide; /* cut before a row that only a request for wide ones reads; maybe no row is left */
};

/*
 * Takes over a result of the columns of read_row() with, behind them, the bytes so far
 * and maybe the source's key.
 */
void window_take_rows(PGresult *res, int limit, struct arena *arena, struct window_rows *ret);

void window_rows_release(struct window_rows *rows); /* may be empty */

/* What a transaction would see now, and up to where the log has been written. */
struct probe {
    struct snapshot now;
    uint64_t written_lsn;
    uint64_t flushed_lsn;
    int64_t server_us; /* the database's clock, since 1970 */
    int64_t last_id;   /* no row that `now` sees has a higher id */
};

void probe_release(struct probe *probe);

/* Statements to run on a new connection before anything else here. */
extern const char *const window_setup[];

bool window_probe(struct pgconn *conn, struct probe *ret, struct error *err) PR_MUSTCHECK;

/* How far the log is safe on disk by now. */
bool window_flushed(struct pgconn *conn, uint64_t *ret_lsn, struct error *err) PR_MUSTCHECK;

/* lanes: bit n for lane n. */
struct window_request {
    uint16_t lanes;
    const struct snapshot *done;
    const struct snapshot *open;
    const struct filter_config *filter;
    int64_t after; /* big windows: ids above this … */
    int64_t up_to; /* … up to this */
    bool wide;     /* rows may be of any size: a byte budget is kept, which is slower */
};

/* A window that is thought to be small: at most WINDOW_LIMIT rows, then `cut`. */
enum { WINDOW_LIMIT = 5000, WINDOW_BYTES = 8388608 };
bool window_read(struct pgconn *conn, const struct window_request *request, struct arena *arena,
                 struct window_rows *ret, struct error *err) PR_MUSTCHECK;

/* A list as a parameter: NULL if it is empty. */
void window_add_list(struct pgparams *p, char *const *list, size_t count);

/*
 * The version before each ($2 aggregate types, $3 ids, $4 versions) that relay $1 has
 * published or is going to, with event types $5 or any; 0 if there is none.
 */
extern const struct pgstmt window_prev;

/* Events of one stream that are parked, the next ones first. */
struct parked_row {
    struct outbox_row row;
    bool there;          /* false: the outbox has lost it */
    int64_t id;          /* of the parked row */
    bool dead;           /* else it waits behind one */
    const char *request; /* "replay", "discard" or NULL */
    const char *source_key;
};

struct parked_rows {
    PGresult *result;
    struct parked_row *rows; /* in the arena given */
    int count;
};

/* Some of them; PQclear() the result. */
bool window_read_parked(struct pgconn *conn, int16_t relay, const char *aggregate_type,
                        const char *aggregate_id, struct arena *arena, struct parked_rows *ret,
                        struct error *err) PR_MUSTCHECK;

enum { RANGE_LIMIT = 10000 }; /* rows of one reading of a big window, then `cut` */

/*
 * Big windows.  Between window_big_begin and _end the session plans for id ranges;
 * the range is sent first and received later, so that work overlaps.
 */
bool window_big_begin(struct pgconn *conn, struct error *err) PR_MUSTCHECK;
bool window_big_end(struct pgconn *conn, struct error *err) PR_MUSTCHECK;
bool window_range_send(struct pgconn *conn, const struct window_request *request,
                       struct error *err) PR_MUSTCHECK;
bool window_range_receive(struct pgconn *conn, struct arena *arena, struct window_rows *ret,
                          struct error *err) PR_MUSTCHECK;

/*
 * The lowest id of a big window, found in slices so that each statement is short and a
 * lease can be renewed in between.  The highest is the probe's last_id.
 */
struct bounds {
    uint64_t next_xid; /* where the next slice begins; 0: not begun */
    uint64_t slice;
    int64_t low; /* no row of the window has an id below; not exact */
    bool found;  /* the window has rows at all */
    bool finished;
};

bool bounds_step(struct pgconn *conn, const struct window_request *request, struct bounds *bounds,
                 struct error *err) PR_MUSTCHECK;

#endif
