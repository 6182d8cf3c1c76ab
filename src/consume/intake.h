/*
 * intake.h — messages out of the log in a PostgreSQL database, read ahead of what is
 * being applied.
 *
 * Offsets of the log are dense and in commit order, so a hole in what was read means
 * that messages were dropped under us, and says so instead of jumping.
 *
 * Threads: one worker owns an intake.
 * Memory:  the messages of a batch lie in the batch's arena and result, until
 *          intake_batch_release() or the next reading into it.
 */
#ifndef PR_INTAKE_H
#define PR_INTAKE_H

#include <stdbool.h>
#include <stdint.h>

#include "config/config.h"
#include "consume/incoming.h"
#include "consume/partitions.h"
#include "core/error.h"
#include "pg/pgconn.h"

struct intake {
    struct pgconn *conn;
    const char *topic;
    char log_id[UUID_TEXT];
    int64_t server_us; /* the log's clock at the last intake_open() or intake_bounds() */
    bool asked;        /* a reading is under way ... */
    int limit;         /* ... for this many messages */
    int turn;          /* which partition is asked first, so that none starves */
};

struct intake_batch {
    struct arena arena;
    PGresult *res; /* the messages point into it */
    struct incoming *items;
    int count;
};

bool intake_open(struct intake *intake, const struct consumer_config *config,
                 struct error *err) PR_MUSTCHECK;
void intake_close(struct intake *intake);

/* All partitions of the topic; none if it does not exist yet.  The caller frees *ret. */
bool intake_bounds(struct intake *intake, struct partition_bounds **ret, int *ret_count,
                   struct error *err) PR_MUSTCHECK;

/*
 * Whether the log still is the one the positions speak of.  Errors (stop):
 * consumer.went_back (it was restored to an earlier state), consumer.overtaken (its
 * retention has dropped messages that were not read).
 */
bool intake_check(struct intake *intake, const struct partitions *partitions,
                  struct error *err) PR_MUSTCHECK;

/* Asks for up to `limit` messages from where the partitions have been read to. */
bool intake_ask(struct intake *intake, const struct partitions *partitions, int limit,
                struct error *err) PR_MUSTCHECK;

/*
 * Waits for what was asked for; moves read_off.  Messages of partitions not owned any more
 * are left out.  Errors (stop): consumer.overtaken, consumer.hole, consumer.twins (two
 * messages at one offset).
 */
bool intake_take(struct intake *intake, struct partitions *partitions, struct intake_batch *ret,
                 struct error *err) PR_MUSTCHECK;

void intake_batch_release(struct intake_batch *batch);

/*
 * One message from a binary result: key, header names, header values and body in four
 * columns from `col` on.  False if the headers are no such arrays.
 */
bool intake_content(const PGresult *res, int row, int col, struct arena *arena,
                    struct incoming *ret) PR_MUSTCHECK;

#endif
