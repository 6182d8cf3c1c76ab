/*
 * verdict.h — what a handler's error means: for its event, for the handler, or for the
 * server.
 *
 * An SQLSTATE only suggests whom it is about (a row that breaks row-level security looks
 * like a missing right), so a pause is proven by a second statement first.
 * docs/internals/consume.md, "Errors".
 *
 * Threads: the applier's.
 */
#ifndef PR_VERDICT_H
#define PR_VERDICT_H

#include "consume/applier.h"

enum verdict {
    VERDICT_EVENT,  /* park it, as `ret` says */
    VERDICT_REPEAT, /* nobody is at fault: the same transaction once more */
    VERDICT_PAUSE,  /* server or handler: wait, charge nothing */
};

enum {
    MOST_REPEATS = 10,    /* of a deadlock or a serialization failure, before it counts */
    MOST_UNKNOWN = 5,     /* tries of an error that we do not know */
    MOST_COUNTED = 3,     /* tries of what may pass, but rarely does: foreign key, time-out */
    MOST_CONNECTIONS = 3, /* broken by one event's handler */
};

/* Whether the error asks for the same transaction once more, at once. */
bool verdict_is_repeat(const struct error *err);

/*
 * The connection holds no transaction.  `tries`: of this event, with this one.  `others`:
 * events at hand that may serve as proof.  On a pause err is completed with the proof.
 */
enum verdict verdict_find(struct applier *a, const struct work *culprit, int tries,
                          const struct work *others, int other_count, struct error *err,
                          struct failure *ret);

/* The event was decided; if its handler has worked, earlier failures were not the handler's. */
void verdict_clear(struct applier *a, const struct work *work);

#endif
