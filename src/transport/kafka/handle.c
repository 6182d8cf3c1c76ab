#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "transport/kafka/kafka.h"

/*
 * What order and "not lost" rest on.  gapless: a batch refused for good stops the producer,
 * so that nothing is stored behind it.  message.timeout.ms=0: a time-out punches a hole that
 * gapless does not cover.  Each of them is refused in the configuration: what is given there
 * is never overruled in silence.
 */
static const struct kafka_default fixed[] = {
    {"enable.idempotence", "true"},
    {"enable.gapless.guarantee", "true"},
    {"message.timeout.ms", "0"},
    {"allow.auto.create.topics", "false"},
    {"delivery.report.only.error", "false"},
    {"queue.buffering.max.messages", "1000000"},
    {"queue.buffering.max.kbytes", "1048576"},
    {"message.max.bytes", "100000000"},
};

/*
 * What may be set otherwise.  reconnect.backoff.max.ms: with the default of ten seconds, a
 * broker that is back stays unused for as long.
 */
static const struct kafka_default usual[] = {
    {"linger.ms", "2"},
    {"batch.num.messages", "10000"},
    {"reconnect.backoff.max.ms", "500"},
    {"topic.metadata.refresh.interval.ms", "30000"},
    {"socket.keepalive.enable", "true"},
    {"log.connection.close", "false"},
};

bool
kafka_set(rd_kafka_conf_t *conf, const char *name, const char *value, const char *where,
          struct error *err)
{
    char reason[300];

    if (rd_kafka_conf_set(conf, name, value, reason, sizeof(reason)) == RD_KAFKA_CONF_OK)
        return true;
    error_set_exit(err, ERR_STOP, EXIT_CONFIG, "kafka.setting", "%s: %s", where, reason);
    return error_hint(err, "settings are librdkafka's own; see its CONFIGURATION.md");
}

/* The library's own lines, as ours.  Called from its threads. */
static void
on_log(const rd_kafka_t *producer, int level, const char *facility, const char *text)
{
    (void) producer;
    if (level <= 4)
        log_debug("kafka.library", F_STR("facility", facility), F_STR("message", text));
}

static bool
set_all(rd_kafka_conf_t *conf, const struct kafka_default *settings, size_t count,
        const char *where, struct error *err)
{
    for (size_t i = 0; i < count; i++)
        if (!kafka_set(conf, settings[i].name, settings[i].value, where, err))
            return false;
    return true;
}

bool
kafka_configure(rd_kafka_conf_t *conf, const struct destination_config *d,
                const struct kafka_defaults *defaults, struct error *err)
{
    char where[160], own[180];

    snprintf(where, sizeof(where), "destinations.%s", d->name);
    snprintf(own, sizeof(own), "%s.settings", where);
    if (!set_all(conf, defaults->usual, defaults->usual_count, where, err))
        return false;
    for (size_t i = 0; i < d->setting_count; i++)
        if (!kafka_set(conf, d->settings[i].name, d->settings[i].value, own, err))
            return false;
    rd_kafka_conf_set_log_cb(conf, on_log);
    return set_all(conf, defaults->fixed, defaults->fixed_count, own, err) &&
           kafka_set(conf, "bootstrap.servers", d->bootstrap, own, err) &&
           kafka_set(conf, "client.id", "postrider", own, err);
}

int64_t
kafka_least_limit(const struct kafka *k)
{
    int64_t least = KAFKA_BATCH;

    for (int i = 0; i < k->topic_count; i++)
        if (k->topics[i].max_bytes > 0 && k->topics[i].max_bytes - KAFKA_OVERHEAD < least)
            least = k->topics[i].max_bytes - KAFKA_OVERHEAD;
    return least > 1 ? least : 1;
}

static bool
configure(struct kafka *k, rd_kafka_conf_t *conf, struct error *err)
{
    static const struct kafka_defaults defaults = {usual, PR_LENGTH(usual), fixed,
                                                   PR_LENGTH(fixed)};
    char batch[24];

    k->batch_bytes = kafka_least_limit(k);
    snprintf(batch, sizeof(batch), "%lld", (long long) k->batch_bytes);
    rd_kafka_conf_set_events(conf, RD_KAFKA_EVENT_DR | RD_KAFKA_EVENT_ERROR);
    return kafka_configure(conf, k->config, &defaults, err) &&
           kafka_set(conf, "batch.size", batch, k->config->name, err);
}

/* Topics are looked at as often as the library does it by itself. */
static int64_t
refresh_interval_us(const struct kafka *k)
{
    char text[24] = "";
    size_t size = sizeof(text);

    if (rd_kafka_conf_get(rd_kafka_conf(k->producer), "topic.metadata.refresh.interval.ms", text,
                          &size) != RD_KAFKA_CONF_OK)
        return 0;
    return strtoll(text, NULL, 10) * 1000;
}

bool
kafka_handle_open(struct kafka *k, struct error *err)
{
    rd_kafka_conf_t *conf;
    char reason[300];

    if (k->producer)
        return true;
    conf = rd_kafka_conf_new();
    if (!configure(k, conf, err)) {
        rd_kafka_conf_destroy(conf);
        return false;
    }
    k->producer = rd_kafka_new(RD_KAFKA_PRODUCER, conf, reason, sizeof(reason));
    if (!k->producer) {
        rd_kafka_conf_destroy(conf);
        error_set_exit(err, ERR_STOP, EXIT_CONFIG, "kafka.setting", "destination %s: %s",
                       k->config->name, reason);
        return error_hint(err, "correct the destination's settings");
    }
    k->events = rd_kafka_queue_get_main(k->producer);
    k->watch_us = refresh_interval_us(k);
    k->watch_at_us = clock_mono_us() + k->watch_us;
    return true;
}

void
kafka_handle_close(struct kafka *k)
{
    kafka_topics_forget(k);
    if (k->events)
        rd_kafka_queue_destroy(k->events);
    if (k->producer)
        rd_kafka_destroy(k->producer);
    k->events = NULL;
    k->producer = NULL;
}
