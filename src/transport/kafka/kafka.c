#include "transport/kafka/kafka.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/failpoint.h"
#include "core/log.h"

enum {
    DRAIN_US = 10000000, /* for what is under way after a failure; then it is given up */
    CLOSE_MS = 1000,
    SILENCE_US = 10000000, /* without a word: the reason is looked for */
};

/* ------------------------------------------------------------------ opening and closing */

static bool
kafka_open(const struct destination_config *config, const char *purpose, const struct uuid *writer,
           struct transport **ret, struct error *err)
{
    struct kafka *k = xcalloc(1, sizeof(*k));
    const struct rd_kafka_metadata *metadata;

    (void) purpose;
    (void) writer;
    k->base.ops = &transport_kafka;
    k->base.caps = (struct transport_caps){.fail_model = TRANSPORT_PREFIX,
                                           .durability = DURABLE_BY_TOPIC,
                                           .max_queue = KAFKA_MAX_QUEUE,
                                           .max_bytes = KAFKA_MAX_BYTES};
    k->config = config;
    k->kept = xcalloc(KAFKA_MAX_QUEUE, sizeof(*k->kept));
    k->kept_class = xcalloc(KAFKA_MAX_QUEUE, sizeof(*k->kept_class));
    *ret = &k->base;
    bool ok = kafka_handle_open(k, err);
    if (ok) {
        rd_kafka_resp_err_t code = rd_kafka_metadata(k->producer, 0, NULL, &metadata, 5000);
        ok = code == RD_KAFKA_RESP_ERR_NO_ERROR;
        if (ok)
            rd_kafka_metadata_destroy(metadata);
        else
            kafka_no_answer(k, code, "connecting", err);
    }
    if (!ok) {
        transport_kafka.close(&k->base);
        *ret = NULL;
    }
    return ok;
}

/*
 * A producer with messages under way may be thrown away only when the library has let go
 * of them.  What was on the wire may still be stored: an old event once more, in order.
 */
static void
let_go(struct kafka *k)
{
    int64_t until = clock_mono_us() + CLOSE_MS * 1000;

    if (k->producer && k->under_way > 0)
        rd_kafka_purge(k->producer, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT);
    while (k->producer && k->under_way > 0 && clock_mono_us() < until) {
        rd_kafka_event_t *event = rd_kafka_queue_poll(k->events, 50);
        if (event && rd_kafka_event_type(event) == RD_KAFKA_EVENT_DR)
            k->under_way -= rd_kafka_event_message_count(event);
        if (event)
            rd_kafka_event_destroy(event);
    }
}

static void
kafka_close(struct transport *base)
{
    struct kafka *k = (struct kafka *) base;

    let_go(k);
    kafka_handle_close(k);
    kafka_topics_free(k);
    free(k->kept);
    free(k->kept_class);
    free(k);
}

static bool
kafka_topic_op(struct transport *base, const char *topic, int *partitions, struct error *err)
{
    struct kafka *k = (struct kafka *) base;

    if (!kafka_handle_open(k, err) || !kafka_topic_open(k, topic, partitions, err))
        return false;
    /* A batch larger than the topic takes would be refused: the next producer makes smaller ones.
     */
    if (k->under_way == 0 && kafka_least_limit(k) < k->batch_bytes)
        kafka_handle_close(k);
    return true;
}

/* ------------------------------------------------------------------ sending */

static void
keep(struct kafka *k, const struct message *m, enum error_class cls)
{
    PR_CHECK(k->kept_count < KAFKA_MAX_QUEUE);
    k->kept[k->kept_count] = m->cookie;
    k->kept_class[k->kept_count++] = cls;
}

static void
start_draining(struct kafka *k)
{
    if (k->draining)
        return;
    k->draining = true;
    k->purge_at_us = clock_mono_us() + DRAIN_US;
}

/* What has not left yet must not be stored behind something that was not. */
static void
hold_back(struct kafka *k)
{
    if (!k->draining)
        rd_kafka_purge(k->producer, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_NON_BLOCKING);
    start_draining(k);
}

