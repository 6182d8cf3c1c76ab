/*
 * transport.h — the contract of everything that carries messages.
 *
 * A transport is a table of functions and a struct that embeds `struct transport`
 * first.  The worker sends messages in order, then settles: the transport reports
 * the other side's own word on each.  "Queued" is not that word.
 *
 * Failure model: `TRANSPORT_PREFIX` promises that when one message of a partition is
 * not stored, none after it is.  docs/internals/transports.md has the reasons.
 *
 * Threads: one worker owns a transport; it may use threads of its own inside.
 * Memory:  a message is lent until its receipt has been reported.
 */
#ifndef PR_TRANSPORT_H
#define PR_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/config.h"
#include "core/error.h"
#include "core/uuid.h"

struct slice {
    const void *data;
    size_t len;
};

struct header {
    const char *name;
    struct slice value;
};

struct message {
    struct uuid event_id;
    const char *topic;
    int part;
    struct slice key;
    struct slice body;
    const struct header *headers;
    int header_count;
    int lane;        /* whom it comes from … */
    int64_t epoch;   /* … and under which epoch that lane is owned */
    uint32_t cookie; /* the caller's own number for it */
};

enum fail_model { TRANSPORT_PREFIX, TRANSPORT_INDEPENDENT };
enum durability {
    DURABLE_NOT,
    DURABLE_MEMORY,
    DURABLE_PAGECACHE,
    DURABLE_REPLICATED,
    DURABLE_FSYNC,
    DURABLE_BY_TOPIC
};

struct transport_caps {
    enum fail_model fail_model;
    enum durability durability; /* what a confirm means, printed at start */
    size_t max_queue;           /* messages sent and not settled, at most … */
    size_t max_bytes;           /* … and bytes of their bodies */
};

/* What the other side said about one message. */
struct receipt {
    uint32_t cookie;
    enum error_class cls; /* ERR_NONE: stored */
};

struct receipts {
    struct receipt *list; /* the caller's array … */
    size_t cap;           /* … of at least max_queue */
    size_t count;
};

struct transport {
    const struct transport_ops *ops;
    struct transport_caps caps;
};

struct transport_ops {
    const char *kind; /* the word in the configuration */

    /* Connects.  `writer` names the relay to a destination that fences by it. */
    bool (*open)(const struct destination_config *config, const char *purpose,
                 const struct uuid *writer, struct transport **ret, struct error *err);

    /*
     * Makes sure that a topic exists with *partitions partitions (0: with as many as it
     * has, which are told).  ERR_PERMANENT means that the name itself is impossible here.
     */
    bool (*topic)(struct transport *t, const char *topic, int *partitions, struct error *err);

    /* Takes a message; it is not stored yet. */
    bool (*send)(struct transport *t, const struct message *message, struct error *err);

    /*
     * Moves on and waits for news until `until_us` (clock_mono_us); 0: does not wait.
     * Appends the receipts that came.  Failed ones: err tells why, the result is false,
     * and nothing is in flight any more.
     */
    bool (*settle)(struct transport *t, int64_t until_us, struct receipts *ret, struct error *err);

    /*
     * The epoch another process has used for a lane of ours at the destination; 0: none.
     * NULL in a transport that does not fence.
     */
    bool (*fence)(struct transport *t, int lane, int64_t *ret, struct error *err);

    /*
     * Whether what is under way waits for an other side that is away, although nothing has
     * failed; ret says so.  NULL in a transport that fails at once.
     */
    bool (*waiting)(struct transport *t, struct error *ret);

    /* What is under way is given up: the other side may still store it, messages are no
     * longer lent. */
    void (*close)(struct transport *t);
};

/* NULL if no transport of that name is built in. */
const struct transport_ops *transport_find(const char *kind);

const char *durability_name(enum durability durability);

extern const struct transport_ops transport_postgres;
extern const struct transport_ops transport_file;
extern const struct transport_ops transport_kafka; /* if built with it */
extern const struct transport_ops transport_null;

#endif
