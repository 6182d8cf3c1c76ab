#include "metrics/metrics.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/error.h"

enum { CELLS = 24, BUCKETS = 14, MOST_LABELS = 12 };

enum kind { COUNTER, GAUGE, SECONDS, HISTOGRAM, AGE };

static const struct definition {
    enum metric_side side;
    enum kind
        kind; /* SECONDS: a gauge kept in microseconds; AGE: the clock_mono_us() it counts from */
    const char *name;
    const char *help;
    const char *label;
    const char *words[MOST_LABELS];
} table[METRIC_COUNT] = {
    [METRIC_PUBLISHED] = {METRIC_RELAY,
                          COUNTER,
                          "postrider_relay_published_total",
                          "Events confirmed by the destination.",
                          NULL,
                          {0}},
    [METRIC_WINDOWS] = {METRIC_RELAY,
                        COUNTER,
                        "postrider_relay_windows_total",
                        "Windows and ranges read.",
                        NULL,
                        {0}},
    [METRIC_RELAY_RETRIES] = {METRIC_RELAY,
                              COUNTER,
                              "postrider_relay_failures_total",
                              "Failures of outbox or destination, by class.",
                              "class",
                              {"destination", "transient", "permanent", "unknown", "stop"}},
    [METRIC_ORDER_VIOLATIONS] = {METRIC_RELAY,
                                 COUNTER,
                                 "postrider_relay_order_violations_total",
                                 "Events read with a lower version than one published before.",
                                 NULL,
                                 {0}},
    [METRIC_ORDER_BREACHES] = {METRIC_RELAY,
                               COUNTER,
                               "postrider_relay_order_breaches_total",
                               "Messages stored although an earlier one of their stream was not.",
                               NULL,
                               {0}},
    [METRIC_RELAY_DEAD] = {METRIC_RELAY,
                           COUNTER,
                           "postrider_relay_dead_total",
                           "Events that the destination refused for what they are.",
                           NULL,
                           {0}},
    [METRIC_RELAY_HELD] = {METRIC_RELAY,
                           GAUGE,
                           "postrider_relay_held_streams",
                           "Streams that wait behind a dead letter of the relay.",
                           NULL,
                           {0}},
    [METRIC_LANES] =
        {METRIC_RELAY, GAUGE, "postrider_relay_lanes", "Lanes owned, of 16.", NULL, {0}},
    [METRIC_LEASE_CHANGES] = {METRIC_RELAY,
                              COUNTER,
                              "postrider_relay_lease_changes_total",
                              "Lanes claimed or lost.",
                              NULL,
                              {0}},
    [METRIC_RELAY_PENDING] = {METRIC_RELAY,
                              SECONDS,
                              "postrider_relay_oldest_pending_seconds",
                              "Age of the oldest event read and not published; 0: none.",
                              NULL,
                              {0}},
    [METRIC_PUBLISH_LATENCY] = {METRIC_RELAY,
                                HISTOGRAM,
                                "postrider_relay_publish_latency_seconds",
                                "From insert to the destination's confirm.",
                                NULL,
                                {0}},
    [METRIC_RELAY_STATE] = {METRIC_RELAY,
                            GAUGE,
                            "postrider_relay_state",
                            "1 for the state it is in, 0 for the others.",
                            "state",
                            {"starting", "running", "paused", "halted", "stopped"}},
    [METRIC_RELAY_QUIET] = {METRIC_RELAY,
                            SECONDS,
                            "postrider_relay_seconds_since_progress",
                            "Time since the last round in which everything asked for was answered.",
                            NULL,
                            {0}},
    [METRIC_CONSUMED] = {METRIC_CONSUMER,
                         COUNTER,
                         "postrider_consumer_messages_total",
                         "Messages decided, by outcome.",
                         "outcome",
                         {"applied", "hit", "duplicate", "stale", "rejected", "ignored", "parked",
                          "gap", "conflict", "dead"}},
    [METRIC_CONSUMER_RETRIES] = {METRIC_CONSUMER,
                                 COUNTER,
                                 "postrider_consumer_failures_total",
                                 "Failures of handlers and servers, by class.",
                                 "class",
                                 {"destination", "transient", "permanent", "unknown", "stop"}},
    [METRIC_PARKED] = {METRIC_CONSUMER,
                       GAUGE,
                       "postrider_consumer_parked",
                       "Events kept back in the database, by state.",
                       "state",
                       {"waiting", "retry", "dead"}},
    [METRIC_PARKED_OLDEST] = {METRIC_CONSUMER,
                              SECONDS,
                              "postrider_consumer_parked_oldest_seconds",
                              "Age of the oldest event kept back, by state; 0: none.",
                              "state",
                              {"waiting", "retry", "dead"}},
    [METRIC_PARKED_FULL] = {METRIC_CONSUMER,
                            GAUGE,
                            "postrider_consumer_parked_limit_reached",
                            "Owned partitions that are not read because of parked_limit, by limit.",
                            "limit",
                            {"stream", "total"}},
    [METRIC_PARTITIONS] =
        {METRIC_CONSUMER, GAUGE, "postrider_consumer_partitions", "Partitions owned.", NULL, {0}},
    [METRIC_PARTITION_CHANGES] = {METRIC_CONSUMER,
                                  COUNTER,
                                  "postrider_consumer_lease_changes_total",
                                  "Partitions claimed or lost.",
                                  NULL,
                                  {0}},
    [METRIC_LAG] = {METRIC_CONSUMER,
                    GAUGE,
                    "postrider_consumer_lag_messages",
                    "Messages in the owned partitions and not decided.",
                    NULL,
                    {0}},
    [METRIC_CONSUMER_PENDING] = {METRIC_CONSUMER,
                                 SECONDS,
                                 "postrider_consumer_oldest_pending_seconds",
                                 "Age of the oldest message read and not decided; 0: none.",
                                 NULL,
                                 {0}},
    [METRIC_CONSUME_LATENCY] = {METRIC_CONSUMER,
                                HISTOGRAM,
                                "postrider_consumer_latency_seconds",
                                "From append to the log to the commit of the effect.",
                                NULL,
                                {0}},
    [METRIC_RECONCILE_DIFFERENCES] = {METRIC_RECONCILE,
                                      GAUGE,
                                      "postrider_reconcile_differences",
                                      "Differences the last reconciliation found, by kind.",
                                      "kind",
                                      {"lost", "foreign"}},
    [METRIC_RECONCILE_AGE] = {METRIC_RECONCILE,
                              AGE,
                              "postrider_reconcile_age_seconds",
                              "Since the last finished reconciliation, at first since the start.",
                              NULL,
                              {0}},
    [METRIC_CHECK_DIFFERENCES] = {METRIC_CHECK,
                                  GAUGE,
                                  "postrider_check_differences",
                                  "Keys the last run of a check found to differ.",
                                  NULL,
                                  {0}},
    [METRIC_CHECK_AGE] = {METRIC_CHECK,
                          AGE,
                          "postrider_check_age_seconds",
                          "Since the last finished run of a check, at first since the start.",
                          NULL,
                          {0}},
    [METRIC_WHOLE_LATENCY] = {METRIC_CONSUMER,
                              HISTOGRAM,
                              "postrider_consumer_whole_latency_seconds",
                              "From the event's occurred-at to the commit of the effect.",
                              NULL,
                              {0}},
    [METRIC_CONSUMER_STATE] = {METRIC_CONSUMER,
                               GAUGE,
                               "postrider_consumer_state",
                               "1 for the state it is in, 0 for the others.",
                               "state",
                               {"starting", "running", "paused", "halted", "stopped"}},
    [METRIC_CONSUMER_QUIET] =
        {METRIC_CONSUMER,
         SECONDS,
         "postrider_consumer_seconds_since_progress",
         "Time since the last round in which everything asked for was answered.",
         NULL,
         {0}},
};