static size_t
size_of(const struct message *m)
{
    size_t size = m->key.len + m->body.len;

    for (int i = 0; i < m->header_count; i++)
        size += strlen(m->headers[i].name) + m->headers[i].value.len + 10;
    return size;
}

/* Larger than the topic takes, as far as we know by now: the broker need not be asked. */
static bool
is_too_large(struct kafka *k, struct kafka_topic *topic, const struct message *m)
{
    size_t size = size_of(m);

    if (topic->max_bytes == 0 || size <= (size_t) topic->max_bytes)
        return false;
    kafka_topic_limits(k, topic); /* it may have been raised */
    return topic->max_bytes > 0 && size > (size_t) topic->max_bytes;
}

/* What stopped the producer says more than what became of those behind it. */
static void
note_cause(struct kafka *k, rd_kafka_resp_err_t code, const char *reason)
{
    enum error_class cls = kafka_class(code);
    bool better = k->cause.code[0] == '\0' ||
                  (strcmp(k->cause.code, "kafka.purged") == 0 && cls != ERR_TRANSIENT);

    if (better)
        kafka_error(k->config, code, "publishing", reason, &k->cause);
}

/* Whether the producer has stopped for good. */
static bool
take_fatal(struct kafka *k)
{
    char reason[300] = "";
    rd_kafka_resp_err_t fatal = rd_kafka_fatal_error(k->producer, reason, sizeof(reason));

    if (!fatal)
        return false;
    log_info("kafka.fresh_producer", F_STR("cause", rd_kafka_err2name(fatal)),
             F_STR("message", reason));
    note_cause(k, fatal, reason);
    return true;
}

static rd_kafka_headers_t *
make_headers(const struct message *m)
{
    rd_kafka_headers_t *headers = rd_kafka_headers_new((size_t) m->header_count);

    for (int i = 0; i < m->header_count; i++)
        rd_kafka_header_add(headers, m->headers[i].name, -1, m->headers[i].value.data,
                            (ssize_t) m->headers[i].value.len);
    return headers;
}

/* librdkafka writes to neither key nor body, but its types do not say so. */
static void *
unconst(const void *data)
{
    union {
        const void *in;
        void *out;
    } u = {.in = data};

    return u.out;
}

static rd_kafka_resp_err_t
produce(struct kafka *k, const struct kafka_topic *topic, const struct message *m)
{
    rd_kafka_headers_t *headers = make_headers(m);
    const rd_kafka_vu_t parts[] = {
        {.vtype = RD_KAFKA_VTYPE_RKT, .u.rkt = topic->handle},
        {.vtype = RD_KAFKA_VTYPE_PARTITION, .u.i32 = m->part},
        {.vtype = RD_KAFKA_VTYPE_KEY, .u.mem = {unconst(m->key.data), m->key.len}},
        {.vtype = RD_KAFKA_VTYPE_VALUE, .u.mem = {unconst(m->body.data), m->body.len}},
        {.vtype = RD_KAFKA_VTYPE_HEADERS, .u.headers = headers},
        {.vtype = RD_KAFKA_VTYPE_OPAQUE, .u.ptr = (void *) (uintptr_t) m->cookie},
    };
    rd_kafka_resp_err_t code = RD_KAFKA_RESP_ERR_NO_ERROR;
    rd_kafka_error_t *failure = rd_kafka_produceva(k->producer, parts, PR_LENGTH(parts));

    if (failure) {
        code = rd_kafka_error_code(failure);
        rd_kafka_error_destroy(failure);
        rd_kafka_headers_destroy(headers); /* else they are the library's now */
    }
    return code;
}

/*
 * A failure here is told by the next settle, in its turn: what was sent before has first to
 * get the broker's word.
 */
static void
send_one(struct kafka *k, struct kafka_topic *topic, const struct message *m)
{
    rd_kafka_resp_err_t code =
        is_too_large(k, topic, m) ? RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE : produce(k, topic, m);
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR) {
        if (k->under_way++ == 0)
            k->word_us = clock_mono_us();
        return;
    }
    enum error_class cls = kafka_class(code);
    keep(k, m, cls == ERR_PERMANENT ? cls : ERR_TRANSIENT);
    if (code != RD_KAFKA_RESP_ERR__FATAL)
        kafka_error(k->config, code, "sending", NULL, &k->cause);
    start_draining(k);
}

