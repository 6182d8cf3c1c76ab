/*
 * origins.h — where events that a consumer misses are: in which outbox of the
 * configuration, and what its relay has made of them.
 *
 * Threads: the main thread.
 * Memory:  origins_release() frees; connections stay open until then.
 */
#ifndef PR_CLI_ORIGINS_H
#define PR_CLI_ORIGINS_H

#include "config/config.h"
#include "core/error.h"
#include "pg/pgconn.h"

struct origins {
    const struct config *config;
    struct pgconn **conns; /* one for each outbox, NULL: not asked yet */
};

/* Versions of one stream, in the text form of PostgreSQL's arrays: "{2,6}" and "{3,6}". */
struct origins_wanted {
    const char *aggregate_type;
    const char *aggregate_id;
    const char *from;
    const char *to;
};

/* One event that is there; the texts are lent for the call. */
struct origin {
    int64_t version;
    const char *event_id;
    const char *state; /* PENDING, PUBLISHED, PARKED, DEAD, FILTERED; of another table: its own */
    const char *relay;
};

typedef void (*origins_visit)(const struct origin *origin, void *arg);

void origins_init(struct origins *o, const struct config *config);
void origins_release(struct origins *o);

/* Visits those that are in an outbox whose relay feeds this destination; 100 at most. */
bool origins_find(struct origins *o, const struct destination_config *destination,
                  const struct origins_wanted *wanted, origins_visit on, void *arg,
                  struct error *err) PR_MUSTCHECK;

#endif