static const int64_t bucket_us[BUCKETS] = {1000,    2500,    5000,     10000,   25000,
                                           50000,   100000,  250000,   500000,  1000000,
                                           2500000, 5000000, 10000000, 60000000};

struct metric_set {
    enum metric_side side;
    char *name;
    const struct health *health; /* NULL: it watches none */
    struct metric_set *next;
    _Atomic int64_t cells[METRIC_COUNT][CELLS]; /* histogram: buckets, count, sum of us */
};

static struct metric_set *sets;
static pthread_mutex_t sets_lock = PTHREAD_MUTEX_INITIALIZER;

struct metric_set *
metric_set_new(enum metric_side side, const char *name)
{
    struct metric_set *set = xcalloc(1, sizeof(*set)), **at = &sets;

    set->side = side;
    set->name = xstrdup(name);
    pthread_mutex_lock(&sets_lock);
    while (*at)
        at = &(*at)->next;
    *at = set;
    pthread_mutex_unlock(&sets_lock);
    return set;
}

void
metric_set_free(struct metric_set *set)
{
    if (!set)
        return;
    pthread_mutex_lock(&sets_lock);
    for (struct metric_set **at = &sets; *at; at = &(*at)->next) {
        if (*at == set) {
            *at = set->next;
            break;
        }
    }
    pthread_mutex_unlock(&sets_lock);
    free(set->name);
    free(set);
}

void
metric_add(struct metric_set *set, enum metric metric, int label, int64_t n)
{
    atomic_fetch_add_explicit(&set->cells[metric][label], n, memory_order_relaxed);
}

void
metric_set_watch(struct metric_set *set, const struct health *health)
{
    pthread_mutex_lock(&sets_lock);
    set->health = health;
    pthread_mutex_unlock(&sets_lock);
}

void
metric_set_value(struct metric_set *set, enum metric metric, int label, int64_t value)
{
    atomic_store_explicit(&set->cells[metric][label], value, memory_order_relaxed);
}

int64_t
metric_get(const struct metric_set *set, enum metric metric, int label)
{
    return atomic_load_explicit(&set->cells[metric][label], memory_order_relaxed);
}

