#include "relay/publisher.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/backoff.h"
#include "core/clock.h"
#include "core/failpoint.h"
#include "core/log.h"
#include "pg/pgerror.h"
#include "relay/encoder.h"

enum {
    DRAIN_US = 2000000,        /* for what is under way when we are told to stop */
    SETTLE_SLICE_US = 500000,  /* a wait for the destination, between two looks at the lease */
    MOST_REFUSED_IN_A_ROW = 3, /* more events than that, and none taken: it is not the events */
};

bool
told_to_stop(struct stopping *stopping, int64_t wait_us)
{
    struct pollfd fd = {.fd = stopping->fd, .events = POLLIN};
    struct timespec ts = {.tv_sec = wait_us / 1000000, .tv_nsec = wait_us % 1000000 * 1000};

    if (stopping->by_us == 0 && ppoll(&fd, 1, &ts, NULL) > 0)
        stopping->by_us = clock_mono_us() + DRAIN_US;
    return stopping->by_us != 0;
}

void
publisher_close_destination(struct publisher *p)
{
    if (p->transport)
        p->transport->ops->close(p->transport);
    p->transport = NULL;
    if (p->router)
        router_forget(p->router);
}

void
publisher_forget(struct publisher *p)
{
    p->conn = NULL;
    held_release(&p->held);
    prevs_forget(&p->prevs);
}

void
publisher_release(struct publisher *p)
{
    publisher_close_destination(p);
    publisher_forget(p);
    flight_release(&p->flight);
    router_free(p->router);
}

static bool
connect_destination(struct publisher *p, struct error *err)
{
    const struct destination_config *destination = p->config->destination;
    const struct transport_ops *ops = transport_find(destination->transport);
    char purpose[96];

    if (p->transport)
        return true;
    PR_CHECK(ops != NULL); /* the configuration knows the same names */
    snprintf(purpose, sizeof(purpose), "destination %s", destination->name);
    if (!ops->open(destination, purpose, &p->writer, &p->transport, err))
        return false;
    log_info("relay.destination", F_STR("destination", destination->name),
             F_STR("confirmed_means", durability_name(p->transport->caps.durability)));
    return true;
}

bool
publisher_keep_lease(struct publisher *p, struct error *err)
{
    if (clock_mono_us() < p->lanes->renew_at_us)
        return true;
    if (!p->free_connection(p->arg, err) || !lanes_renew(p->lanes, p->conn, err))
        return false;
    p->lanes->renew_at_us = clock_mono_us() + p->lanes->lease_us * 3 / 10;
    relay_state_tell(p->state, p->conn, p->lanes, p->lanes->lease_us);
    return true;
}

/* ------------------------------------------------------------------ making messages */

/*
 * Topics must be known before messages can be made.  A name that the destination refuses
 * for what it is concerns the events that carry it, not the destination.
 */
static bool
open_routes(struct publisher *p, const struct batch *batch, struct error *err)
{
    for (int i = 0; i < batch->count; i++) {
        const char *aggregate_type = batch->rows[i].aggregate_type;
        if (router_find(p->router, aggregate_type))
            continue;
        if (!p->free_connection(p->arg, err) ||
            !router_open(p->router, p->conn, p->transport, aggregate_type, err))
            return false;
    }
    return true;
}

static bool
stamps_all(const struct publisher *p)
{
    return p->config->outbox->versions == VERSIONS_SPARSE || p->config->filter.event_type_count > 0;
}

/* The version before, for those that carry it: others get -1. */
static bool
find_prevs(struct publisher *p, struct batch *batch, int64_t *prev, struct error *err)
{
    struct prev_want *wants = arena_alloc(&batch->arena, sizeof(*wants) * (size_t) batch->count);
    int *whose = arena_alloc(&batch->arena, sizeof(*whose) * (size_t) batch->count);
    int count = 0;

    for (int i = 0; i < batch->count; i++) {
        const struct outbox_row *row = &batch->rows[i];
        const struct held_stream *held =
            held_find(&p->held, row->aggregate_type, row->aggregate_id);
        prev[i] = -1;
        if (held && held->holds && !batch->mending)
            continue; /* it is not published now */
        if (!stamps_all(p) && !(held && held->passed))
            continue;
        whose[count] = i;
        wants[count++] = (struct prev_want){.row = row, .look_up = held != NULL};
    }
    if (count > 0 &&
        (!p->free_connection(p->arg, err) || !prevs_find(&p->prevs, p->conn, wants, count, err)))
        return false;
    for (int i = 0; i < count; i++)
        prev[whose[i]] = wants[i].found;
    return true;
}

