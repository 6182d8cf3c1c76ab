/*
 * held.h — the streams that wait behind a dead letter of the relay, in memory: looked up
 * for every event that is about to be published, so that nothing overtakes.
 *
 * The truth is postrider.parked; a worker loads the streams of its lanes after each
 * claim, when the former owner can write no more.
 *
 * Threads: one worker owns it.
 * Memory:  held_release() frees all; a stream found is lent until it is removed.
 */
#ifndef PR_HELD_H
#define PR_HELD_H

#include <stdbool.h>
#include <stdint.h>

#include "core/error.h"
#include "relay/lanes.h"

struct held_stream {
    struct held_stream *next;
    int lane;
    bool holds;  /* parked events: what follows has to wait */
    bool mend;   /* something can be done about them now */
    bool passed; /* an event was discarded: the next one tells that its `prev` lies before it */
    char *aggregate_type;
    char *aggregate_id;
};

enum { HELD_BUCKETS = 1024 };

struct held {
    struct held_stream *buckets[HELD_BUCKETS];
    int count;
    bool retries; /* there may be events that are tried again */
};

void held_release(struct held *held);

/* Forgets all and reads what is parked in these lanes. */
bool held_load(struct held *held, const struct lanes *lanes, struct pgconn *conn,
               struct error *err) PR_MUSTCHECK;

/* Marks the streams of our lanes for which an operator has asked something. */
bool held_requests(struct held *held, const struct lanes *lanes, struct pgconn *conn,
                   struct error *err) PR_MUSTCHECK;

/* NULL if nothing of it is held.  Fast when nothing is. */
struct held_stream *held_find(const struct held *held, const char *aggregate_type,
                              const char *aggregate_id);
struct held_stream *held_add(struct held *held, int lane, const char *aggregate_type,
                             const char *aggregate_id);
void held_remove(struct held *held, struct held_stream *stream);

/* One of our lanes' streams to be mended; NULL: none. */
struct held_stream *held_to_mend(const struct held *held, lane_set owned);

#endif
