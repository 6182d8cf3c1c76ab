#include "consume/consumer.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "consume/applier.h"
#include "consume/batch.h"
#include "consume/limits.h"
#include "consume/parking.h"
#include "consume/source.h"
#include "consume/state.h"
#include "core/alloc.h"
#include "core/backoff.h"
#include "core/clock.h"
#include "core/failpoint.h"
#include "core/log.h"

enum {
    QUIET_WAIT_US = 50000,      /* longest wait between two looks at a quiet log */
    PARKED_INTERVAL_US = 20000, /* between two looks for parked events that are due */
    PARKED_AT_ONCE = 10,        /* of them, between two batches */
    GAUGE_INTERVAL_US = 1000000,
    STOP_GRACE_MS = 3000, /* for a handler that runs when we are told to stop */
    HALT_US = 30000000,   /* between two tries when a person must act first */
};

struct consumer {
    const struct consumer_config *config;
    char host[64];
    int stop_fd;
    bool stopping;

    struct applier applier;
    struct source *source; /* NULL: not connected */
    struct source_batch batch;
    struct limits limits;
    struct consumer_state *state;

    int64_t wait_us; /* adaptive, between two looks */
    int64_t parked_at_us, gauges_at_us;
    int failures; /* in a row */
};

/* ------------------------------------------------------------------ stopping and waiting */

static bool
told_to_stop(struct consumer *c, int64_t wait_us)
{
    struct pollfd fd = {.fd = c->stop_fd, .events = POLLIN};
    struct timespec ts = {.tv_sec = wait_us / 1000000, .tv_nsec = wait_us % 1000000 * 1000};

    if (!c->stopping && ppoll(&fd, 1, &ts, NULL) > 0)
        c->stopping = true;
    return c->stopping;
}

static void
disconnect(struct consumer *c)
{
    source_batch_release(&c->batch);
    source_close(c->source);
    c->source = NULL;
    applier_close(&c->applier);
}

static void
wait_after_failure(struct consumer *c, const struct error *err)
{
    int64_t wait = err->cls == ERR_STOP ? HALT_US : backoff_us(c->failures++);

    consumer_state_failed(c->state, err);
    consumer_state_tell(c->state, &c->applier, wait);
    disconnect(c);
    told_to_stop(c, wait);
}

/* ------------------------------------------------------------------ connecting */

/* Rows for partitions that have none. */
static bool
create_partitions(struct consumer *c, struct partition_bounds *bounds, int count, struct error *err)
{
    struct applier *a = &c->applier;

    return source_start(c->source, bounds, count, err) &&
           partitions_create(&a->partitions, a->conn, bounds, count, err);
}

static bool
connect_both(struct consumer *c, struct error *err)
{
    struct partition_bounds *bounds = NULL;
    int count;
    bool ok = false;

    disconnect(c);
    if (!applier_open(&c->applier, err) || !source_open(c->config, &c->source, err) ||
        !c->source->ops->bounds(c->source, &bounds, &count, err))
        goto out;
    pgconn_stop_on(c->applier.conn, c->stop_fd, STOP_GRACE_MS);
    if (c->source->ops->stop_on)
        c->source->ops->stop_on(c->source, c->stop_fd, STOP_GRACE_MS);
    consumer_state_clock(c->state, c->source->server_us);
    memcpy(c->applier.partitions.source, c->source->id, sizeof(c->source->id));
    ok = create_partitions(c, bounds, count, err);

out:
    free(bounds);
    return ok;
}

/* ------------------------------------------------------------------ reading */

/* Partitions just claimed are read from their positions; what was read ahead is dropped. */
static bool
start_reading_anew(struct consumer *c, struct error *err)
{
    struct partitions *p = &c->applier.partitions;

    if (c->source->asked && !c->source->ops->take(c->source, p, &c->batch, err))
        return false;
    source_batch_release(&c->batch);
    for (int i = 0; i < p->count; i++)
        p->list[i].read_off = p->list[i].next_off;
    return c->source->ops->seek ? c->source->ops->seek(c->source, p, err)
                                : c->source->ops->check(c->source, p, err);
}

