/*
 * metrics.h — counters, gauges and histograms, in Prometheus' text format.
 *
 * A worker owns one set; its cells are atomics, so that counting costs an addition and
 * the HTTP thread may read at any time.  The table in metrics.c defines every metric;
 * docs/guide/metrics.md explains each, and a test holds the two together.
 *
 * Threads: one writer per set; render from any thread.
 * Memory:  sets live until metric_set_free(); free them after the HTTP server stopped.
 */
#ifndef PR_METRICS_H
#define PR_METRICS_H

#include <stdint.h>

#include "core/strbuf.h"
#include "metrics/health.h"

enum metric_side { METRIC_RELAY, METRIC_CONSUMER, METRIC_RECONCILE, METRIC_CHECK };

enum metric {
    METRIC_PUBLISHED,             /* relay, counter */
    METRIC_WINDOWS,               /* relay, counter */
    METRIC_RELAY_RETRIES,         /* relay, counter by class */
    METRIC_ORDER_VIOLATIONS,      /* relay, counter */
    METRIC_ORDER_BREACHES,        /* relay, counter */
    METRIC_RELAY_DEAD,            /* relay, counter */
    METRIC_RELAY_HELD,            /* relay, gauge */
    METRIC_LANES,                 /* relay, gauge */
    METRIC_LEASE_CHANGES,         /* relay, counter */
    METRIC_RELAY_PENDING,         /* relay, gauge, seconds */
    METRIC_PUBLISH_LATENCY,       /* relay, histogram, seconds */
    METRIC_RELAY_STATE,           /* relay, 1 for the state it is in */
    METRIC_RELAY_QUIET,           /* relay, seconds since progress */
    METRIC_CONSUMED,              /* consumer, counter by outcome */
    METRIC_CONSUMER_RETRIES,      /* consumer, counter by class */
    METRIC_PARKED,                /* consumer, gauge by state */
    METRIC_PARKED_OLDEST,         /* consumer, gauge by state, seconds */
    METRIC_PARKED_FULL,           /* consumer, gauge by limit */
    METRIC_PARTITIONS,            /* consumer, gauge */
    METRIC_PARTITION_CHANGES,     /* consumer, counter */
    METRIC_LAG,                   /* consumer, gauge, messages */
    METRIC_CONSUMER_PENDING,      /* consumer, gauge, seconds */
    METRIC_CONSUME_LATENCY,       /* consumer, histogram, seconds */
    METRIC_WHOLE_LATENCY,         /* consumer, histogram, seconds */
    METRIC_CONSUMER_STATE,        /* consumer, 1 for the state it is in */
    METRIC_CONSUMER_QUIET,        /* consumer, seconds since progress */
    METRIC_RECONCILE_DIFFERENCES, /* reconcile, gauge by kind */
    METRIC_RECONCILE_AGE,         /* reconcile, age */
    METRIC_CHECK_DIFFERENCES,     /* check, gauge */
    METRIC_CHECK_AGE,             /* check, age */
    METRIC_COUNT,
};

/* Second labels; the order is the order of the words in the table. */
enum metric_class {
    CLASS_DESTINATION,
    CLASS_TRANSIENT,
    CLASS_PERMANENT,
    CLASS_UNKNOWN,
    CLASS_STOP
};
enum metric_outcome {
    OUTCOME_APPLIED,
    OUTCOME_HIT,
    OUTCOME_DUPLICATE,
    OUTCOME_STALE,
    OUTCOME_REJECTED,
    OUTCOME_IGNORED,
    OUTCOME_PARKED,
    OUTCOME_GAP,
    OUTCOME_CONFLICT,
    OUTCOME_DEAD,
    OUTCOME_COUNT,
};
enum metric_parked { PARKED_WAITING, PARKED_RETRY, PARKED_DEAD, PARKED_STATES };
enum metric_limit { LIMIT_STREAM, LIMIT_TOTAL };

struct metric_set;

struct metric_set *metric_set_new(enum metric_side side, const char *name);
void metric_set_free(struct metric_set *set); /* NULL is fine */

/*
 * From now on state, seconds since progress and the age of what is pending are read from the
 * worker's health whenever they are asked for: a worker that hangs says so, too.
 */
void metric_set_watch(struct metric_set *set, const struct health *health);

/* `label` is 0 for a metric without a second label. */
void metric_add(struct metric_set *set, enum metric metric, int label, int64_t n);
void metric_set_value(struct metric_set *set, enum metric metric, int label, int64_t value);
void metric_observe(struct metric_set *set, enum metric metric, int64_t us, int64_t times);
int64_t metric_get(const struct metric_set *set, enum metric metric, int label);

/* Everything, by metric and then by set, each with HELP and TYPE. */
void metrics_render(struct strbuf *out);

/* Name and help of a metric, NULL past the last: for the test of the documents. */
const char *metric_name(int metric);

#endif
