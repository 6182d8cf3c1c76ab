/*
 * health.h — whether each worker makes progress, told by what it has done and not by
 * its being alive.
 *
 * A worker is ready if it is running, its last good round was at most 15 s ago, and
 * nothing that is due has waited longer than the limit (60 s).
 *
 * Threads: the worker writes, the HTTP thread reads.
 * Memory:  health_free() after the HTTP server stopped.
 */
#ifndef PR_HEALTH_H
#define PR_HEALTH_H

#include <stdbool.h>
#include <stdint.h>

#include "core/strbuf.h"

/* Paused goes on by itself, halted needs a person, stopped was told to. */
enum health_state {
    HEALTH_STARTING,
    HEALTH_RUNNING,
    HEALTH_PAUSED,
    HEALTH_HALTED,
    HEALTH_STOPPED,
    HEALTH_STATES,
};

struct health;

struct health *health_new(const char *kind, const char *name); /* "relay", "consumer" */
void health_free(struct health *health);                       /* NULL is fine */

/* A round in which everything asked for was answered. */
void health_progress(struct health *health);

/* True if the state changed; `reason` and what to do about it, both "" when running. */
bool health_set(struct health *health, enum health_state state, const char *reason,
                const char *hint);

/* What a worker says of itself; `changes` counts how often it said something else. */
struct health_word {
    enum health_state state;
    int64_t changes;
    char reason[800];
    char hint[400];
};
void health_word(const struct health *health, struct health_word *ret);

/* Something has been due since this moment of clock_mono_us(); 0: nothing is. */
void health_due(struct health *health, int64_t since_us);

/* How long ago the last progress was, and for how long something has been due; 0: nothing is. */
void health_ages(const struct health *health, int64_t *ret_quiet_us, int64_t *ret_due_us);

/* {"ready":…,"workers":[…]}; returns whether all are ready. */
bool health_report(struct strbuf *out);

const char *health_state_name(enum health_state state);

#endif
