/*
 * null.c — takes everything and keeps nothing: measures what a relay costs by itself,
 * and tries a configuration without a broker.
 */
#include <stdlib.h>

#include "core/alloc.h"
#include "transport/transport.h"

enum { MAX_QUEUE = 16384 };

struct null_transport {
    struct transport base;
    uint32_t sent[MAX_QUEUE];
    size_t count;
};

static bool
null_open(const struct destination_config *config, const char *purpose, const struct uuid *writer,
          struct transport **ret, struct error *err)
{
    struct null_transport *t = xcalloc(1, sizeof(*t));

    (void) config;
    (void) purpose;
    (void) writer;
    (void) err;
    t->base.ops = &transport_null;
    t->base.caps = (struct transport_caps){.fail_model = TRANSPORT_PREFIX,
                                           .durability = DURABLE_NOT,
                                           .max_queue = MAX_QUEUE,
                                           .max_bytes = SIZE_MAX};
    *ret = &t->base;
    return true;
}

static bool
null_topic(struct transport *base, const char *topic, int *partitions, struct error *err)
{
    (void) base;
    (void) topic;
    (void) partitions;
    (void) err;
    return true;
}

static bool
null_send(struct transport *base, const struct message *message, struct error *err)
{
    struct null_transport *t = (struct null_transport *) base;

    (void) err;
    PR_CHECK(t->count < MAX_QUEUE);
    t->sent[t->count++] = message->cookie;
    return true;
}

static bool
null_settle(struct transport *base, int64_t until_us, struct receipts *ret, struct error *err)
{
    struct null_transport *t = (struct null_transport *) base;

    (void) until_us;
    (void) err;
    for (size_t i = 0; i < t->count; i++)
        ret->list[ret->count++] = (struct receipt){.cookie = t->sent[i], .cls = ERR_NONE};
    t->count = 0;
    return true;
}

static void
null_close(struct transport *base)
{
    free(base);
}

const struct transport_ops transport_null = {
    .kind = "null",
    .open = null_open,
    .topic = null_topic,
    .send = null_send,
    .settle = null_settle,
    .close = null_close,
};
