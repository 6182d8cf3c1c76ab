/*
 * publisher.h — the way of rows from a reading to the destination: what waits behind a
 * dead letter is kept back, the rest is routed, encoded and flown, and a row that is
 * refused alone for what it is becomes a dead letter.  Nothing is recorded here: the
 * caller does that, with what became of each row.
 *
 * Threads: one worker owns it.
 * Memory:  lends configuration, lanes, state and connection of the worker.
 */
#ifndef PR_PUBLISHER_H
#define PR_PUBLISHER_H

#include "config/config.h"
#include "core/arena.h"
#include "relay/flight.h"
#include "relay/held.h"
#include "relay/lanes.h"
#include "relay/prevs.h"
#include "relay/router.h"
#include "relay/state.h"
#include "source/poll/window.h"

/* Being told to stop: a descriptor that becomes readable, and when to be done. */
struct stopping {
    int fd;
    int64_t by_us; /* 0: not told yet */
};

/* Waits so long for it; `by_us` is set once it came. */
bool told_to_stop(struct stopping *stopping, int64_t wait_us);

/* Rows to be published, in order, and what became of them. */
struct batch {
    struct arena arena;
    const struct outbox_row *rows;
    int count;
    bool mending; /* parked events: they go although their stream is held */
    struct message *messages;
    struct error **refusals; /* of dead rows: what the destination said */
};

struct publisher {
    const struct relay_config *config;
    struct uuid writer;
    struct lanes *lanes;
    struct relay_state *state;
    struct stopping *stopping;
    struct pgconn *conn; /* the outbox; NULL while it is away */

    /* Makes the connection free for a statement: a reading under way is taken in. */
    bool (*free_connection)(void *arg, struct error *err);
    void *arg;

    bool waits_at_source; /* what waits behind a dead letter stays pending in its own table */

    struct router *router;
    struct transport *transport;
    struct flight flight;
    struct held held;
    struct prevs prevs;
    int failures;         /* of the destination, in a row */
    int refused_in_a_row; /* events refused alone, and none stored since */
};

enum published {
    PUBLISHED, /* the fate of every row of a lane we still own is known */
    REREAD,    /* the same rows have to be read and made again */
    STOPPED,   /* told to stop, or nothing may be published: recorded is what was confirmed */
    BROKEN,    /* the outbox connection; err is set */
};

enum published publish(struct publisher *p, struct batch *batch, struct error *err);

/* After PUBLISHED: the fate of row n. */
enum fate publisher_fate(const struct publisher *p, int n);

/* Whether row n, or some row, has to be parked. */
bool publisher_parks(const struct publisher *p, int n);
bool publisher_has_parks(const struct publisher *p, const struct batch *batch);

/* Renews the leases when that is due. */
bool publisher_keep_lease(struct publisher *p, struct error *err) PR_MUSTCHECK;

void publisher_close_destination(struct publisher *p);

/* The outbox connection is gone, and with it what was known of lanes and streams. */
void publisher_forget(struct publisher *p);
void publisher_release(struct publisher *p);

#endif
