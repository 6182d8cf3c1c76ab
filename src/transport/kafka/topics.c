#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/log.h"
#include "transport/kafka/kafka.h"

enum {
    ASK_MS = 5000,
    WATCH_MS = 1000,
    TELL_MS = 1000,
    UNTOLD_US = 60000000, /* a broker that does not tell limits is left alone for so long */
    LIMITS_US = 1000000,  /* limits read within this time are new enough */
    NAME_MOST = 249,
};

struct kafka_topic *
kafka_topic_find(struct kafka *k, const char *name)
{
    for (int i = 0; i < k->topic_count; i++)
        if (strcmp(k->topics[i].name, name) == 0)
            return &k->topics[i];
    return NULL;
}

void
kafka_topics_forget(struct kafka *k)
{
    for (int i = 0; i < k->topic_count; i++) {
        if (k->topics[i].handle)
            rd_kafka_topic_destroy(k->topics[i].handle);
        k->topics[i].handle = NULL;
    }
}

void
kafka_topics_free(struct kafka *k)
{
    for (int i = 0; i < k->topic_count; i++)
        free(k->topics[i].name);
    free(k->topics);
}

/* ------------------------------------------------------------------ limits and guarantees */

/* What a topic's configuration says about a confirm. */
struct guarantees {
    int64_t max_bytes; /* 0: not told */
    int min_insync;
    bool unclean;
    bool compacted;
    bool flushed; /* each message is synced */
};

static void
take_entry(const char *name, const char *value, struct guarantees *ret)
{
    if (!value)
        return;
    if (strcmp(name, "max.message.bytes") == 0)
        ret->max_bytes = strtoll(value, NULL, 10);
    else if (strcmp(name, "min.insync.replicas") == 0)
        ret->min_insync = (int) strtol(value, NULL, 10);
    else if (strcmp(name, "unclean.leader.election.enable") == 0)
        ret->unclean = strcmp(value, "true") == 0;
    else if (strcmp(name, "cleanup.policy") == 0)
        ret->compacted = strstr(value, "compact") != NULL;
    else if (strcmp(name, "flush.messages") == 0)
        ret->flushed = strcmp(value, "1") == 0;
}

static bool
take_answer(rd_kafka_event_t *event, struct guarantees *ret)
{
    const rd_kafka_DescribeConfigs_result_t *result = rd_kafka_event_DescribeConfigs_result(event);
    const rd_kafka_ConfigEntry_t **entries;
    size_t count;

    if (!result || rd_kafka_event_error(event))
        return false;
    const rd_kafka_ConfigResource_t **resources =
        rd_kafka_DescribeConfigs_result_resources(result, &count);
    if (count != 1 || rd_kafka_ConfigResource_error(resources[0]))
        return false;
    entries = rd_kafka_ConfigResource_configs(resources[0], &count);
    for (size_t i = 0; i < count; i++)
        take_entry(rd_kafka_ConfigEntry_name(entries[i]), rd_kafka_ConfigEntry_value(entries[i]),
                   ret);
    return true;
}

/* Asks the broker; a user without the right to do so lives with the defaults. */
static bool
describe(struct kafka *k, const char *topic, struct guarantees *ret)
{
    rd_kafka_ConfigResource_t *resource;

    *ret = (struct guarantees){0};
    if (clock_mono_us() < k->untold_until_us)
        return false;
    resource = rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC, topic);
    rd_kafka_queue_t *answers = rd_kafka_queue_new(k->producer);
    rd_kafka_DescribeConfigs(k->producer, &resource, 1, NULL, answers);
    rd_kafka_event_t *event = rd_kafka_queue_poll(answers, TELL_MS);
    bool ok = event && take_answer(event, ret);
    if (event)
        rd_kafka_event_destroy(event);
    rd_kafka_queue_destroy(answers);
    rd_kafka_ConfigResource_destroy(resource);
    k->untold_until_us = ok ? 0 : clock_mono_us() + UNTOLD_US;
    return ok;
}