static bool
encode_batch(struct publisher *p, struct batch *batch, struct error *err)
{
    size_t count = (size_t) batch->count;
    int64_t *prev = arena_alloc(&batch->arena, sizeof(*prev) * count);
    struct error refusal;

    if (!find_prevs(p, batch, prev, err))
        return false;
    batch->messages = arena_alloc(&batch->arena, sizeof(*batch->messages) * count);
    batch->refusals = arena_zalloc(&batch->arena, sizeof(struct error *) * count);
    for (int i = 0; i < batch->count; i++) {
        const struct outbox_row *row = &batch->rows[i];
        const struct route *route = router_find(p->router, row->aggregate_type);
        struct message *m = &batch->messages[i];
        if (!encode_message(row, p->config->name, p->lanes->lane[row->lane].epoch, prev[i],
                            &batch->arena, m, &refusal))
            batch->refusals[i] = arena_dup(&batch->arena, &refusal, sizeof(refusal));
        m->topic = route->topic;
        m->part =
            route->partitions > 0 ? route_partition(m->key.data, m->key.len, route->partitions) : 0;
    }
    return true;
}

/* ------------------------------------------------------------------ dead letters */

static bool
same_stream(const struct outbox_row *a, const struct outbox_row *b)
{
    return strcmp(a->aggregate_id, b->aggregate_id) == 0 &&
           strcmp(a->aggregate_type, b->aggregate_type) == 0;
}

/* Row n is dead; what follows of its stream waits. */
static void
bury(struct publisher *p, struct batch *batch, int n, const struct error *cause)
{
    const struct outbox_row *row = &batch->rows[n];
    char id[UUID_TEXT];

    uuid_format(&row->event_id, id);
    batch->refusals[n] = arena_dup(&batch->arena, cause, sizeof(*cause));
    flight_decide(&p->flight, (uint32_t) n, FATE_DEAD);
    for (int i = n + 1; i < batch->count; i++)
        if (p->flight.slots[i].fate == FATE_OPEN && same_stream(row, &batch->rows[i]))
            flight_decide(&p->flight, (uint32_t) i, FATE_WAITING);
    log_warn("relay.refused", F_STR("event_id", id), F_STR("code", cause->code),
             F_STR("sqlstate", cause->sqlstate), F_STR("message", cause->text));
}

/* Rows that are not to be sent: their stream is held, or they cannot be, as they are. */
static void
keep_back(struct publisher *p, struct batch *batch)
{
    for (int i = 0; i < batch->count; i++) {
        const struct outbox_row *row = &batch->rows[i];
        const struct route *route = router_find(p->router, row->aggregate_type);
        const struct held_stream *held =
            held_find(&p->held, row->aggregate_type, row->aggregate_id);
        if (p->flight.slots[i].fate != FATE_OPEN)
            continue;
        if (held && held->holds && !batch->mending)
            flight_decide(&p->flight, (uint32_t) i, FATE_WAITING);
        else if (batch->refusals[i] || route->refusal)
            bury(p, batch, i, batch->refusals[i] ? batch->refusals[i] : route->refusal);
    }
}

enum fate
publisher_fate(const struct publisher *p, int n)
{
    return p->flight.slots[n].fate;
}

bool
publisher_parks(const struct publisher *p, int n)
{
    enum fate fate = p->flight.slots[n].fate;

    return fate == FATE_DEAD || (fate == FATE_WAITING && !p->waits_at_source);
}

bool
publisher_has_parks(const struct publisher *p, const struct batch *batch)
{
    for (int i = 0; i < batch->count; i++)
        if (publisher_parks(p, i))
            return true;
    return false;
}

/*
 * A destination that refuses one event after the other and takes none is what has to be
 * mended, not the events: none of them is charged.  A refusal that can only be the event's
 * own fault says nothing about the destination.
 */
static bool
refuses_everything(struct publisher *p, const struct batch *batch, struct error *ret)
{
    int dead = 0, stored = 0;

    for (int i = 0; i < batch->count; i++) {
        stored += p->flight.slots[i].fate == FATE_STORED;
        if (p->flight.slots[i].fate != FATE_DEAD || batch->refusals[i]->proven)
            continue;
        dead++;
        *ret = *batch->refusals[i];
    }
    if (stored > 0) {
        p->refused_in_a_row = 0;
        return false;
    }
    p->refused_in_a_row += dead;
    if (dead == 0 || p->refused_in_a_row <= MOST_REFUSED_IN_A_ROW)
        return false;
    p->refused_in_a_row = MOST_REFUSED_IN_A_ROW;
    ret->cls = ERR_DESTINATION;
    error_wrap(ret, "the destination refuses every event it is given, so none is charged");
    return true;
}

/* ------------------------------------------------------------------ publishing */

/*
 * The destination says another owner has been there.  Either that is so, and the
 * database has told us by the renewal; or we own the lanes and an older copy of this
 * database stands behind us, and then our epochs must rise above what was seen.
 */
