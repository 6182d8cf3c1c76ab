/*
 * limits.h — how much a consumer keeps back in its database at most (parked_limit).
 *
 * What is full is not read any further, so that nothing more can come to be parked: the
 * partition of a stream that keeps back too much, or all partitions.  What is parked is
 * worked on all the same, and reading goes on by itself once it has become less.  A limit
 * is exceeded by no more than the batches that were under way.
 *
 * Threads: one worker owns it.
 */
#ifndef PR_LIMITS_H
#define PR_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

#include "consume/applier.h"
#include "consume/parking.h"
#include "core/error.h"

struct limits {
    bool total_full;
    int held;     /* owned partitions that are not read */
    int64_t room; /* so many more may be parked before the next look */
    char reason[500], hint[300];
};

/* Looks what is full by now, and marks the partitions.  No reading may be under way. */
bool limits_look(struct limits *l, struct applier *a, const struct parked *parked,
                 struct error *err) PR_MUSTCHECK;

/* Whether any partition may be read. */
bool limits_may_read(const struct limits *l, const struct partitions *p);

/* Whether so much was parked since the last look that another must come before the next batch. */
bool limits_must_look(const struct limits *l, const struct applier *a);

#endif