void
kafka_topic_limits(struct kafka *k, struct kafka_topic *topic)
{
    struct guarantees g;
    int64_t now = clock_mono_us();

    if (topic->asked_us != 0 && now - topic->asked_us < LIMITS_US)
        return;
    topic->asked_us = now;
    if (describe(k, topic->name, &g))
        topic->max_bytes = g.max_bytes;
}

/* Said once: what a confirm of this topic is worth. */
static void
say_guarantees(struct kafka_topic *topic, int replicas, const struct guarantees *g)
{
    enum durability d = g->flushed                            ? DURABLE_FSYNC
                        : replicas >= 2 && g->min_insync >= 2 ? DURABLE_REPLICATED
                                                              : DURABLE_PAGECACHE;

    if (topic->said)
        return;
    topic->said = true;
    log_info("kafka.topic", F_STR("topic", topic->name), F_I64("partitions", topic->partitions),
             F_I64("replication_factor", replicas), F_I64("min_insync_replicas", g->min_insync),
             F_I64("max_message_bytes", g->max_bytes),
             F_STR("confirmed_means", durability_name(d)));
    if (g->compacted)
        log_warn("kafka.compacted", F_STR("topic", topic->name),
                 F_STR("hint", "cleanup.policy=compact keeps only the newest event of a stream: a "
                               "consumer that comes late misses the others"));
    if (g->unclean)
        log_warn("kafka.unclean", F_STR("topic", topic->name),
                 F_STR("hint",
                       "unclean.leader.election.enable=true: a fail-over may lose confirmed "
                       "events"));
    if (d == DURABLE_PAGECACHE)
        log_warn("kafka.one_copy", F_STR("topic", topic->name),
                 F_STR("hint", "a confirmed event is in the memory of one broker: use replication "
                               "factor 3 and min.insync.replicas 2 where losing one matters"));
}

/* The user may publish, but not ask; then the broker's word is taken as it is. */
static void
say_untold(struct kafka_topic *topic, int replicas)
{
    if (topic->said)
        return;
    topic->said = true;
    log_warn("kafka.untold", F_STR("topic", topic->name), F_I64("partitions", topic->partitions),
             F_I64("replication_factor", replicas),
             F_STR("hint", "the broker does not tell this user what a confirm means and how large "
                           "a message may be, or not in time: grant DescribeConfigs on the topic"));
}

/* ------------------------------------------------------------------ metadata */

static bool
is_possible(const char *name)
{
    size_t len = strlen(name);

    return len > 0 && len <= NAME_MOST && strcmp(name, ".") != 0 && strcmp(name, "..") != 0 &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == len;
}

static bool
check_leaders(const struct kafka *k, const rd_kafka_metadata_topic_t *topic, struct error *err)
{
    for (int i = 0; i < topic->partition_cnt; i++) {
        if (topic->partitions[i].leader >= 0)
            continue;
        error_set_exit(err, ERR_DESTINATION, EXIT_AWAY, "kafka.no_leader",
                       "destination %s: partition %d of topic %s has no leader", k->config->name,
                       (int) topic->partitions[i].id, topic->topic);
        return error_hint(err,
                          "bring its brokers back; the relay waits, so that no stream is torn");
    }
    return true;
}

static bool
read_metadata(struct kafka *k, rd_kafka_topic_t *handle, int timeout_ms, int *ret_partitions,
              int *ret_replicas, struct error *err)
{
    const struct rd_kafka_metadata *metadata;
    const char *name = rd_kafka_topic_name(handle);
    rd_kafka_resp_err_t code = rd_kafka_metadata(k->producer, 0, handle, &metadata, timeout_ms);

    if (code)
        return kafka_no_answer(k, code, "asking for the topic", err);
    code = metadata->topic_cnt == 1 ? metadata->topics[0].err
                                    : RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
    bool ok = code == RD_KAFKA_RESP_ERR_NO_ERROR || code == RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE;
    if (!ok) {
        char doing[320];
        snprintf(doing, sizeof(doing), "topic %s", name);
        kafka_error(k->config, code, doing, NULL, err);
    } else {
        *ret_partitions = metadata->topics[0].partition_cnt;
        *ret_replicas = *ret_partitions > 0 ? metadata->topics[0].partitions[0].replica_cnt : 0;
        ok = check_leaders(k, &metadata->topics[0], err);
    }
    rd_kafka_metadata_destroy(metadata);
    return ok;
}

