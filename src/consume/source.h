/*
 * source.h — the contract between a consumer and what it reads: the log in a PostgreSQL
 * database (intake.c) or a topic of Kafka (kafka_source.c).
 *
 * Positions lie in the consumer's own database; a source reads from them, says whether
 * it still is what they speak of, and never moves one by itself.
 *
 * Threads: one worker owns a source.
 * Memory:  the messages of a batch live until source_batch_release() or the next reading.
 */
#ifndef PR_SOURCE_H
#define PR_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include "config/config.h"
#include "consume/incoming.h"
#include "consume/partitions.h"
#include "core/error.h"

struct source_batch {
    struct arena arena;
    struct incoming *items;
    int count;
    void **held; /* what the messages point into ... */
    int held_count;
    void (*let_go)(void *held); /* ... and how each is given back */
};

struct source {
    const struct source_ops *ops;
    const struct consumer_config *config;
    char id[UUID_TEXT]; /* of the log or cluster, stable */
    int64_t server_us;  /* its clock when it was last asked */
    bool asked;         /* a reading is under way */
    bool changed;       /* what may be claimed is another: read anew */
};

struct source_ops {
    bool (*open)(const struct consumer_config *config, struct source **ret, struct error *err);
    void (*close)(struct source *s);
    bool (*ok)(const struct source *s);
    void (*stop_on)(struct source *s, int stop_fd, int grace_ms);

    /* All partitions of the topic; none if it does not exist yet.  The caller frees *ret. */
    bool (*bounds)(struct source *s, struct partition_bounds **ret, int *ret_count,
                   struct error *err);
    /* Fills start_off with the first message of this time or later. */
    bool (*find_time)(struct source *s, int64_t us, struct partition_bounds *bounds, int count,
                      struct error *err);

    /*
     * Whether positions and source fit.  Errors (stop): consumer.went_back,
     * consumer.overtaken.
     */
    bool (*check)(struct source *s, const struct partitions *partitions, struct error *err);

    /* Takes part in a group and says what may be claimed.  NULL: the leases alone do. */
    bool (*join)(struct source *s, struct partitions *partitions, struct error *err);
    /* Reads from read_off of what is owned from now on.  NULL: `ask` says so each time. */
    bool (*seek)(struct source *s, struct partitions *partitions, struct error *err);
    /* Of what is not full. */
    bool (*ask)(struct source *s, struct partitions *partitions, int limit, struct error *err);
    /* Waits for what was asked for; moves read_off. */
    bool (*take)(struct source *s, struct partitions *partitions, struct source_batch *ret,
                 struct error *err);
    /* Tells the other side where we are, for its own displays.  NULL: it has none. */
    void (*tell)(struct source *s, const struct partitions *partitions);
};

bool source_open(const struct consumer_config *config, struct source **ret,
                 struct error *err) PR_MUSTCHECK;
void source_close(struct source *s); /* NULL is fine */

/* Fills in where a consumer without positions begins. */
bool source_start(struct source *s, struct partition_bounds *bounds, int count,
                  struct error *err) PR_MUSTCHECK;
void source_batch_release(struct source_batch *batch);

/* What both kinds say; false. */
bool source_overtaken(const struct source *s, int64_t part, int64_t ours, int64_t first,
                      struct error *err);
bool source_went_back(const struct source *s, int64_t part, int64_t ours, int64_t next,
                      struct error *err);

extern const struct source_ops source_postgres;
extern const struct source_ops source_kafka; /* if built with it */

#endif
