/*
 * kafka_source.c — a topic of Kafka as a source.  The group tells which partitions may be
 * claimed; the row in the consumer's database, under its epoch, tells who may write.
 * What the broker keeps as offsets is for its own displays: nothing is read from it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "consume/source.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/log.h"
#include "transport/kafka/kafka.h"

enum {
    ASK_MS = 5000,
    LOOKS = 5, /* a leader elected just now may not know its own end yet */
    LOOK_US = 200000,
    LEAST_SESSION_MS = 6000, /* as brokers have it */
};

struct kafka_source {
    struct source base;
    rd_kafka_t *client;
    int32_t *assigned; /* by the group */
    int assigned_count;
    bool joined;
    int limit;
    struct error trouble; /* what the library last said about the brokers */
};

static const struct kafka_default fixed[] = {
    {"enable.auto.commit", "false"},
    {"enable.auto.offset.store", "false"},
    {"auto.offset.reset", "error"},
    {"isolation.level", "read_committed"},
    {"check.crcs", "true"},
    {"allow.auto.create.topics", "false"},
    {"enable.partition.eof", "false"},
    {"partition.assignment.strategy", "range,roundrobin"},
};
static const struct kafka_default usual[] = {
    {"heartbeat.interval.ms", "1000"}, {"reconnect.backoff.max.ms", "500"},
    {"fetch.wait.max.ms", "100"},      {"queued.max.messages.kbytes", "16384"},
    {"fetch.error.backoff.ms", "100"}, {"socket.keepalive.enable", "true"},
    {"log.connection.close", "false"}, {"topic.metadata.refresh.interval.ms", "5000"},
};

/* ------------------------------------------------------------------ opening */

static void
on_error(rd_kafka_t *client, int code, const char *reason, void *opaque)
{
    struct kafka_source *k = opaque;

    (void) client;
    kafka_error(k->base.config->destination, (rd_kafka_resp_err_t) code, "reading", reason,
                &k->trouble);
}

/*
 * Eager: all is given up, then assigned.  Reading begins only when the rows have been
 * claimed, so here the library gets an empty assignment either way.
 */
static void
on_rebalance(rd_kafka_t *client, rd_kafka_resp_err_t code, rd_kafka_topic_partition_list_t *parts,
             void *opaque)
{
    struct kafka_source *k = opaque;
    rd_kafka_topic_partition_list_t *none = rd_kafka_topic_partition_list_new(0);

    k->assigned_count = 0;
    if (code == RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS) {
        k->assigned = xrealloc(k->assigned, sizeof(*k->assigned) * (size_t) (parts->cnt + 1));
        for (int i = 0; i < parts->cnt; i++)
            k->assigned[k->assigned_count++] = parts->elems[i].partition;
        rd_kafka_assign(client, none);
    } else {
        rd_kafka_assign(client, NULL);
    }
    rd_kafka_topic_partition_list_destroy(none);
    k->base.changed = true;
    log_info("consumer.rebalanced", F_I64("partitions", k->assigned_count));
}

static bool
configure(const struct consumer_config *c, rd_kafka_conf_t *conf, struct error *err)
{
    static const struct kafka_defaults defaults = {usual, PR_LENGTH(usual), fixed,
                                                   PR_LENGTH(fixed)};
    const struct destination_config *d = c->destination;
    int64_t ms = c->lease_us / 1000;
    char session[24];

    snprintf(session, sizeof(session), "%lld",
             (long long) (ms > LEAST_SESSION_MS ? ms : LEAST_SESSION_MS));
    rd_kafka_conf_set_error_cb(conf, on_error);
    rd_kafka_conf_set_rebalance_cb(conf, on_rebalance);
    return kafka_set(conf, "session.timeout.ms", session, d->name, err) &&
           kafka_configure(conf, d, &defaults, err) &&
           kafka_set(conf, "group.id", c->name, d->name, err);
}

static bool
failed(struct kafka_source *k, rd_kafka_resp_err_t code, const char *doing, struct error *err)
{
    bool silent = code == RD_KAFKA_RESP_ERR__TIMED_OUT || code == RD_KAFKA_RESP_ERR__TRANSPORT;

    rd_kafka_poll(k->client, 0);
    if (!silent || k->trouble.code[0] == '\0')
        return kafka_error(k->base.config->destination, code, doing, NULL, err);
    *err = k->trouble;
    return false;
}

static void
close_source(struct source *s)
{
    struct kafka_source *k = (struct kafka_source *) s;

    if (k->client && k->joined)
        rd_kafka_consumer_close(k->client);
    if (k->client)
        rd_kafka_destroy(k->client);
    free(k->assigned);
    free(k);
}

