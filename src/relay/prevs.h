/*
 * prevs.h — the version before: for streams whose versions skip, each message says which
 * version of its stream was published to this destination before it (`postrider-prev`),
 * so that a consumer can tell a gap from a jump.
 *
 * Remembered per stream for as long as there is room; what is not remembered is looked
 * up in the outbox, so a take-over or a restart changes nothing.
 *
 * Threads: one worker owns it.
 */
#ifndef PR_PREVS_H
#define PR_PREVS_H

#include <stdint.h>

#include "config/config.h"
#include "core/error.h"
#include "pg/pgconn.h"
#include "source/poll/window.h"

enum { PREVS_KEPT = 32768 };

/* What a lookup is done for, in order. */
struct prev_want {
    const struct outbox_row *row;
    bool look_up;  /* in any case: what is remembered may be of an event that was discarded */
    int64_t found; /* 0: there is none */
};

struct prevs {
    int16_t relay;
    const struct filter_config *filter; /* NULL: all events are published */
    const struct pgstmt *lookup;        /* the source's: window_prev */
    struct prev_known {
        char *stream; /* aggregate type, 0x1f, aggregate id */
        int64_t version;
    } kept[PREVS_KEPT];
};

void prevs_forget(struct prevs *prevs);

/* Fills `found` of each, in the order in which they are going to be published. */
bool prevs_find(struct prevs *prevs, struct pgconn *conn, struct prev_want *wants, int count,
                struct error *err) PR_MUSTCHECK;

#endif
