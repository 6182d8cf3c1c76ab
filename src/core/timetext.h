/*
 * timetext.h — a moment written as text.
 *
 * Threads: any.
 */
#ifndef PR_TIMETEXT_H
#define PR_TIMETEXT_H

#include <stdbool.h>
#include <stdint.h>

/*
 * RFC 3339 and PostgreSQL's two infinities, as microseconds since 1970 (INT64_MIN and
 * INT64_MAX are the infinities).  False: it is no such text, or NULL.
 */
bool time_parse(const char *text, int64_t *ret_us);

#endif