/* ------------------------------------------------------------------ looking around */

static int64_t
lag(const struct partitions *p, const struct partition_bounds *bounds, int count)
{
    int64_t messages = 0;

    for (int i = 0; i < p->count; i++)
        for (int b = 0; b < count; b++)
            if (bounds[b].part == p->list[i].part)
                messages += bounds[b].next_off - p->list[i].next_off;
    return messages;
}

static bool
look_closely(struct consumer *c, struct error *err)
{
    struct partitions *p = &c->applier.partitions;
    struct partition_bounds *bounds = NULL;
    struct parked parked;
    int count;
    bool ok = false;

    if (!c->source->ops->bounds(c->source, &bounds, &count, err) ||
        !parking_count(&c->applier, &parked, err) ||
        !limits_look(&c->limits, &c->applier, &parked, err))
        goto out;
    int64_t behind = lag(p, bounds, count);
    consumer_state_clock(c->state, c->source->server_us);
    if (c->source->ops->tell)
        c->source->ops->tell(c->source, p);
    consumer_state_lag(c->state, behind);
    consumer_state_parked(c->state, &parked);
    consumer_state_limits(c->state, &c->limits, behind);
    c->gauges_at_us = clock_mono_us() + GAUGE_INTERVAL_US;
    ok = p->total == count || create_partitions(c, bounds, count, err);

out:
    free(bounds);
    return ok;
}

static bool
keep_partitions(struct consumer *c, struct error *err)
{
    struct source *s = c->source;
    bool claimed;

    if ((s->ops->join && !s->ops->join(s, &c->applier.partitions, err)) ||
        !partitions_keep(&c->applier.partitions, c->applier.conn, c->host, &claimed, err))
        return false;
    /* Before they are read: a stream of theirs may be full. */
    return (!claimed && !s->changed) || (start_reading_anew(c, err) && look_closely(c, err));
}

static void
adapt_wait(struct consumer *c, bool had_news)
{
    if (had_news)
        c->wait_us = 0;
    else if (c->wait_us == 0)
        c->wait_us = 1000;
    else
        c->wait_us = c->wait_us * 2 < QUIET_WAIT_US ? c->wait_us * 2 : QUIET_WAIT_US;
}

static bool
apply_messages(struct consumer *c, struct error *err)
{
    struct source_batch *b = &c->batch;
    struct work *works = arena_alloc(&b->arena, sizeof(*works) * (size_t) b->count);

    for (int i = 0; i < b->count; i++)
        applier_prepare(&c->applier, &b->items[i], &b->arena, &works[i]);
    if (batch_apply(&c->applier, works, b->count, err))
        return true;
    if (strcmp(err->code, "fenced.partition") == 0)
        log_warn("consumer.fenced", F_STR("doing", "apply"), F_STR("detail", err->text));
    return false;
}

/* Takes what was read, asks for the next, and applies the first meanwhile. */
static bool
serve_messages(struct consumer *c, bool *ret_had_news, struct error *err)
{
    struct partitions *p = &c->applier.partitions;

    if (!c->source->asked && !c->source->ops->ask(c->source, p, c->config->batch, err))
        return false;
    if (!c->source->ops->take(c->source, p, &c->batch, err))
        return false;
    *ret_had_news = c->batch.count > 0;
    consumer_state_pending(c->state, c->batch.count > 0 ? c->batch.items[0].at_us : 0);
    if (c->batch.count == 0)
        return true;
    if (limits_must_look(&c->limits, &c->applier))
        return start_reading_anew(c, err) && look_closely(c, err);
    FAILPOINT("consumer.received");
    if (!partitions_may_apply(p)) {
        /* We slept past our lease: what was read may be another's by now. */
        partitions_forget(p);
        return true;
    }
    /* Read ahead, but for the moment once a second when look_around() needs the connection. */
    if (clock_mono_us() < c->gauges_at_us &&
        !c->source->ops->ask(c->source, p, c->config->batch, err))
        return false;
    bool ok = apply_messages(c, err);
    source_batch_release(&c->batch);
    return ok;
}

