/*
 * presence.h — a worker's state as its database shows it to `postrider status` on any
 * machine: its row of postrider.instance.
 *
 * What cannot be told is no failure of the worker's: it is tried again with the next word.
 *
 * Threads: the worker's.
 * Memory:  lends the texts it is made with.
 */
#ifndef PR_PRESENCE_H
#define PR_PRESENCE_H

#include <stdint.h>

#include "core/uuid.h"
#include "metrics/health.h"
#include "pg/pgconn.h"

struct presence {
    const char *side; /* "relay", "consumer" */
    const char *name;
    char host[64];
    int64_t lease_us;
    int64_t told; /* health_changes() when it was last told; -1: never */
};

void presence_init(struct presence *p, const char *side, const char *name, int64_t lease_us);

/*
 * Tells the state if it is another than the one told, or if there will be no sign for
 * `quiet_us`.  The connection must be free, and hold no transaction.
 */
void presence_tell(struct presence *p, struct pgconn *conn, const struct uuid *id, int16_t reader,
                   const struct health *health, int64_t quiet_us);

#endif
