/*
 * worker_parts.h — the inside of a relay's worker, shared by the files that serve it:
 * worker.c (connection, leases, the loop), windows.c (the built-in outbox, by windows),
 * sweep.c (a table of the user's own), mend.c (what an operator asked for).
 */
#ifndef PR_WORKER_PARTS_H
#define PR_WORKER_PARTS_H

#include "relay/publisher.h"
#include "relay/worker.h"
#include "source/mark/mark.h"

/* One reading of rows with everything made from it. */
struct load {
    struct batch batch;
    struct window_rows rows;
    int64_t end; /* big window: all rows up to this id are in this load or an earlier one */
};

struct relay_worker {
    const struct relay_config *config;
    char host[64];
    struct stopping stopping;

    struct pgconn *conn;
    struct lanes lanes;
    struct publisher publisher;
    struct probe probe;
    int64_t seen_id;     /* the probe's last_id when every lane stood at its snapshot; 0: unknown */
    int64_t seen_claims; /* lanes.claims then: a lane that came later stands elsewhere */
    int64_t held_changes;   /* lanes.claims + losses when the held streams were read */
    int64_t requests_at_us; /* next look for what operators ask */
    struct relay_state *state;

    struct mark *mark;    /* a table of the user's own; NULL: the built-in outbox */
    struct load loads[2]; /* one is published while the other is read */
    bool reading;         /* a range has been asked for and not received … */
    struct load *into;    /* … into this one */
    int64_t wait_us;      /* adaptive, between two looks */
    int failures;         /* of the connection, in a row */
};

/*
 * worker.c: after the recording of what is confirmed has failed, whether it may be done once
 * more: the connection lives and the lanes are ours.  Waits before, longer each time.  To
 * begin anew instead would publish everything again, each time.
 */
bool worker_may_repeat(struct relay_worker *w, const struct error *cause) PR_MUSTCHECK;

/* windows.c: all lanes, cohort by cohort, up to the probe's snapshot. */
bool windows_serve(struct relay_worker *w, bool *ret_had_rows, struct error *err) PR_MUSTCHECK;
bool windows_free_connection(void *worker, struct error *err) PR_MUSTCHECK;
void windows_drop(struct relay_worker *w);

/* Waits until all that had been written at the probe is safe on disk. */
bool windows_wait_durable(struct relay_worker *w, struct error *err) PR_MUSTCHECK;

/* sweep.c: the next rows of a table of the user's own. */
bool sweep_open(struct relay_worker *w, struct error *err) PR_MUSTCHECK;
bool sweep_serve(struct relay_worker *w, bool *ret_had_rows, struct error *err) PR_MUSTCHECK;
/* Runs one of the mark's updates for these keys; *ret_ours is false if we were fenced. */
bool sweep_set_state(struct relay_worker *w, const struct pgstmt *stmt, const struct pgarray *keys,
                     bool *ret_ours, struct error *err) PR_MUSTCHECK;

/* mend.c: some of what can be done about held streams.  *ret_more: there is more to do. */
bool mend_some(struct relay_worker *w, bool *ret_more, struct error *err) PR_MUSTCHECK;

#endif