static bool
open_client(struct kafka_source *k, struct error *err)
{
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    char reason[300];

    if (!configure(k->base.config, conf, err)) {
        rd_kafka_conf_destroy(conf);
        return false;
    }
    rd_kafka_conf_set_opaque(conf, k);
    k->client = rd_kafka_new(RD_KAFKA_CONSUMER, conf, reason, sizeof(reason));
    if (!k->client) {
        rd_kafka_conf_destroy(conf);
        error_set_exit(err, ERR_STOP, EXIT_CONFIG, "kafka.setting", "destination %s: %s",
                       k->base.config->destination->name, reason);
        return error_hint(err, "correct the destination's settings");
    }
    char *cluster = rd_kafka_clusterid(k->client, ASK_MS);
    if (!cluster)
        return failed(k, RD_KAFKA_RESP_ERR__TIMED_OUT, "asking for the cluster's id", err);
    snprintf(k->base.id, sizeof(k->base.id), "%s", cluster);
    rd_kafka_mem_free(k->client, cluster);
    k->base.server_us = clock_wall_us();
    return true;
}

static bool
open_source(const struct consumer_config *config, struct source **ret, struct error *err)
{
    struct kafka_source *k = xcalloc(1, sizeof(*k));

    k->base.ops = &source_kafka;
    k->base.config = config;
    if (open_client(k, err)) {
        *ret = &k->base;
        return true;
    }
    close_source(&k->base);
    return false;
}

static bool
is_ok(const struct source *s)
{
    (void) s;
    return true; /* the library connects again by itself; what it cannot do fails when asked */
}

/* ------------------------------------------------------------------ bounds */

static bool
watermarks(struct kafka_source *k, int32_t part, int64_t *ret_low, int64_t *ret_high,
           struct error *err)
{
    rd_kafka_resp_err_t code = rd_kafka_query_watermark_offsets(k->client, k->base.config->topic,
                                                                part, ret_low, ret_high, ASK_MS);

    return !code || failed(k, code, "asking for the topic's offsets", err);
}

static bool
partition_count(struct kafka_source *k, int *ret, struct error *err)
{
    const struct rd_kafka_metadata *metadata;
    rd_kafka_topic_t *topic = rd_kafka_topic_new(k->client, k->base.config->topic, NULL);

    PR_CHECK(topic != NULL);
    rd_kafka_resp_err_t code = rd_kafka_metadata(k->client, 0, topic, &metadata, ASK_MS);
    rd_kafka_topic_destroy(topic);
    if (code)
        return failed(k, code, "asking for the topic", err);
    code = metadata->topics[0].err;
    *ret = metadata->topics[0].partition_cnt;
    rd_kafka_metadata_destroy(metadata);
    if (code == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART)
        *ret = 0; /* it waits for it */
    else if (code && code != RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE)
        return failed(k, code, "asking for the topic", err);
    return true;
}

static bool
get_bounds(struct source *s, struct partition_bounds **ret, int *ret_count, struct error *err)
{
    struct kafka_source *k = (struct kafka_source *) s;

    *ret = NULL;
    *ret_count = 0;
    if (!partition_count(k, ret_count, err))
        return false;
    *ret = xcalloc((size_t) *ret_count + 1, sizeof(**ret));
    for (int i = 0; i < *ret_count; i++) {
        (*ret)[i].part = i;
        if (!watermarks(k, i, &(*ret)[i].first_off, &(*ret)[i].next_off, err))
            return false;
    }
    s->server_us = clock_wall_us();
    return true;
}

static bool
find_time(struct source *s, int64_t us, struct partition_bounds *bounds, int count,
          struct error *err)
{
    struct kafka_source *k = (struct kafka_source *) s;
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(count);

    for (int i = 0; i < count; i++)
        rd_kafka_topic_partition_list_add(list, s->config->topic, bounds[i].part)->offset =
            us / 1000;
    rd_kafka_resp_err_t code = count > 0 ? rd_kafka_offsets_for_times(k->client, list, ASK_MS)
                                         : RD_KAFKA_RESP_ERR_NO_ERROR;
    for (int i = 0; !code && i < count; i++) {
        code = list->elems[i].err;
        if (list->elems[i].offset >= 0) /* else nothing is as late as that */
            bounds[i].start_off = list->elems[i].offset;
    }
    rd_kafka_topic_partition_list_destroy(list);
    return !code || failed(k, code, "looking for the start", err);
}

