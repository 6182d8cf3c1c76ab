/*
 * incoming.h — one message as a consumer received it, and what its headers say.
 *
 * Whoever can write to a topic can write anything there: incoming_decode() is a pure
 * function over foreign bytes, and what it lets pass can be stored as it is.  A message
 * that is no event of ours is `foreign` and keeps what was received.
 *
 * Threads: the owner's.
 * Memory:  lends from the result or row it was read from; decoded texts lie in the arena.
 */
#ifndef PR_INCOMING_H
#define PR_INCOMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/digest.h"
#include "core/uuid.h"
#include "transport/transport.h"

struct incoming {
    const char *source; /* which log it comes from, stable */
    const char *topic;
    int32_t part;
    int64_t off;
    int64_t at_us;         /* when it was appended, the log's clock; 0: not known */
    struct uuid origin_id; /* the id the log keeps beside the message … */
    bool has_origin_id;    /* … if it has one */
    struct slice key;      /* data NULL: none */
    struct slice body;
    const struct header *headers;
    int header_count;

    /* From the headers: */
    const char
        *foreign; /* why this is no event of ours, NULL if it is one; the rest is then unset */
    struct uuid event_id;
    const char *aggregate_type;
    const char *aggregate_id;
    const char *event_type;
    int64_t version;
    int64_t prev; /* -1: the relay stamped none */
    const char *occurred_at;
    int64_t occurred_at_pg;   /* since 2000; INT64_MIN and INT64_MAX are the infinities */
    const char *content_type; /* NULL: none */
    unsigned char digest[DIGEST_BYTES];
};

/* Fills in what the headers say. */
void incoming_decode(struct incoming *in, struct arena *arena);

/* The value of the first header of this name, or NULL. */
const struct slice *incoming_header(const struct incoming *in, const char *name);

#endif