/* ------------------------------------------------------------------ the broker's word */

static enum error_class
class_of(const rd_kafka_message_t *message)
{
    enum error_class cls = kafka_class(message->err);

    if (cls == ERR_PERMANENT)
        return cls;
    return rd_kafka_message_status(message) == RD_KAFKA_MSG_STATUS_NOT_PERSISTED ? ERR_TRANSIENT
                                                                                 : ERR_UNKNOWN;
}

static void
take_message(struct kafka *k, const rd_kafka_message_t *message, struct receipts *ret)
{
    struct receipt receipt = {.cookie = (uint32_t) (uintptr_t) message->_private};

    k->under_way--;
    k->word_us = clock_mono_us();
    if (message->err || rd_kafka_message_status(message) != RD_KAFKA_MSG_STATUS_PERSISTED) {
        receipt.cls = class_of(message);
        note_cause(k, message->err ? message->err : RD_KAFKA_RESP_ERR_UNKNOWN, NULL);
        hold_back(k);
    } else {
        k->trouble.code[0] = '\0';
    }
    ret->list[ret->count++] = receipt;
}

static void
take_reports(struct kafka *k, rd_kafka_event_t *event, struct receipts *ret)
{
    const rd_kafka_message_t *messages[256];
    size_t count;

    while ((count = rd_kafka_event_message_array(event, messages, PR_LENGTH(messages))) > 0)
        for (size_t i = 0; i < count; i++)
            take_message(k, messages[i], ret);
}

/*
 * A fatal error stops the producer for good; any other is the library's own to get over.
 * "All brokers are down" tells less than what it said before about one of them.
 */
static void
take_error(struct kafka *k, rd_kafka_event_t *event)
{
    rd_kafka_resp_err_t code = rd_kafka_event_error(event);

    if (code == RD_KAFKA_RESP_ERR__FATAL) {
        start_draining(k);
    } else if (code != RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN || k->trouble.code[0] == '\0') {
        kafka_error(k->config, code, "waiting for the brokers", rd_kafka_event_error_string(event),
                    &k->trouble);
    }
}

bool
kafka_no_answer(struct kafka *k, rd_kafka_resp_err_t code, const char *doing, struct error *err)
{
    rd_kafka_event_t *event;

    /* With messages under way their reports are among the events, and settle takes them. */
    while (k->under_way == 0 && (event = rd_kafka_queue_poll(k->events, 0)) != NULL) {
        if (rd_kafka_event_type(event) == RD_KAFKA_EVENT_ERROR)
            take_error(k, event);
        rd_kafka_event_destroy(event);
    }
    if (k->trouble.code[0] == '\0')
        return kafka_error(k->config, code, doing, NULL, err);
    *err = k->trouble;
    return false;
}

static void
take_event(struct kafka *k, rd_kafka_event_t *event, struct receipts *ret)
{
    switch (rd_kafka_event_type(event)) {
    case RD_KAFKA_EVENT_DR:
        FAILPOINT("relay.confirmed");
        take_reports(k, event, ret);
        break;
    case RD_KAFKA_EVENT_ERROR:
        take_error(k, event);
        break;
    default:
        break;
    }
    rd_kafka_event_destroy(event);
}

/* Nothing is under way any more: what was kept gets its word, and a fresh producer comes. */
static bool
end_draining(struct kafka *k, struct receipts *ret, struct error *err)
{
    for (size_t i = 0; i < k->kept_count; i++)
        ret->list[ret->count++] = (struct receipt){.cookie = k->kept[i], .cls = k->kept_class[i]};
    /* What was given up is unknown to this producer too: it may not go on behind it. */
    bool spent = take_fatal(k) || k->purged;
    k->kept_count = 0;
    k->draining = k->purged = false;
    PR_CHECK(k->cause.code[0] != '\0');
    *err = k->cause;
    k->cause = (struct error){0};
    if (strcmp(err->code, "kafka.too_large") == 0) {
        for (int i = 0; i < k->topic_count; i++) {
            k->topics[i].asked_us = 0;
            kafka_topic_limits(k, &k->topics[i]);
        }
    }
    if (spent || err->cls != ERR_PERMANENT || kafka_least_limit(k) < k->batch_bytes)
        kafka_handle_close(k);
    return false;
}