static bool
check_one(struct kafka_source *k, const struct partition *it, int64_t *ret_low, struct error *err)
{
    int64_t high = 0;

    for (int look = 0; look < LOOKS; look++) {
        if (look > 0)
            usleep(LOOK_US);
        if (!watermarks(k, it->part, ret_low, &high, err))
            return false;
        if (it->next_off < *ret_low)
            return source_overtaken(&k->base, it->part, it->next_off, *ret_low, err);
        if (it->next_off <= high)
            return true;
    }
    return source_went_back(&k->base, it->part, it->next_off, high, err);
}

static bool
check(struct source *s, const struct partitions *p, struct error *err)
{
    int64_t low;

    for (int i = 0; i < p->count; i++)
        if (!check_one((struct kafka_source *) s, &p->list[i], &low, err))
            return false;
    return true;
}

/* ------------------------------------------------------------------ the group */

static bool
subscribe(struct kafka_source *k, struct error *err)
{
    rd_kafka_topic_partition_list_t *topics = rd_kafka_topic_partition_list_new(1);

    rd_kafka_topic_partition_list_add(topics, k->base.config->topic, RD_KAFKA_PARTITION_UA);
    rd_kafka_poll_set_consumer(k->client);
    rd_kafka_resp_err_t code = rd_kafka_subscribe(k->client, topics);
    rd_kafka_topic_partition_list_destroy(topics);
    k->joined = !code;
    return !code || failed(k, code, "joining the group", err);
}

static bool
join(struct source *s, struct partitions *p, struct error *err)
{
    struct kafka_source *k = (struct kafka_source *) s;

    if (!k->joined && !subscribe(k, err))
        return false;
    if (p->count == 0) { /* nothing is read, but the group wants to be heard */
        rd_kafka_message_t *message = rd_kafka_consumer_poll(k->client, 0);
        if (message)
            rd_kafka_message_destroy(message);
    }
    p->grouped = true;
    if (!s->changed)
        return true;
    p->wanted = xrealloc(p->wanted, sizeof(*p->wanted) * (size_t) (k->assigned_count + 1));
    if (k->assigned_count > 0)
        memcpy(p->wanted, k->assigned, sizeof(*p->wanted) * (size_t) k->assigned_count);
    p->wanted_count = k->assigned_count;
    p->renew_at_us = 0;
    return true;
}

/* The last message that was decided is read once more: it proves that this is the same topic. */
static bool
seek(struct source *s, struct partitions *p, struct error *err)
{
    struct kafka_source *k = (struct kafka_source *) s;
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(p->count);
    bool ok = true;

    for (int i = 0; ok && i < p->count; i++) {
        struct partition *it = &p->list[i];
        int64_t low = 0;
        ok = check_one(k, it, &low, err);
        it->read_off = it->next_off;
        it->paused = false;
        it->verify = it->has_last_id && it->next_off > low;
        rd_kafka_topic_partition_list_add(list, s->config->topic, it->part)->offset =
            it->next_off - it->verify;
    }
    rd_kafka_resp_err_t code = ok ? rd_kafka_assign(k->client, list) : RD_KAFKA_RESP_ERR_NO_ERROR;
    if (ok && !code)
        rd_kafka_resume_partitions(k->client, list);
    rd_kafka_topic_partition_list_destroy(list);
    s->changed = false;
    return ok && (!code || failed(k, code, "starting to read", err));
}

/* ------------------------------------------------------------------ reading */

/* Pauses what is full and resumes what is not any more: the library reads ahead by itself. */
static bool
pause_full(struct kafka_source *k, struct partitions *p, struct error *err)
{
    rd_kafka_topic_partition_list_t *off = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_t *on = rd_kafka_topic_partition_list_new(1);
    rd_kafka_resp_err_t code = RD_KAFKA_RESP_ERR_NO_ERROR;

    for (int i = 0; i < p->count; i++) {
        struct partition *it = &p->list[i];
        if (it->full != it->paused)
            rd_kafka_topic_partition_list_add(it->full ? off : on, k->base.config->topic, it->part);
        it->paused = it->full;
    }
    if (off->cnt > 0)
        code = rd_kafka_pause_partitions(k->client, off);
    if (!code && on->cnt > 0)
        code = rd_kafka_resume_partitions(k->client, on);
    rd_kafka_topic_partition_list_destroy(off);
    rd_kafka_topic_partition_list_destroy(on);
    return !code || failed(k, code, "pausing partitions", err);
}

static bool
ask(struct source *s, struct partitions *p, int limit, struct error *err)
{
    if (!pause_full((struct kafka_source *) s, p, err))
        return false;
    ((struct kafka_source *) s)->limit = limit;
    s->asked = true;
    return true;
}

