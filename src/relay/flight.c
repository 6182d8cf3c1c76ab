#include "relay/flight.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/failpoint.h"

void
flight_release(struct flight *flight)
{
    free(flight->slots);
    free(flight->receipts.list);
    *flight = (struct flight){0};
}

void
flight_load(struct flight *flight, struct message *messages, uint32_t count)
{
    if (count > flight->cap) {
        flight->cap = count;
        flight->slots = xrealloc(flight->slots, count * sizeof(*flight->slots));
        flight->receipts.list =
            xrealloc(flight->receipts.list, count * sizeof(*flight->receipts.list));
        flight->receipts.cap = count;
    }
    flight->messages = messages;
    flight->count = count;
    flight->settled = flight->sent = 0;
    for (uint32_t i = 0; i < count; i++) {
        messages[i].cookie = i;
        flight->slots[i] = (struct slot){0};
    }
}

bool
flight_settled(const struct flight *flight)
{
    return flight->settled == flight->count;
}

void
flight_decide(struct flight *flight, uint32_t n, enum fate fate)
{
    flight->slots[n].fate = fate;
}

/* ------------------------------------------------------------------ sending */

/* What is sent and has no word. */
struct under_way {
    uint32_t count;
    size_t bytes;
};

static struct under_way
under_way(const struct flight *flight)
{
    struct under_way way = {0};

    for (uint32_t i = flight->settled; i < flight->sent; i++) {
        if (flight->slots[i].fate != FATE_OPEN)
            continue;
        way.count++;
        way.bytes += flight->messages[i].body.len;
    }
    return way;
}

static bool
has_room(const struct flight *flight, const struct under_way *way, const struct slot *slot,
         const struct message *m)
{
    const struct transport_caps *caps = &flight->transport->caps;

    if (way->count == 0)
        return true;
    return !slot->alone && way->count < caps->max_queue &&
           way->bytes + m->body.len <= caps->max_bytes;
}

static bool
send_more(struct flight *flight, lane_set owned, struct under_way *way, struct error *err)
{
    bool alone = false;

    *way = under_way(flight);
    for (uint32_t i = flight->settled; way->count == 1 && i < flight->sent; i++)
        alone |= flight->slots[i].fate == FATE_OPEN && flight->slots[i].alone;
    for (; flight->sent < flight->count && !alone; flight->sent++) {
        const struct message *m = &flight->messages[flight->sent];
        struct slot *slot = &flight->slots[flight->sent];
        /* What was stored before a failure is not sent again; a lost lane's is its new owner's. */
        if (slot->fate == FATE_OPEN && !(owned & (1 << m->lane)))
            slot->fate = FATE_LOST;
        if (slot->fate != FATE_OPEN)
            continue;
        if (!has_room(flight, way, slot, m))
            break;
        if (!flight->transport->ops->send(flight->transport, m, err))
            return false;
        way->count++;
        way->bytes += m->body.len;
        alone = slot->alone;
    }
    return true;
}

/* ------------------------------------------------------------------ the other side's word */

static bool
same_stream(const struct message *a, const struct message *b)
{
    return a->part == b->part && a->key.len == b->key.len &&
           memcmp(a->key.data, b->key.data, a->key.len) == 0 && strcmp(a->topic, b->topic) == 0;
}

/* The promise behind the whole algorithm is watched: a breach would be a reordered stream. */
static void
watch_promise(struct flight *flight)
{
    for (uint32_t later = flight->settled; later < flight->sent; later++) {
        if (flight->slots[later].fate != FATE_STORED)
            continue;
        for (uint32_t i = flight->settled; i < later; i++) {
            if (flight->slots[i].fate == FATE_OPEN &&
                same_stream(&flight->messages[i], &flight->messages[later])) {
                flight->breaches++;
                break;
            }
        }
    }
}

static void
take_receipts(struct flight *flight, bool was_alone, struct flight_news *ret)
{
    for (size_t i = 0; i < flight->receipts.count; i++) {
        const struct receipt *receipt = &flight->receipts.list[i];
        struct slot *slot = &flight->slots[receipt->cookie];
        if (slot->fate != FATE_OPEN)
            continue;
        if (receipt->cls == ERR_NONE) {
            slot->fate = FATE_STORED;
            ret->stored++;
        } else if (receipt->cls == ERR_PERMANENT && was_alone) {
            ret->refused = receipt->cookie;
        } else if (receipt->cls == ERR_PERMANENT) {
            slot->alone = true;
            ret->parted = true;
        }
    }
}

bool
flight_move(struct flight *flight, lane_set owned, int64_t until_us, struct flight_news *ret,
            struct error *err)
{
    struct under_way way;
    bool ok;

    *ret = (struct flight_news){.refused = -1};
    flight->receipts.count = 0;
    ok = send_more(flight, owned, &way, err);
    FAILPOINT("relay.sent");
    if (ok)
        ok = flight->transport->ops->settle(flight->transport, until_us, &flight->receipts, err);
    take_receipts(flight, way.count == 1, ret);
    while (flight->settled < flight->sent && flight->slots[flight->settled].fate != FATE_OPEN)
        flight->settled++;
    if (!ok) {
        watch_promise(flight);
        flight->sent = flight->settled;
    }
    return ok;
}
