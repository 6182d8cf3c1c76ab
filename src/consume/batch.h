/*
 * batch.h — messages applied: position, dedupe, decisions, effects and what is parked,
 * all in one transaction.
 *
 * A handler's error takes the whole transaction with it.  The prefix is then done again
 * as a batch, the culprit alone, the rest as a batch: three transactions and no
 * savepoint.
 *
 * Threads: the applier's.
 * Memory:  works and all they point to must live until batch_apply() returns.
 */
#ifndef PR_BATCH_H
#define PR_BATCH_H

#include <stdbool.h>

#include "consume/applier.h"

/*
 * Decides on all of them, in order.  True: committed.  False: what is committed is known
 * to the database only; err tells what to do, and partitions must be claimed anew.
 * Each event that failed is parked; nothing else is charged.
 */
bool batch_apply(struct applier *a, struct work *works, int count, struct error *err) PR_MUSTCHECK;

#endif
