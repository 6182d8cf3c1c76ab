/*
 * lanes.h — the 16 lanes of a relay: who owns them, up to when, and how far each has
 * got.  Every write names owner and epoch, and the database refuses an old one.
 *
 * A position in memory is good only on the connection that read it: transactions that
 * a server crash undid give their numbers back.  So lanes_forget() follows every lost
 * connection, and the next claim reads the positions anew.
 *
 * Threads: one worker owns it.
 * Memory:  lanes_release_memory() frees the positions.
 */
#ifndef PR_LANES_H
#define PR_LANES_H

#include <stdbool.h>
#include <stdint.h>

#include "core/error.h"
#include "core/uuid.h"
#include "pg/pgconn.h"
#include "pg/snapshot.h"

enum { LANES = 16 };

/* A set of lanes, bit n for lane n. */
typedef uint16_t lane_set;

struct lane {
    int64_t epoch;
    struct snapshot done; /* all rows it sees are published or parked */
    struct snapshot open; /* only while a big window is half done … */
    int64_t open_pos;     /* … and then its rows up to this id are, too */
    bool unwritten;       /* memory is ahead of the row … */
    bool had_rows;        /* … and rows were published meanwhile */
};

struct lanes {
    int16_t relay;
    struct uuid owner;
    int64_t lease_us;
    lane_set owned;
    struct lane lane[LANES];
    int64_t deadline_us; /* nothing may be published after it */
    int64_t renew_at_us; /* next lanes_keep() that does something */
    int64_t flush_at_us; /* next write of positions without rows */
    int64_t wrote_us;    /* last write of positions with rows */
    int64_t claims;      /* leases won and lost since the start, for metrics */
    int64_t losses;
};

void lanes_init(struct lanes *lanes, int16_t relay, int64_t lease_us);

/*
 * When it is due: says that this worker lives, renews what it owns, gives back what
 * exceeds its fair share, and claims free lanes up to it.  Call often, between windows:
 * nothing may be in flight.
 */
bool lanes_keep(struct lanes *lanes, struct pgconn *conn, const char *host,
                struct error *err) PR_MUSTCHECK;

/* Renews only, for calls from within a long wait. */
bool lanes_renew(struct lanes *lanes, struct pgconn *conn, struct error *err) PR_MUSTCHECK;

/* Whether publishing is allowed now: the lease has not run out by our own clock. */
bool lanes_may_publish(const struct lanes *lanes);

/* The first lane's position of `among`, and which others stand at the same place. */
lane_set lanes_cohort(const struct lanes *lanes, lane_set among);

/* Whether every owned lane stands at this snapshot, with no window half done. */
bool lanes_are_at(const struct lanes *lanes, const struct snapshot *now);

/*
 * Everything `open` sees is done.  Lanes `with_rows` are written soon: `now`, or by
 * lanes_flush() at most 20 ms later; the others when it is convenient.
 */
bool lanes_advance(struct lanes *lanes, struct pgconn *conn, lane_set set, lane_set with_rows,
                   const struct snapshot *open, bool now, struct error *err) PR_MUSTCHECK;

/* The rows of window `open` up to id `pos` are done; written now if `write`. */
bool lanes_advance_part(struct lanes *lanes, struct pgconn *conn, lane_set set,
                        const struct snapshot *open, int64_t pos, bool write,
                        struct error *err) PR_MUSTCHECK;

/*
 * Writes positions that are ahead in memory, if it is time (20 ms after rows were
 * published, else every 10 s) or `now`.
 */
bool lanes_flush(struct lanes *lanes, struct pgconn *conn, bool now,
                 struct error *err) PR_MUSTCHECK;

/* Flushes and gives the lanes to others at once. */
bool lanes_give_back(struct lanes *lanes, struct pgconn *conn, lane_set set,
                     struct error *err) PR_MUSTCHECK;

/* Takes the worker off the list of live ones; after lanes_give_back() of all. */
bool lanes_leave(struct lanes *lanes, struct pgconn *conn, struct error *err) PR_MUSTCHECK;

/* Raises the epoch of a lane we own above one that a destination has seen. */
bool lanes_raise_epoch(struct lanes *lanes, struct pgconn *conn, int lane, int64_t above,
                       struct error *err) PR_MUSTCHECK;

/* Drops lanes from memory without a word to the database. */
void lanes_forget(struct lanes *lanes, lane_set set);
void lanes_release_memory(struct lanes *lanes);

int lane_set_count(lane_set set);

#endif
