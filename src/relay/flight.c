#include "relay/flight.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/failpoint.h"

void
flight_release(struct flight *flight)
{
    free(flight->stored);
    free(flight->receipts.list);
    *flight = (struct flight){0};
}

void
flight_load(struct flight *flight, struct message *messages, uint32_t count)
{
    if (count > flight->cap) {
        flight->cap = count;
        flight->stored = xrealloc(flight->stored, count * sizeof(*flight->stored));
        flight->receipts.list =
            xrealloc(flight->receipts.list, count * sizeof(*flight->receipts.list));
        flight->receipts.cap = count;
    }
    flight->messages = messages;
    flight->count = count;
    flight->settled = flight->sent = 0;
    for (uint32_t i = 0; i < count; i++) {
        messages[i].cookie = i;
        flight->stored[i] = false;
    }
}

bool
flight_settled(const struct flight *flight)
{
    return flight->settled == flight->count;
}

static bool
send_more(struct flight *flight, lane_set owned, struct error *err)
{
    size_t queued = 0;

    for (uint32_t i = flight->settled; i < flight->sent; i++)
        queued += !flight->stored[i];
    while (flight->sent < flight->count && queued < flight->transport->caps.max_queue) {
        const struct message *m = &flight->messages[flight->sent];
        /* What was stored before a failure is not sent again; a lost lane's is its new owner's. */
        if (!flight->stored[flight->sent] && (owned & (1 << m->lane))) {
            if (!flight->transport->ops->send(flight->transport, m, err))
                return false;
            queued++;
        } else {
            flight->stored[flight->sent] = true;
        }
        flight->sent++;
    }
    return true;
}

bool
flight_move(struct flight *flight, lane_set owned, int64_t until_us, uint32_t *ret_stored,
            struct error *err)
{
    bool ok;

    *ret_stored = 0;
    flight->receipts.count = 0;
    ok = send_more(flight, owned, err);
    FAILPOINT("relay.sent");
    if (ok)
        ok = flight->transport->ops->settle(flight->transport, until_us, &flight->receipts, err);
    for (size_t i = 0; i < flight->receipts.count; i++) {
        const struct receipt *receipt = &flight->receipts.list[i];
        if (receipt->cls == ERR_NONE && !flight->stored[receipt->cookie]) {
            flight->stored[receipt->cookie] = true;
            (*ret_stored)++;
        }
    }
    while (flight->settled < flight->sent && flight->stored[flight->settled])
        flight->settled++;
    if (!ok)
        flight->sent = flight->settled;
    return ok;
}
