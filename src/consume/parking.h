/*
 * parking.h — events kept in the consumer's database: those a batch puts there, and
 * those whose time has come.
 *
 * Threads: the applier's.
 */
#ifndef PR_PARKING_H
#define PR_PARKING_H

#include <stdbool.h>

#include "consume/applier.h"
#include "metrics/metrics.h"

/* postrider.park(), to be prepared on the connection. */
extern const struct pgstmt stmt_park;

/* Whether a message decided so is to be parked. */
bool parking_wants(const struct work *work);

/* The parameters of stmt_park for those of the works that are to be parked; count of them. */
int parking_params(const struct applier *a, const struct work *works, int count,
                   struct pgparams *ret);

/*
 * Applies parked events that are due, `most` at most, each in a transaction of its own.
 * *ret_more: there may be others.  False: as batch_apply(); no event was charged for it.
 */
bool parking_run(struct applier *a, int most, bool *ret_more, struct error *err) PR_MUSTCHECK;

/* What is parked, by enum metric_parked: how much, and for how long the oldest (0: none). */
struct parked {
    int64_t count[PARKED_STATES];
    int64_t oldest_us[PARKED_STATES];
};
bool parking_count(struct applier *a, struct parked *ret, struct error *err) PR_MUSTCHECK;

#endif
