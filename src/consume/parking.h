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

/* How many there are, by state; counts up to 10,000 of them. */
bool parking_count(struct applier *a, int64_t ret[3], struct error *err) PR_MUSTCHECK;

#endif