static bool
serve_parked(struct consumer *c, bool *ret_had_news, struct error *err)
{
    bool more;

    if (clock_mono_us() < c->parked_at_us)
        return true;
    if (!parking_run(&c->applier, PARKED_AT_ONCE, &more, err))
        return false;
    *ret_had_news |= more;
    c->parked_at_us = more ? 0 : clock_mono_us() + PARKED_INTERVAL_US;
    return true;
}

/* ------------------------------------------------------------------ the loop */

/* Once a second: how far behind, how much is parked, whether the topic exists by now. */
static bool
look_around(struct consumer *c, struct error *err)
{
    return c->source->asked || clock_mono_us() < c->gauges_at_us || look_closely(c, err);
}

static bool
look(struct consumer *c, bool *ret_had_news, struct error *err)
{
    struct partitions *p = &c->applier.partitions;

    *ret_had_news = false;
    if (!keep_partitions(c, err) ||
        (limits_may_read(&c->limits, p) && !serve_messages(c, ret_had_news, err)) ||
        !serve_parked(c, ret_had_news, err) || !look_around(c, err))
        return false;
    if (p->total == 0)
        consumer_state_waiting(c->state, c->config->topic);
    else
        consumer_state_round(c->state, p);
    consumer_state_tell(c->state, &c->applier, 0);
    return true;
}

static void
leave(struct consumer *c)
{
    struct error err;

    if (pgconn_ok(c->applier.conn) &&
        !partitions_leave(&c->applier.partitions, c->applier.conn, &err))
        log_failure(LOG_WARN, "consumer.leave_failed", &err);
}

bool
consumer_run(struct consumer *c, int stop_fd, struct error *why)
{
    bool ok = true;

    c->stop_fd = stop_fd;
    log_context("consumer", c->config->name);
    while (ok && !told_to_stop(c, c->wait_us)) {
        struct error err = {0};
        bool had_news = false;
        bool connected =
            (c->source && pgconn_ok(c->applier.conn) && c->source->ops->ok(c->source)) ||
            connect_both(c, &err);
        if (connected && look(c, &had_news, &err)) {
            c->failures = 0;
            adapt_wait(c, had_news);
            continue;
        }
        if (told_to_stop(c, 0))
            break;
        ok = err.exit != EXIT_NEWER; /* else this program must not go on here */
        if (ok) {
            wait_after_failure(c, &err);
        } else {
            *why = err;
            log_failure(LOG_ERROR, "consumer.halted", &err);
        }
    }
    leave(c);
    disconnect(c);
    consumer_state_stopped(c->state);
    log_info("consumer.stopped");
    return ok;
}

struct consumer *
consumer_new(const struct consumer_config *config)
{
    struct consumer *c = xcalloc(1, sizeof(*c));
    struct error err;

    c->config = config;
    c->stop_fd = -1;
    c->state = consumer_state_new(config);
    PR_CHECK(applier_init(&c->applier, config, c->state, &err)); /* consumer_check() came first */
    if (gethostname(c->host, sizeof(c->host) - 1) != 0)
        strcpy(c->host, "unknown");
    return c;
}

void
consumer_free(struct consumer *c)
{
    if (!c)
        return;
    disconnect(c);
    arena_release(&c->batch.arena);
    applier_release(&c->applier);
    consumer_state_free(c->state);
    free(c);
}

bool
consumer_check(const struct consumer_config *config, struct error *err)
{
    struct applier a;
    bool ok = applier_init(&a, config, NULL, err) && applier_open(&a, err);

    applier_release(&a);
    return ok;
}
