/*
 * backoff.h — how long to wait before trying again.
 *
 * Threads: any.
 */
#ifndef PR_BACKOFF_H
#define PR_BACKOFF_H

#include <stdint.h>

/*
 * From 10 ms up to 50 ms, 100 ms … 10 s, with full jitter: many workers that lost one server do
 * not come back all at once.  `failures` counts those in a row, from 0.
 */
int64_t backoff_us(int failures);

#endif
