#include "relay/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/log.h"
#include "metrics/health.h"
#include "metrics/metrics.h"
#include "metrics/presence.h"

enum { SEEN = 65536 };

struct relay_state {
    struct metric_set *metrics;
    struct health *health;
    struct presence presence;
    int64_t server_ahead_us; /* the database's clock minus clock_mono_us() */
    int64_t lease_changes;
    char last_failure[32];

    /* Last version published per stream, direct-mapped: a guard, so forgetting is fine. */
    struct seen {
        uint64_t stream;
        int64_t version;
    } seen[SEEN];
};

struct relay_state *
relay_state_new(const struct relay_config *config)
{
    struct relay_state *state = xcalloc(1, sizeof(*state));

    state->metrics = metric_set_new(METRIC_RELAY, config->name);
    state->health = health_new("relay", config->name);
    metric_set_watch(state->metrics, state->health);
    presence_init(&state->presence, "relay", config->name, config->lease_us);
    return state;
}

void
relay_state_free(struct relay_state *state)
{
    metric_set_free(state->metrics);
    health_free(state->health);
    free(state);
}

void
relay_state_clock(struct relay_state *state, int64_t server_us)
{
    state->server_ahead_us = server_us - clock_mono_us();
}

static void
running(struct relay_state *state)
{
    if (health_set(state->health, HEALTH_RUNNING, "", ""))
        log_info("relay.running");
    state->last_failure[0] = '\0';
    health_progress(state->health);
}

void
relay_state_round(struct relay_state *state, const struct lanes *lanes)
{
    int64_t changes = lanes->claims + lanes->losses;

    metric_set_value(state->metrics, METRIC_LANES, 0, lane_set_count(lanes->owned));
    metric_add(state->metrics, METRIC_LEASE_CHANGES, 0, changes - state->lease_changes);
    state->lease_changes = changes;
    health_due(state->health, 0);
    running(state);
}

void
relay_state_window(struct relay_state *state, int rows)
{
    metric_add(state->metrics, METRIC_WINDOWS, 0, rows > 0);
}

void
relay_state_alive(struct relay_state *state)
{
    health_progress(state->health);
}

void
relay_state_pending(struct relay_state *state, int64_t inserted_at_us)
{
    int64_t since = inserted_at_us - state->server_ahead_us;

    health_due(state->health, since);
}

void
relay_state_published(struct relay_state *state, uint32_t stored)
{
    metric_add(state->metrics, METRIC_PUBLISHED, 0, stored);
    running(state);
}

static uint64_t
stream_hash(const struct outbox_row *row)
{
    uint64_t h = 1469598103934665603ULL; /* FNV-1a */

    for (const char *c = row->aggregate_type; *c; c++)
        h = (h ^ (unsigned char) *c) * 1099511628211ULL;
    h = (h ^ 31) * 1099511628211ULL;
    for (const char *c = row->aggregate_id; *c; c++)
        h = (h ^ (unsigned char) *c) * 1099511628211ULL;
    return h;
}

/*
 * Versions of a stream are written under the aggregate's row lock, so their insert
 * order is the version order.  A producer that breaks the rule is counted here.
 */
static void
watch_order(struct relay_state *state, const struct outbox_row *row)
{
    uint64_t stream = stream_hash(row);
    struct seen *seen = &state->seen[stream % SEEN];
    char id[UUID_TEXT];

    if (seen->stream == stream && row->version <= seen->version) {
        uuid_format(&row->event_id, id);
        metric_add(state->metrics, METRIC_ORDER_VIOLATIONS, 0, 1);
        log_error("relay.order_violation", F_STR("event_id", id), F_I64("version", row->version),
                  F_I64("after", seen->version),
                  F_STR("hint", "the writer must lock the aggregate before it writes the event"));
    }
    *seen = (struct seen){stream, row->version};
}

void
relay_state_settled(struct relay_state *state, const struct outbox_row *rows, int count)
{
    int64_t now = clock_mono_us() + state->server_ahead_us;

    for (int i = 0; i < count; i++) {
        metric_observe(state->metrics, METRIC_PUBLISH_LATENCY, now - rows[i].inserted_at_us, 1);
        watch_order(state, &rows[i]);
    }
    health_due(state->health, 0);
}

void
relay_state_breaches(struct relay_state *state, int64_t count)
{
    if (count == 0)
        return;
    metric_add(state->metrics, METRIC_ORDER_BREACHES, 0, count);
    log_error("relay.order_breach", F_I64("messages", count),
              F_STR("hint", "the destination stored later events of a stream and not an earlier "
                            "one; consumers decide by version, so look for gaps there"));
}

void
relay_state_dead(struct relay_state *state, int count)
{
    metric_add(state->metrics, METRIC_RELAY_DEAD, 0, count);
}

void
relay_state_held(struct relay_state *state, int streams)
{
    metric_set_value(state->metrics, METRIC_RELAY_HELD, 0, streams);
}

void
relay_state_forget(struct relay_state *state)
{
    memset(state->seen, 0, sizeof(state->seen));
}

static void
count_failure(struct relay_state *state, const struct error *err)
{
    static const enum metric_class classes[] = {
        [ERR_NONE] = CLASS_UNKNOWN,        [ERR_DESTINATION] = CLASS_DESTINATION,
        [ERR_TRANSIENT] = CLASS_TRANSIENT, [ERR_PERMANENT] = CLASS_PERMANENT,
        [ERR_UNKNOWN] = CLASS_UNKNOWN,     [ERR_REJECTED] = CLASS_PERMANENT,
        [ERR_STOP] = CLASS_STOP,
    };
    metric_add(state->metrics, METRIC_RELAY_RETRIES, (int) classes[err->cls], 1);
}

/* The same failure again is counted, not printed. */
static void
say_failure(struct relay_state *state, const char *event, enum health_state to,
            const struct error *err)
{
    bool changed = health_set(state->health, to, err->text, err->hint);
    if (changed || strcmp(state->last_failure, err->code) != 0)
        log_failure(err->cls == ERR_STOP ? LOG_ERROR : LOG_WARN, event, err);
    snprintf(state->last_failure, sizeof(state->last_failure), "%s", err->code);
    count_failure(state, err);
}

void
relay_state_paused(struct relay_state *state, const struct error *cause)
{
    say_failure(state, "relay.paused", HEALTH_PAUSED, cause);
}

void
relay_state_failed(struct relay_state *state, const struct error *err)
{
    metric_set_value(state->metrics, METRIC_LANES, 0, 0);
    say_failure(state, err->cls == ERR_STOP ? "relay.halted" : "relay.failed",
                err->cls == ERR_STOP ? HEALTH_HALTED : HEALTH_PAUSED, err);
}

void
relay_state_stopped(struct relay_state *state)
{
    health_set(state->health, HEALTH_STOPPED, "told to stop", "");
}

void
relay_state_tell(struct relay_state *state, struct pgconn *conn, const struct lanes *lanes,
                 int64_t quiet_us)
{
    if (lanes->relay != 0) /* else it is not known to its database */
        presence_tell(&state->presence, conn, &lanes->owner, lanes->relay, state->health, quiet_us);
}