static bool
resolve_fence(struct publisher *p, struct error *err)
{
    if (!p->free_connection(p->arg, err) || !lanes_renew(p->lanes, p->conn, err))
        return false;
    for (int lane = 0; lane < LANES; lane++) {
        int64_t seen;
        if (!(p->lanes->owned & (1 << lane)))
            continue;
        if (!p->transport->ops->fence(p->transport, lane, &seen, err))
            return false;
        if (seen > p->lanes->lane[lane].epoch &&
            !lanes_raise_epoch(p->lanes, p->conn, lane, seen, err))
            return false;
    }
    return true;
}

/* The destination failed: say so, wait, and have it opened again if the connection is gone. */
static bool
wait_out(struct publisher *p, const struct error *cause, struct error *err)
{
    int64_t until = clock_mono_us() + backoff_us(p->failures++);

    relay_state_paused(p->state, cause);
    if (cause->cls != ERR_DESTINATION || strncmp(cause->code, "log.", 4) != 0)
        publisher_close_destination(p);
    while (clock_mono_us() < until) {
        if (!publisher_keep_lease(p, err))
            return false;
        if (told_to_stop(p->stopping, 50000))
            break;
    }
    return true;
}

/* Messages are made once; what was refused as a whole is known to the flight. */
static bool
prepare(struct publisher *p, struct batch *batch, struct error *cause)
{
    if (!connect_destination(p, cause) || !open_routes(p, batch, cause))
        return false;
    if (!batch->messages) {
        if (!encode_batch(p, batch, cause))
            return false;
        flight_load(&p->flight, batch->messages, (uint32_t) batch->count);
        keep_back(p, batch);
    }
    p->flight.transport = p->transport;
    return true;
}

/* Nothing has failed, but the other side is away and the transport waits for it. */
static void
say_waiting(struct publisher *p)
{
    struct error trouble;

    if (p->transport->ops->waiting && p->transport->ops->waiting(p->transport, &trouble))
        relay_state_paused(p->state, &trouble);
}

/* One step: everything at hand is sent and news awaited; a failure goes to `cause`. */
static bool
move_on(struct publisher *p, struct batch *batch, struct error *cause)
{
    struct flight_news news;
    int64_t breaches = p->flight.breaches;

    if (!prepare(p, batch, cause))
        return false;
    bool ok =
        flight_move(&p->flight, p->lanes->owned, clock_mono_us() + SETTLE_SLICE_US, &news, cause);
    if (news.stored > 0) {
        p->failures = 0;
        relay_state_published(p->state, news.stored);
    }
    relay_state_breaches(p->state, p->flight.breaches - breaches);
    if (news.refused >= 0)
        bury(p, batch, (int) news.refused, cause);
    if (ok && news.stored == 0)
        say_waiting(p);
    return ok || news.refused >= 0 || news.parted;
}

/* Why nothing may be published any more, if so. */
static bool
must_stop(struct publisher *p)
{
    return !lanes_may_publish(p->lanes) || !p->lanes->owned ||
           (p->stopping->by_us && clock_mono_us() > p->stopping->by_us);
}

/* What to do about a failure that is no event's. */
static enum published
after_failure(struct publisher *p, const struct error *cause, struct error *err)
{
    if (!pgconn_ok(p->conn)) {
        *err = *cause;
        return BROKEN;
    }
    if (pgerror_is(cause, "PR010"))
        return resolve_fence(p, err) ? REREAD : BROKEN;
    if (!wait_out(p, cause, err))
        return BROKEN;
    return told_to_stop(p->stopping, 0) ? STOPPED : PUBLISHED;
}

/* The fate of each row; or why that will not be known. */
static enum published
fly(struct publisher *p, struct batch *batch, struct error *err)
{
    struct error cause = {0};

    while (!batch->messages || !flight_settled(&p->flight)) {
        if (!publisher_keep_lease(p, err))
            return BROKEN;
        if (must_stop(p))
            return STOPPED;
        if (move_on(p, batch, &cause))
            continue;
        enum published how = after_failure(p, &cause, err);
        if (how != PUBLISHED)
            return how;
    }
    if (refuses_everything(p, batch, &cause))
        return wait_out(p, &cause, err) ? REREAD : BROKEN;
    return PUBLISHED;
}

enum published
publish(struct publisher *p, struct batch *batch, struct error *err)
{
    batch->messages = NULL;
    p->flight.count = p->flight.settled = p->flight.sent = 0;
    if (batch->count == 0)
        return PUBLISHED;
    router_retry_refused(p->router);
    relay_state_pending(p->state, batch->rows[0].inserted_at_us);
    enum published how = fly(p, batch, err);
    if (how != PUBLISHED) {
        /* Messages under way lend from rows that are about to go. */
        if (p->flight.sent > p->flight.settled)
            publisher_close_destination(p);
        return how;
    }
    FAILPOINT("relay.acked");
    relay_state_settled(p->state, batch->rows, batch->count);
    return PUBLISHED;
}