/* A topic has to be known to a fresh producer before anything is sent to it. */
static bool
renew(struct kafka *k, const struct kafka_topic *topic, struct error *err)
{
    int partitions = topic->partitions;

    return topic->handle ||
           (kafka_handle_open(k, err) && kafka_topic_open(k, topic->name, &partitions, err));
}

static void
purge_late(struct kafka *k)
{
    if (!k->draining || k->purged || clock_mono_us() < k->purge_at_us)
        return;
    k->purged = true;
    rd_kafka_purge(k->producer, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT);
}

/*
 * Waits for the first news and takes what else is there.  A broker that is away is no
 * failure: the library goes on trying, nothing is lost and nothing is charged.
 */
static bool
kafka_settle(struct transport *base, int64_t until_us, struct receipts *ret, struct error *err)
{
    struct kafka *k = (struct kafka *) base;
    size_t before = ret->count;

    while (k->under_way > 0) {
        int64_t left = until_us - clock_mono_us();
        bool news = ret->count > before && !k->draining;
        int wait_ms = news || left <= 0 ? 0 : (int) (left / 1000) + 1;
        rd_kafka_event_t *event = rd_kafka_queue_poll(k->events, wait_ms);
        if (event)
            take_event(k, event, ret);
        purge_late(k);
        if (!event && (news || left <= 0))
            return true;
    }
    return k->draining ? end_draining(k, ret, err) : true;
}

/*
 * The library goes on trying without a word when a partition has no leader or too few
 * replicas.  A person has to be told why nothing moves.
 */
static void
explain_silence(struct kafka *k)
{
    int64_t now = clock_mono_us();
    int64_t silent_us = now - k->word_us;
    struct error reason;

    if (silent_us < SILENCE_US || now < k->look_at_us)
        return;
    k->look_at_us = now + SILENCE_US;
    if (!kafka_topics_ready(k, &reason)) {
        k->trouble = reason;
    } else if (k->trouble.code[0] == '\0' || strcmp(k->trouble.code, "kafka.silent") == 0) {
        error_set_exit(&k->trouble, ERR_DESTINATION, EXIT_AWAY, "kafka.silent",
                       "destination %s (%s): no word about %zu messages for %lld s, although each "
                       "partition has a leader",
                       k->config->name, k->config->bootstrap, k->under_way,
                       (long long) (silent_us / 1000000));
        error_hint(&k->trouble, "too few replicas in sync for min.insync.replicas, or a slow disk: "
                                "see the brokers' logs");
    }
}

/* Whether it waits for brokers that are away; ret says so. */
static bool
kafka_waiting(struct transport *base, struct error *ret)
{
    struct kafka *k = (struct kafka *) base;

    if (k->under_way == 0)
        return false;
    explain_silence(k);
    if (k->trouble.code[0] == '\0')
        return false;
    *ret = k->trouble;
    return true;
}

/* Between two loads nothing is under way: that is when the topics are looked at. */
static bool
kafka_send(struct transport *base, const struct message *m, struct error *err)
{
    struct kafka *k = (struct kafka *) base;
    struct kafka_topic *topic = kafka_topic_find(k, m->topic);

    PR_CHECK(topic != NULL);
    if (k->draining) {
        keep(k, m, ERR_TRANSIENT);
        return true;
    }
    if (!renew(k, topic, err) || (k->under_way == 0 && !kafka_topics_watch(k, err)))
        return false;
    send_one(k, topic, m);
    return true;
}

const struct transport_ops transport_kafka = {
    .kind = "kafka",
    .open = kafka_open,
    .topic = kafka_topic_op,
    .send = kafka_send,
    .settle = kafka_settle,
    .waiting = kafka_waiting,
    .close = kafka_close,
};
