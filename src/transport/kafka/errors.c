#include <stdio.h>
#include <string.h>

#include "transport/kafka/kafka.h"

#define SEQUENCE "the relay goes on by itself with a fresh producer"

/* What an error says, and what to do.  First match wins; what is not here is UNKNOWN. */
static const struct rule {
    rd_kafka_resp_err_t code;
    enum error_class cls;
    const char *name;
    const char *hint;
} rules[] = {
    /* Only what an event's own bytes or name cause is the event's fault. */
    {RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE, ERR_PERMANENT, "kafka.too_large",
     "raise max.message.bytes of the topic, or keep the payload elsewhere and send a reference"},
    {RD_KAFKA_RESP_ERR_INVALID_MSG_SIZE, ERR_PERMANENT, "kafka.too_large",
     "raise max.message.bytes of the topic, or keep the payload elsewhere and send a reference"},
    {RD_KAFKA_RESP_ERR_INVALID_RECORD, ERR_PERMANENT, "kafka.invalid_record",
     "the topic's configuration refuses such a record: see cleanup.policy and the broker's log"},
    {RD_KAFKA_RESP_ERR_INVALID_MSG, ERR_PERMANENT, "kafka.invalid_record",
     "the broker found the record corrupt: see its log"},
    {RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION, ERR_PERMANENT, "kafka.topic_name",
     "a topic's name has up to 249 of the characters a-z A-Z 0-9 . _ -"},

    /* The destination has to be mended; no event is charged. */
    {RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART, ERR_DESTINATION, "kafka.no_topic",
     "make the topic: kafka-topics.sh --create --topic NAME --partitions N"},
    {RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC, ERR_DESTINATION, "kafka.no_topic",
     "make the topic: kafka-topics.sh --create --topic NAME --partitions N"},
    {RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION, ERR_DESTINATION, "kafka.partitions",
     "the topic has fewer partitions than it had: its order is lost; use a new topic"},
    {RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED, ERR_DESTINATION, "kafka.rights",
     "grant Write and Describe on the topic to this user"},
    {RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED, ERR_DESTINATION, "kafka.rights",
     "grant IdempotentWrite on the cluster to this user"},
    {RD_KAFKA_RESP_ERR_SASL_AUTHENTICATION_FAILED, ERR_DESTINATION, "kafka.auth",
     "check sasl.* in the destination's settings"},
    {RD_KAFKA_RESP_ERR__AUTHENTICATION, ERR_DESTINATION, "kafka.auth",
     "check sasl.* in the destination's settings"},
    {RD_KAFKA_RESP_ERR__SSL, ERR_DESTINATION, "kafka.auth",
     "check ssl.* and security.protocol in the destination's settings"},
    {RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE, ERR_DESTINATION, "kafka.no_leader",
     "bring the partition's brokers back"},
    {RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION, ERR_DESTINATION, "kafka.no_leader",
     "bring the partition's brokers back"},
    {RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS, ERR_DESTINATION, "kafka.replicas",
     "fewer replicas are in sync than min.insync.replicas asks for: bring brokers back"},
    {RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS_AFTER_APPEND, ERR_DESTINATION, "kafka.replicas",
     "fewer replicas are in sync than min.insync.replicas asks for: bring brokers back"},
    {RD_KAFKA_RESP_ERR_KAFKA_STORAGE_ERROR, ERR_DESTINATION, "kafka.storage",
     "a broker's disk has failed or is full: see its log"},
    {RD_KAFKA_RESP_ERR__TRANSPORT, ERR_DESTINATION, "kafka.away",
     "check that the brokers run, can be reached from here and speak this security.protocol"},
    {RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN, ERR_DESTINATION, "kafka.away",
     "check that the brokers run, can be reached from here and speak this security.protocol"},
    {RD_KAFKA_RESP_ERR__RESOLVE, ERR_DESTINATION, "kafka.away",
     "check the host names in bootstrap"},
    {RD_KAFKA_RESP_ERR__TIMED_OUT, ERR_DESTINATION, "kafka.away",
     "check that the brokers run, can be reached from here and speak this security.protocol"},

    /* The producer and the broker no longer agree about its messages; a fresh one takes over. */
    {RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER, ERR_UNKNOWN, "kafka.sequence", SEQUENCE},
    {RD_KAFKA_RESP_ERR_UNKNOWN_PRODUCER_ID, ERR_UNKNOWN, "kafka.sequence", SEQUENCE},
    {RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH, ERR_UNKNOWN, "kafka.sequence", SEQUENCE},
    {RD_KAFKA_RESP_ERR__FENCED, ERR_UNKNOWN, "kafka.sequence", SEQUENCE},

    /* Known not to be stored. */
    {RD_KAFKA_RESP_ERR__PURGE_QUEUE, ERR_TRANSIENT, "kafka.purged", ""},
    {RD_KAFKA_RESP_ERR__GAPLESS_GUARANTEE, ERR_TRANSIENT, "kafka.purged", ""},
};

static const struct rule *
find(rd_kafka_resp_err_t code)
{
    for (size_t i = 0; i < PR_LENGTH(rules); i++)
        if (rules[i].code == code)
            return &rules[i];
    return NULL;
}

enum error_class
kafka_class(rd_kafka_resp_err_t code)
{
    const struct rule *rule = find(code);

    return rule ? rule->cls : ERR_UNKNOWN;
}

/* Its size or its name: no state of the broker makes these up. */
static bool
is_about_the_event(rd_kafka_resp_err_t code)
{
    return code == RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE ||
           code == RD_KAFKA_RESP_ERR_INVALID_MSG_SIZE || code == RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION;
}

bool
kafka_error(const struct destination_config *d, rd_kafka_resp_err_t code, const char *doing,
            const char *reason, struct error *err)
{
    const struct rule *rule = find(code);
    const char *words = reason && *reason ? reason : rd_kafka_err2str(code);

    error_set_exit(err, rule ? rule->cls : ERR_UNKNOWN, EXIT_AWAY,
                   rule ? rule->name : "kafka.error", "destination %s (%s): %s: %s (%s)", d->name,
                   d->bootstrap, doing, words, rd_kafka_err2name(code));
    err->proven = is_about_the_event(code);
    return error_hint(err, "%s", rule ? rule->hint : "see the broker's log");
}