/* More than were counted stay empty: no stream moves.  With fewer, every stream would. */
static bool
compare_count(struct kafka *k, struct kafka_topic *topic, int has, struct error *err)
{
    bool known = has == topic->has;

    topic->has = has;
    if (has == topic->partitions || (known && has > topic->partitions))
        return true;
    if (has > topic->partitions) {
        log_error("kafka.partitions_added", F_STR("topic", topic->name),
                  F_I64("counted", topic->partitions), F_I64("now", has),
                  F_STR("hint",
                        "the relay keeps to the partitions it began with, so that no stream "
                        "moves past its own events; the new ones stay empty"));
        return true;
    }
    error_set_exit(err, ERR_DESTINATION, EXIT_CONFIG, "kafka.partitions",
                   "destination %s: topic %s has %d partitions, it was begun with %d",
                   k->config->name, topic->name, has, topic->partitions);
    return error_hint(err,
                      "make it again with %d, or give the events a new topic: with another "
                      "count, later events of a stream would pass earlier ones",
                      topic->partitions);
}

static struct kafka_topic *
remember(struct kafka *k, const char *name)
{
    struct kafka_topic *topic = kafka_topic_find(k, name);

    if (!topic) {
        GROW(k->topics, k->topic_count, k->topic_cap);
        topic = &k->topics[k->topic_count++];
        *topic = (struct kafka_topic){.name = xstrdup(name)};
    }
    if (!topic->handle)
        topic->handle = rd_kafka_topic_new(k->producer, name, NULL);
    PR_CHECK(topic->handle != NULL);
    return topic;
}

bool
kafka_topic_open(struct kafka *k, const char *name, int *partitions, struct error *err)
{
    struct guarantees g;
    int has = 0, replicas = 0;

    if (!is_possible(name))
        return kafka_error(k->config, RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION,
                           "the topic's name is impossible", NULL, err);
    struct kafka_topic *topic = remember(k, name);
    if (!read_metadata(k, topic->handle, ASK_MS, &has, &replicas, err))
        return false;
    topic->partitions = *partitions ? *partitions : has;
    if (!compare_count(k, topic, has, err))
        return false;
    *partitions = topic->partitions;
    topic->asked_us = clock_mono_us();
    if (describe(k, name, &g)) {
        topic->max_bytes = g.max_bytes;
        say_guarantees(topic, replicas, &g);
    } else {
        say_untold(topic, replicas);
    }
    return true;
}

bool
kafka_topics_watch(struct kafka *k, struct error *err)
{
    int64_t now = clock_mono_us();

    if (now < k->watch_at_us || k->watch_us <= 0)
        return true;
    k->watch_at_us = now + k->watch_us;
    for (int i = 0; i < k->topic_count; i++) {
        struct kafka_topic *topic = &k->topics[i];
        int has = 0, replicas = 0;
        struct error gone;
        if (!topic->handle)
            continue;
        /* A broker that does not answer now is no news about a topic, and of none. */
        if (!read_metadata(k, topic->handle, WATCH_MS, &has, &replicas, &gone))
            return true;
        if (!compare_count(k, topic, has, err))
            return false;
    }
    return true;
}

bool
kafka_topics_ready(struct kafka *k, struct error *err)
{
    for (int i = 0; i < k->topic_count; i++) {
        int has, replicas;
        if (k->topics[i].handle &&
            !read_metadata(k, k->topics[i].handle, WATCH_MS, &has, &replicas, err))
            return false;
    }
    return true;
}
