#include "consume/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/timetext.h"
#include "metrics/health.h"
#include "metrics/metrics.h"
#include "metrics/presence.h"

static const int64_t CENTURY_US = 36525LL * 86400 * 1000000;

struct consumer_state {
    struct metric_set *metrics;
    struct health *health;
    struct presence presence;
    int64_t server_ahead_us; /* the log's clock minus clock_mono_us() */
    char last_failure[64];   /* said already: code and SQLSTATE */
    int64_t lease_changes;
    int64_t held_since_us; /* clock_mono_us() since messages are not read for a limit; 0: not so */
    const struct limits *full; /* NULL: no limit is reached */
    bool waiting;              /* for its topic, said already */
};

struct consumer_state *
consumer_state_new(const struct consumer_config *config)
{
    struct consumer_state *state = xcalloc(1, sizeof(*state));

    state->metrics = metric_set_new(METRIC_CONSUMER, config->name);
    state->health = health_new("consumer", config->name);
    metric_set_watch(state->metrics, state->health);
    presence_init(&state->presence, "consumer", config->name, config->lease_us);
    return state;
}

void
consumer_state_free(struct consumer_state *state)
{
    if (!state)
        return;
    metric_set_free(state->metrics);
    health_free(state->health);
    free(state);
}

void
consumer_state_clock(struct consumer_state *state, int64_t server_us)
{
    state->server_ahead_us = server_us - clock_mono_us();
}

static void
running(struct consumer_state *state)
{
    if (state->full)
        health_set(state->health, HEALTH_PAUSED, state->full->reason, state->full->hint);
    else if (health_set(state->health, HEALTH_RUNNING, "", ""))
        log_info("consumer.running");
    state->last_failure[0] = '\0';
    health_progress(state->health);
}

void
consumer_state_round(struct consumer_state *state, const struct partitions *partitions)
{
    metric_set_value(state->metrics, METRIC_PARTITIONS, 0, partitions->count);
    metric_add(state->metrics, METRIC_PARTITION_CHANGES, 0,
               partitions->changes - state->lease_changes);
    state->lease_changes = partitions->changes;
    running(state);
}

void
consumer_state_pending(struct consumer_state *state, int64_t at_us)
{
    int64_t since = at_us ? at_us - state->server_ahead_us : 0;

    if (state->held_since_us && (!since || state->held_since_us < since))
        since = state->held_since_us;
    health_due(state->health, since);
}

void
consumer_state_lag(struct consumer_state *state, int64_t messages)
{
    metric_set_value(state->metrics, METRIC_LAG, 0, messages);
}

void
consumer_state_parked(struct consumer_state *state, const struct parked *parked)
{
    for (int i = 0; i < PARKED_STATES; i++) {
        metric_set_value(state->metrics, METRIC_PARKED, i, parked->count[i]);
        metric_set_value(state->metrics, METRIC_PARKED_OLDEST, i, parked->oldest_us[i]);
    }
}

void
consumer_state_limits(struct consumer_state *state, const struct limits *limits, int64_t lag)
{
    bool full = limits->reason[0] != '\0';

    metric_set_value(state->metrics, METRIC_PARKED_FULL, LIMIT_STREAM,
                     limits->total_full ? 0 : limits->held);
    metric_set_value(state->metrics, METRIC_PARKED_FULL, LIMIT_TOTAL,
                     limits->total_full ? limits->held : 0);
    if (full && !state->full)
        log_warn("consumer.full", F_STR("reason", limits->reason), F_STR("hint", limits->hint));
    state->full = full ? limits : NULL;
    if (!full || lag == 0)
        state->held_since_us = 0;
    else if (!state->held_since_us)
        state->held_since_us = clock_mono_us();
    consumer_state_pending(state, 0);
}

static enum metric_outcome
outcome_of(const struct work *work)
{
    switch (work->decision) {
    case 'a':
        return work->hit ? OUTCOME_HIT : OUTCOME_APPLIED;
    case 'd':
        return OUTCOME_DUPLICATE;
    case 's':
        return OUTCOME_STALE;
    case 'i':
        return OUTCOME_IGNORED;
    case 'r':
        return OUTCOME_REJECTED;
    case 'c':
        return OUTCOME_CONFLICT;
    case 'g':
        return OUTCOME_GAP;
    case 'w':
        return OUTCOME_PARKED;
    case 'u':
        return work->failure && !work->failure->dead ? OUTCOME_PARKED : OUTCOME_DEAD;
    default: /* late, foreign */
        return OUTCOME_DEAD;
    }
}

static void
say_dead(const struct work *work)
{
    const struct incoming *in = work->in;
    char id[UUID_TEXT] = "";

    if (!in->foreign)
        uuid_format(&in->event_id, id);
    log_warn("consumer.dead_letter", F_STR("event_id", id),
             F_STR("reason", in->foreign             ? in->foreign
                             : work->decision == 'c' ? "conflict"
                             : work->decision == 'l' ? "late"
                             : work->failure         ? work->failure->message
                                                     : "no handler takes this event type"),
             F_STR("topic", in->topic), F_I64("partition", in->part), F_I64("offset", in->off),
             F_STR("hint", "see `postrider dlq list`"));
}

