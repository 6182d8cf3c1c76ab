/*
 * state.h — what a consumer tells the outside: one place that turns its steps into log
 * lines, metrics and health, so that the other files stay about the work.
 *
 * Threads: the worker writes; the HTTP thread reads what lies behind it.
 */
#ifndef PR_CONSUME_STATE_H
#define PR_CONSUME_STATE_H

#include <stdint.h>

#include "consume/applier.h"
#include "consume/limits.h"
#include "core/error.h"

struct consumer_state;

struct consumer_state *consumer_state_new(const struct consumer_config *config);
void consumer_state_free(struct consumer_state *state); /* NULL is fine */

/* The log's clock, seen now: ages and latencies are counted on it. */
void consumer_state_clock(struct consumer_state *state, int64_t server_us);

/* A good look: everything asked for was answered. */
void consumer_state_round(struct consumer_state *state, const struct partitions *partitions);

/* A message appended at this moment of the log's clock is next to be decided; 0: none is. */
void consumer_state_pending(struct consumer_state *state, int64_t at_us);

void consumer_state_lag(struct consumer_state *state, int64_t messages);
void consumer_state_parked(struct consumer_state *state, const struct parked *parked);

/* What is not read because too much is parked; `lag` of all partitions. */
void consumer_state_limits(struct consumer_state *state, const struct limits *limits, int64_t lag);

/* Committed. */
void consumer_state_decided(struct consumer_state *state, const struct work *works, int count);

/* A handler failed on an event, which is parked for it. */
void consumer_state_retry(struct consumer_state *state, const struct failure *failure,
                          const struct work *work);

/* Nothing can be done for now; err tells why, and what a person should do. */
void consumer_state_failed(struct consumer_state *state, const struct error *err);

/* Nothing is wrong, but there is nothing to read from yet. */
void consumer_state_waiting(struct consumer_state *state, const char *topic);

void consumer_state_stopped(struct consumer_state *state);

/*
 * Shows in the consumer's database how it is, if that has changed or there will be no sign
 * for `quiet_us`.  Between transactions only.
 */
void consumer_state_tell(struct consumer_state *state, const struct applier *a, int64_t quiet_us);

#endif