static void
take_headers(const rd_kafka_message_t *message, struct arena *arena, struct incoming *ret)
{
    rd_kafka_headers_t *headers;
    const char *name;
    const void *value;
    size_t size;

    if (rd_kafka_message_headers(message, &headers))
        return;
    size_t count = rd_kafka_header_cnt(headers);
    struct header *list = arena_alloc(arena, sizeof(*list) * count + 1);
    for (size_t i = 0; i < count; i++) {
        if (rd_kafka_header_get_all(headers, i, &name, &value, &size))
            break;
        list[ret->header_count++] = (struct header){.name = name, .value = {value, size}};
    }
    ret->headers = list;
}

static void
decode(struct kafka_source *k, const rd_kafka_message_t *m, struct arena *arena,
       struct incoming *ret)
{
    rd_kafka_timestamp_type_t type;
    int64_t ms = rd_kafka_message_timestamp(m, &type);

    *ret = (struct incoming){.source = k->base.id,
                             .topic = k->base.config->topic,
                             .part = m->partition,
                             .off = m->offset,
                             .at_us = ms > 0 ? ms * 1000 : 0,
                             .key = {m->key, m->key_len},
                             .body = {m->payload, m->len}};
    take_headers(m, arena, ret);
    incoming_decode(ret, arena);
    ret->has_origin_id = !ret->foreign;
    ret->origin_id = ret->event_id;
}

static bool
read_message(struct kafka_source *k, const rd_kafka_message_t *m, struct partitions *p,
             struct source_batch *batch, struct error *err)
{
    struct partition *from = partitions_find(p, m->partition);
    struct incoming *in = &batch->items[batch->count];

    if (!from)
        return true;
    decode(k, m, &batch->arena, in);
    bool again = from->verify && in->off == from->next_off - 1;
    from->verify = false;
    if (again && (in->foreign || memcmp(&in->event_id, &from->last_id, sizeof(in->event_id)) != 0))
        return source_went_back(&k->base, in->part, from->next_off, in->off + 1, err);
    if (in->off < from->read_off)
        return true;              /* read before */
    from->read_off = in->off + 1; /* offsets have holes: compaction, marks of transactions */
    batch->count++;
    return true;
}

static bool
read_error(struct kafka_source *k, const rd_kafka_message_t *m, struct partitions *p,
           struct error *err)
{
    switch (m->err) {
    case RD_KAFKA_RESP_ERR__PARTITION_EOF:
    case RD_KAFKA_RESP_ERR__MAX_POLL_EXCEEDED:
    case RD_KAFKA_RESP_ERR__TRANSPORT:
    case RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN:
        return true; /* the library gets over it; look_around() asks whether brokers are there */
    case RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET:
    case RD_KAFKA_RESP_ERR_OFFSET_OUT_OF_RANGE:
        if (!check(&k->base, p, err))
            return false;
        break;
    default:
        break;
    }
    return kafka_error(k->base.config->destination, m->err, "reading", rd_kafka_message_errstr(m),
                       err);
}

static void
destroy_message(void *message)
{
    rd_kafka_message_destroy(message);
}

static bool
take(struct source *s, struct partitions *p, struct source_batch *ret, struct error *err)
{
    struct kafka_source *k = (struct kafka_source *) s;
    rd_kafka_message_t *m;
    bool ok = true;

    s->asked = false;
    source_batch_release(ret);
    ret->let_go = destroy_message;
    ret->items = arena_alloc(&ret->arena, sizeof(*ret->items) * (size_t) k->limit);
    ret->held = arena_alloc(&ret->arena, sizeof(*ret->held) * (size_t) k->limit);
    while (ok && ret->held_count < k->limit && (m = rd_kafka_consumer_poll(k->client, 0))) {
        ret->held[ret->held_count++] = m;
        ok = m->err ? read_error(k, m, p, err) : read_message(k, m, p, ret, err);
    }
    return ok;
}

/* Not waited for, and nobody reads it but the broker's own tools. */
static void
tell(struct source *s, const struct partitions *p)
{
    struct kafka_source *k = (struct kafka_source *) s;
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(p->count);

    for (int i = 0; i < p->count; i++)
        rd_kafka_topic_partition_list_add(list, s->config->topic, p->list[i].part)->offset =
            p->list[i].next_off;
    if (p->count > 0)
        rd_kafka_commit(k->client, list, 1);
    rd_kafka_topic_partition_list_destroy(list);
}

const struct source_ops source_kafka = {
    .open = open_source,
    .close = close_source,
    .ok = is_ok,
    .bounds = get_bounds,
    .find_time = find_time,
    .check = check,
    .join = join,
    .seek = seek,
    .ask = ask,
    .take = take,
    .tell = tell,
};
