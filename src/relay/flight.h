/*
 * flight.h — messages on their way to one destination, in order, until the fate of each
 * is known.
 *
 * For a destination that fails by prefix: when a message is not stored, nothing behind
 * it in its partition is either, so the flight waits until nothing is under way and
 * sends again, in order, what has no word.  A refusal of several at once proves nothing
 * about any of them: they are sent again one at a time, and only a message that is
 * refused alone is handed back as refused.  docs/internals/transports.md.
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

enum fate {
    FATE_OPEN = 0, /* not known yet */
    FATE_STORED,   /* the other side has confirmed it */
    FATE_DEAD,     /* refused alone, for what it is */
    FATE_WAITING,  /* behind a dead one of its stream: not to be sent */
    FATE_LOST,     /* its lane belongs to another process now */
};

struct slot {
    enum fate fate;
    bool alone; /* was refused together with others: goes by itself now */
};

struct flight {
    struct transport *transport; /* the worker's; may change between calls */
    struct message *messages;
    uint32_t count;
    uint32_t settled; /* the fate of all before it is known */
    uint32_t sent;    /* all before it have been handed to the transport, or need not be */
    struct slot *slots;
    struct receipts receipts;
    uint32_t cap;
    int64_t breaches; /* messages stored although an earlier one of their stream was not */
};

void flight_release(struct flight *flight);

/* A new load; the messages' cookies are set here. */
void flight_load(struct flight *flight, struct message *messages, uint32_t count);

bool flight_settled(const struct flight *flight);

/* What a call has changed. */
struct flight_news {
    uint32_t stored; /* new confirms */
    bool parted;     /* a refusal of several: they go one at a time from now on */
    int64_t refused; /* the message refused alone, to be given a fate by the caller; else -1 */
};

/*
 * Sends what the transport takes, of lanes in `owned` only, and waits for news until
 * `until_us`.  On failure nothing is under way any more, and the next call sends again
 * what has no word; err is about the destination unless news says `parted` or `refused`.
 */
bool flight_move(struct flight *flight, lane_set owned, int64_t until_us, struct flight_news *ret,
                 struct error *err) PR_MUSTCHECK;

/* The caller's decision about a message that is not under way. */
void flight_decide(struct flight *flight, uint32_t n, enum fate fate);

#endif
