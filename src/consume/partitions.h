/*
 * partitions.h — the partitions of a topic that this consumer process owns, up to when,
 * and how far each is.
 *
 * They are leased in the consumer's own database, the one the effects go to: its
 * transaction moves the position under the epoch of the lease, so that whoever lost a
 * partition cannot commit.  The lease only keeps two processes from working in vain.
 *
 * Threads: one worker owns it.
 * Memory:  partitions_release() frees.
 */
#ifndef PR_PARTITIONS_H
#define PR_PARTITIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "config/config.h"
#include "core/error.h"
#include "core/uuid.h"
#include "pg/pgconn.h"

struct partition {
    int32_t part;
    int64_t epoch;
    int64_t next_off; /* decided and committed up to here */
    int64_t read_off; /* read up to here */
    struct uuid last_id;
    bool full;        /* not to be read: limits.h */
    bool was_full;    /* when it was last looked at */
    bool paused;      /* the source knows it */
    bool has_last_id; /* of the message at next_off - 1 */
    bool verify;      /* that message is read once more, and must be the same */
};

/* What the log says about one partition. */
struct partition_bounds {
    int32_t part;
    int64_t first_off;
    int64_t next_off;
    int64_t start_off; /* where a consumer without a position begins */
};

struct partitions {
    int16_t consumer;
    struct uuid owner;
    char source[UUID_TEXT]; /* the log's own id */
    const char *topic;
    int64_t lease_us;
    struct partition *list; /* owned, ascending */
    int count, cap;
    int total;           /* partitions of the topic */
    int64_t deadline_us; /* nothing may be applied after it */
    int64_t renew_at_us; /* next partitions_keep() that does something */
    bool grouped;        /* a group tells which may be claimed: these */
    int32_t *wanted;
    int wanted_count;
    int64_t changes; /* claimed or lost since the start, for metrics */
};

void partitions_init(struct partitions *p, const char *topic, int64_t lease_us);
void partitions_release(struct partitions *p);

/* Makes the rows of partitions that have none, at the start position. */
bool partitions_create(struct partitions *p, struct pgconn *conn,
                       const struct partition_bounds *bounds, int count,
                       struct error *err) PR_MUSTCHECK;

/*
 * When it is due: says that this worker lives, renews what it owns, gives back what
 * exceeds its fair share and claims free partitions up to it.  Call between batches.
 * *ret_claimed: some came in; check their positions against the log before reading.
 */
bool partitions_keep(struct partitions *p, struct pgconn *conn, const char *host, bool *ret_claimed,
                     struct error *err) PR_MUSTCHECK;

/* Whether applying is allowed now: the lease has not run out by our own clock. */
bool partitions_may_apply(const struct partitions *p);

/* The owned partition of this number, or NULL. */
struct partition *partitions_find(struct partitions *p, int32_t part);

/* Gives all to others at once and takes the worker off the list of live ones. */
bool partitions_leave(struct partitions *p, struct pgconn *conn, struct error *err) PR_MUSTCHECK;

/* Drops them from memory without a word to the database. */
void partitions_forget(struct partitions *p);

/* A write of no consequence: whether the server can do anything for us at all. */
bool partitions_probe(struct partitions *p, struct pgconn *conn, struct error *err) PR_MUSTCHECK;

#endif