static void
say_rejected(const struct work *work)
{
    char id[UUID_TEXT];

    uuid_format(&work->in->event_id, id);
    log_info("consumer.rejected", F_STR("event_id", id), F_STR("event_type", work->in->event_type),
             F_STR("code", work->failure->code), F_STR("message", work->failure->message));
}

/* Of an event that was parked only the whole is known: the log has had it for longer. */
static void
observe_latency(struct consumer_state *state, const struct incoming *in, int64_t now)
{
    if (in->at_us)
        metric_observe(state->metrics, METRIC_CONSUME_LATENCY, now - in->at_us, 1);
    /* Within 100 years of 2000, or it is no time to measure from. */
    if (in->occurred_at_pg > -CENTURY_US && in->occurred_at_pg < CENTURY_US)
        metric_observe(state->metrics, METRIC_WHOLE_LATENCY,
                       now - (in->occurred_at_pg + EPOCH_2000_US), 1);
}

void
consumer_state_decided(struct consumer_state *state, const struct work *works, int count)
{
    int64_t outcomes[OUTCOME_COUNT] = {0};
    int64_t now = clock_mono_us() + state->server_ahead_us;

    for (int i = 0; i < count; i++) {
        enum metric_outcome outcome = outcome_of(&works[i]);
        outcomes[outcome]++;
        if (outcome == OUTCOME_DEAD || outcome == OUTCOME_CONFLICT)
            say_dead(&works[i]);
        if (outcome == OUTCOME_REJECTED)
            say_rejected(&works[i]);
        if (outcome == OUTCOME_APPLIED)
            observe_latency(state, works[i].in, now);
    }
    for (int i = 0; i < OUTCOME_COUNT; i++)
        if (outcomes[i])
            metric_add(state->metrics, METRIC_CONSUMED, i, outcomes[i]);
    running(state);
}

static enum metric_class
class_of(enum error_class cls)
{
    static const enum metric_class classes[] = {
        [ERR_NONE] = CLASS_UNKNOWN,        [ERR_DESTINATION] = CLASS_DESTINATION,
        [ERR_TRANSIENT] = CLASS_TRANSIENT, [ERR_PERMANENT] = CLASS_PERMANENT,
        [ERR_UNKNOWN] = CLASS_UNKNOWN,     [ERR_REJECTED] = CLASS_PERMANENT,
        [ERR_STOP] = CLASS_STOP,
    };

    return classes[cls];
}

void
consumer_state_retry(struct consumer_state *state, const struct failure *failure,
                     const struct work *work)
{
    char id[UUID_TEXT];

    uuid_format(&work->in->event_id, id);
    metric_add(state->metrics, METRIC_CONSUMER_RETRIES, (int) class_of(failure->cls), 1);
    log_warn(failure->dead ? "consumer.event_dead" : "consumer.event_failed", F_STR("event_id", id),
             F_STR("event_type", work->in->event_type),
             F_STR("class", error_class_name(failure->cls)), F_STR("code", failure->code),
             F_STR("error", failure->message));
}

/* The same failure again is counted, not printed. */
void
consumer_state_failed(struct consumer_state *state, const struct error *err)
{
    char what[64];
    bool stop = err->cls == ERR_STOP;

    snprintf(what, sizeof(what), "%s %s", err->code, err->sqlstate);
    bool changed =
        health_set(state->health, stop ? HEALTH_HALTED : HEALTH_PAUSED, err->text, err->hint);
    if (changed || strcmp(state->last_failure, what) != 0)
        log_failure(stop ? LOG_ERROR : LOG_WARN, stop ? "consumer.halted" : "consumer.paused", err);
    snprintf(state->last_failure, sizeof(state->last_failure), "%s", what);
    metric_add(state->metrics, METRIC_CONSUMER_RETRIES, (int) class_of(err->cls), 1);
    metric_set_value(state->metrics, METRIC_PARTITIONS, 0, 0);
    state->waiting = false;
}

void
consumer_state_waiting(struct consumer_state *state, const char *topic)
{
    running(state);
    if (!state->waiting)
        log_warn("consumer.no_topic", F_STR("topic", topic),
                 F_STR("hint",
                       "the topic is made when a relay first publishes to it; if none does, "
                       "check from.topic of this consumer"));
    state->waiting = true;
}

void
consumer_state_stopped(struct consumer_state *state)
{
    health_set(state->health, HEALTH_STOPPED, "told to stop", "");
}

void
consumer_state_tell(struct consumer_state *state, const struct applier *a, int64_t quiet_us)
{
    if (a->consumer != 0) /* else it is not known to its database */
        presence_tell(&state->presence, a->conn, &a->partitions.owner, a->consumer, state->health,
                      quiet_us);
}
