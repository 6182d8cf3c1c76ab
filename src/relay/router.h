/*
 * router.h — where an event goes: topic from the destination's template, partition by
 * the hash of its key.  The same event always goes to the same place: the partition
 * count of a topic is fixed at its first use and a change is refused.
 *
 * Threads: one worker owns it.
 * Memory:  topics found live until router_free().
 */
#ifndef PR_ROUTER_H
#define PR_ROUTER_H

#include <stdbool.h>
#include <stdint.h>

#include "config/config.h"
#include "core/error.h"
#include "pg/pgconn.h"
#include "source/poll/window.h"
#include "transport/transport.h"

struct route {
    const char *topic;
    int partitions;
    struct error *refusal; /* NULL, or why the destination cannot have a topic of this name */
};

struct router;

struct router *router_new(int16_t relay, const struct destination_config *destination);
void router_free(struct router *router); /* NULL is fine */

/* Topics made sure of at the destination are asked for again after it was reopened. */
void router_forget(struct router *router);

/* Names refused earlier are asked for again. */
void router_retry_refused(struct router *router);

/* The route of these rows, or NULL if it has not been opened yet. */
const struct route *router_find(struct router *router, const char *aggregate_type);

/*
 * Makes sure of the topic at the destination and fixes its partition count in the outbox
 * database.  A name that the destination can never have makes a route with a refusal.
 * Errors: relay.partitions (stop), and the transport's.
 */
bool router_open(struct router *router, struct pgconn *conn, struct transport *transport,
                 const char *aggregate_type, struct error *err) PR_MUSTCHECK;

/* Partition of a key: Kafka's own mapping, on every transport. */
int route_partition(const char *key, size_t len, int partitions);

#endif