void
metric_observe(struct metric_set *set, enum metric metric, int64_t us, int64_t times)
{
    int bucket = 0;

    if (us < 0)
        us = 0; /* two clocks, one of them the database's */
    while (bucket < BUCKETS && us > bucket_us[bucket])
        bucket++;
    if (bucket < BUCKETS)
        metric_add(set, metric, bucket, times);
    metric_add(set, metric, BUCKETS, times);
    metric_add(set, metric, BUCKETS + 1, us * times);
}

const char *
metric_name(int metric)
{
    return metric < METRIC_COUNT ? table[metric].name : NULL;
}

/* ------------------------------------------------------------------ rendering */

static void
label_value(struct strbuf *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '\\' || *text == '"')
            strbuf_addc(out, '\\');
        strbuf_addc(out, *text);
    }
}

static void
labels(struct strbuf *out, const struct metric_set *set, const char *suffix, const char *extra,
       const char *value)
{
    static const char *const names[] = {"relay", "consumer", "consumer", "check"};

    strbuf_addf(out, "%s{%s=\"", suffix, names[set->side]);
    label_value(out, set->name);
    strbuf_addc(out, '"');
    if (extra)
        strbuf_addf(out, ",%s=\"%s\"", extra, value);
    strbuf_adds(out, "} ");
}

static void
render_histogram(struct strbuf *out, const struct definition *def, const struct metric_set *set,
                 enum metric metric)
{
    int64_t sum = 0;
    char bound[32];

    for (int i = 0; i < BUCKETS; i++) {
        sum += metric_get(set, metric, i);
        snprintf(bound, sizeof(bound), "%g", (double) bucket_us[i] / 1e6);
        strbuf_adds(out, def->name);
        labels(out, set, "_bucket", "le", bound);
        strbuf_addf(out, "%lld\n", (long long) sum);
    }
    strbuf_adds(out, def->name);
    labels(out, set, "_bucket", "le", "+Inf");
    strbuf_addf(out, "%lld\n%s", (long long) metric_get(set, metric, BUCKETS), def->name);
    labels(out, set, "_count", NULL, NULL);
    strbuf_addf(out, "%lld\n%s", (long long) metric_get(set, metric, BUCKETS), def->name);
    labels(out, set, "_sum", NULL, NULL);
    strbuf_addf(out, "%.6f\n", (double) metric_get(set, metric, BUCKETS + 1) / 1e6);
}

static void
render_value(struct strbuf *out, const struct definition *def, const struct metric_set *set,
             enum metric metric, int label)
{
    int64_t value = metric_get(set, metric, label);

    strbuf_adds(out, def->name);
    labels(out, set, "", def->label, def->label ? def->words[label] : NULL);
    if (def->kind == AGE)
        value = clock_mono_us() - value;
    if (def->kind == SECONDS || def->kind == AGE)
        strbuf_addf(out, "%.6f\n", (double) value / 1e6);
    else
        strbuf_addf(out, "%lld\n", (long long) value);
}

static void
render_metric(struct strbuf *out, enum metric metric)
{
    static const char *const types[] = {"counter", "gauge", "gauge", "histogram", "gauge"};
    const struct definition *def = &table[metric];

    strbuf_addf(out, "# HELP %s %s\n# TYPE %s %s\n", def->name, def->help, def->name,
                types[def->kind]);
    for (const struct metric_set *set = sets; set; set = set->next) {
        if (set->side != def->side)
            continue;
        if (def->kind == HISTOGRAM)
            render_histogram(out, def, set, metric);
        else
            for (int label = 0; label == 0 || (label < MOST_LABELS && def->words[label]); label++)
                render_value(out, def, set, metric, label);
    }
}

static void
ask_health(struct metric_set *set)
{
    bool relay = set->side == METRIC_RELAY;
    struct health_word word;
    int64_t quiet_us, due_us;

    if (!set->health)
        return;
    health_word(set->health, &word);
    health_ages(set->health, &quiet_us, &due_us);
    for (int i = 0; i < HEALTH_STATES; i++)
        metric_set_value(set, relay ? METRIC_RELAY_STATE : METRIC_CONSUMER_STATE, i,
                         (int) word.state == i);
    metric_set_value(set, relay ? METRIC_RELAY_QUIET : METRIC_CONSUMER_QUIET, 0, quiet_us);
    metric_set_value(set, relay ? METRIC_RELAY_PENDING : METRIC_CONSUMER_PENDING, 0, due_us);
}

void
metrics_render(struct strbuf *out)
{
    strbuf_adds(out, "# HELP postrider_build_info Version of the program.\n"
                     "# TYPE postrider_build_info gauge\n"
                     "postrider_build_info{version=\"" PR_VERSION "\"} 1\n");
    pthread_mutex_lock(&sets_lock);
    for (struct metric_set *set = sets; set; set = set->next)
        ask_health(set);
    for (int metric = 0; metric < METRIC_COUNT; metric++)
        render_metric(out, (enum metric) metric);
    pthread_mutex_unlock(&sets_lock);
}
