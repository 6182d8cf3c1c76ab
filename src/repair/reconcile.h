/*
 * reconcile.h — whether what the outboxes have published is what a consumer has decided on:
 * events without an outcome (lost) and outcomes without an event (foreign), what is in flight
 * left out.  docs/guide/reconcile.md says what is compared, reconcile.c why none is a false alarm.
 *
 * Threads: one at a time per call; connections are its own, and it only reads.
 * Memory:  flat: pages of ids, and a list with an end.  reconcile_release() frees the report.
 */
#ifndef PR_RECONCILE_H
#define PR_RECONCILE_H

#include "config/config.h"
#include "core/arena.h"
#include "core/clock.h"
#include "core/error.h"

enum { RECONCILE_LISTED = 1000 }; /* differences that are named; all are counted */

/* What a consumer has made of an event. */
enum reconcile_outcome {
    RECONCILE_APPLIED,
    RECONCILE_HIT,
    RECONCILE_STALE,
    RECONCILE_REJECTED,
    RECONCILE_IGNORED,
    RECONCILE_PARKED,
    RECONCILE_DEAD,
    RECONCILE_DISCARDED,
    RECONCILE_OUTCOMES,
};

enum reconcile_kind { RECONCILE_LOST, RECONCILE_FOREIGN };

struct reconcile_difference {
    enum reconcile_kind kind;
    const char *event_id;
    const char *aggregate_type; /* of a lost one; a foreign one is known by its id alone */
    const char *aggregate_id;
    int64_t version;
    const char *relay;              /* that published a lost one */
    enum reconcile_outcome outcome; /* of a foreign one */
};

struct reconcile_report {
    struct arena arena;
    char since[CLOCK_TEXT];   /* events before this were not looked at; "" : all were */
    char foreign[CLOCK_TEXT]; /* outcomes of older ids were not looked for in the outbox */
    int64_t published, pending, held, given_up; /* by the relays' word, of the consumer's topic */
    int64_t in_flight;                          /* published, and the consumer is not there yet */
    int64_t outcomes[RECONCILE_OUTCOMES];       /* of published events */
    int64_t lost, foreign_count;
    struct reconcile_difference *list;
    size_t count, cap;
};

struct reconcile_wish {
    int64_t since_ms; /* since 1970; 0: as far as the records reach */
    int stop_fd;      /* readable: give up, with code reconcile.stopped; -1: none */
};

bool reconcile_run(const struct config *config, const struct consumer_config *consumer,
                   const struct reconcile_wish *wish, struct reconcile_report *ret,
                   struct error *err) PR_MUSTCHECK;
/* Writes what was found where `postrider status` reads it. */
bool reconcile_record(const struct consumer_config *consumer, const struct reconcile_report *report,
                      struct error *err) PR_MUSTCHECK;
void reconcile_release(struct reconcile_report *report);

const char *reconcile_outcome_name(enum reconcile_outcome outcome);

/* Waits; false, with reconcile.stopped, if `stop_fd` became readable. */
bool reconcile_pause(int stop_fd, int ms, struct error *err) PR_MUSTCHECK;

#endif
