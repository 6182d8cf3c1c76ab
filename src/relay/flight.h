/*
 * flight.h — messages on their way to one destination, in order, until each has the
 * other side's word.
 *
 * For a destination that fails by prefix: when a message is not stored, nothing behind
 * it in its partition is either, so the flight waits until nothing is under way and
 * sends again, in order, what has no word.  docs/internals/transports.md.
 *
 * Threads: one worker owns it.
 * Memory:  messages are lent until flight_settled() is true, or the next flight_load().
 */
#ifndef PR_FLIGHT_H
#define PR_FLIGHT_H

#include <stdbool.h>
#include <stdint.h>

#include "relay/lanes.h"
#include "transport/transport.h"

struct flight {
    struct transport *transport; /* the worker's; may change between calls */
    struct message *messages;
    uint32_t count;
    uint32_t settled; /* all before it have the other side's word, or are dropped */
    uint32_t sent;    /* all before it have been handed to the transport */
    bool *stored;     /* per message */
    struct receipts receipts;
    uint32_t cap;
};

void flight_release(struct flight *flight);

/* A new load; the messages' cookies are set here. */
void flight_load(struct flight *flight, struct message *messages, uint32_t count);

bool flight_settled(const struct flight *flight);

/*
 * Sends what the transport takes, of lanes in `owned` only, and waits for news until
 * `until_us`.  On failure nothing is under way any more, and the next call sends again
 * what has no word.  *ret_stored counts the new confirms.
 */
bool flight_move(struct flight *flight, lane_set owned, int64_t until_us, uint32_t *ret_stored,
                 struct error *err) PR_MUSTCHECK;

#endif
