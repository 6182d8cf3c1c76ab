/*
 * state.h — what a relay tells the outside: one place that turns its steps into log
 * lines, metrics and health, so that the worker's own text stays about the work.
 *
 * Threads: the worker writes; the HTTP thread reads what lies behind it.
 */
#ifndef PR_RELAY_STATE_H
#define PR_RELAY_STATE_H

#include "config/config.h"
#include "core/error.h"
#include "relay/lanes.h"
#include "source/poll/window.h"

struct relay_state;

struct relay_state *relay_state_new(const struct relay_config *config);
void relay_state_free(struct relay_state *state);

/* The database's clock, seen now: ages and latencies are counted on it. */
void relay_state_clock(struct relay_state *state, int64_t server_us);

void relay_state_round(struct relay_state *state, const struct lanes *lanes); /* a good look */
void relay_state_window(struct relay_state *state, int rows);
void relay_state_alive(struct relay_state *state); /* busy with something long */

/* Rows are due since this moment (the database's clock), and not published. */
void relay_state_pending(struct relay_state *state, int64_t inserted_at_us);

/* The destination confirmed so many more messages. */
void relay_state_published(struct relay_state *state, uint32_t stored);

/* All rows of a reading are dealt with: counts their latency and looks at their order. */
void relay_state_settled(struct relay_state *state, const struct outbox_row *rows, int count);

/* The destination stored a message although an earlier one of its stream was not. */
void relay_state_breaches(struct relay_state *state, int64_t count);

/* Events that became dead letters, and the streams held back now. */
void relay_state_dead(struct relay_state *state, int count);
void relay_state_held(struct relay_state *state, int streams);

/* Lanes may have been another's meanwhile: what was seen of their order no longer counts. */
void relay_state_forget(struct relay_state *state);

void relay_state_paused(struct relay_state *state, const struct error *cause);
void relay_state_failed(struct relay_state *state, const struct error *err);
void relay_state_stopped(struct relay_state *state);

/*
 * Shows in the outbox database how the relay is, if that has changed or there will be no
 * sign for `quiet_us`.  The connection must be free.
 */
void relay_state_tell(struct relay_state *state, struct pgconn *conn, const struct lanes *lanes,
                      int64_t quiet_us);

#endif
