/*
 * timetext.h — a moment written as text.
 *
 * Threads: any.
 */
#ifndef PR_TIMETEXT_H
#define PR_TIMETEXT_H

#include <stdbool.h>
#include <stdint.h>

static const int64_t EPOCH_2000_US = 946684800LL * 1000000; /* since 1970 */

/*
 * RFC 3339, years with a sign (ISO 8601, expanded) and PostgreSQL's two infinities.
 * In microseconds since 2000, as PostgreSQL stores them (INT64_MIN and INT64_MAX are the
 * infinities): its last years do not fit into 64 bits of microseconds since 1970.
 * False: it is no such text, a time that PostgreSQL cannot store, or NULL.
 */
bool time_parse(const char *text, int64_t *ret_2000_us);

#endif
