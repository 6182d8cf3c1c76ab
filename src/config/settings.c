#include <string.h>

#include "config/check.h"
#include "core/attr.h"

#define ORDER "order and \"not lost\" rest on it"
#define OURS "it is an option of its own, or follows from one"
#define POSITION "the consumer's database holds its positions, and nothing may be skipped"
#define MEMORY "the relay bounds what is under way by itself"

static const struct {
    const char *name;
    const char *why;
} refused[] = {
    {"acks", "a confirm must mean all in-sync replicas"},
    {"request.required.acks", "a confirm must mean all in-sync replicas"},
    {"enable.idempotence", ORDER},
    {"enable.gapless.guarantee", ORDER},
    {"message.timeout.ms", ORDER},
    {"delivery.timeout.ms", ORDER},
    {"max.in.flight", ORDER},
    {"max.in.flight.requests.per.connection", ORDER},
    {"retries", ORDER},
    {"message.send.max.retries", ORDER},
    {"queuing.strategy", ORDER},
    {"partitioner", "the partition is Postrider's own choice: murmur2 of the key"},
    {"transactional.id", ORDER},
    {"allow.auto.create.topics", "a topic has to be made on purpose"},
    {"bootstrap.servers", OURS},
    {"metadata.broker.list", OURS},
    {"client.id", OURS},
    {"batch.size", "it follows from the topic's max.message.bytes"},
    {"message.max.bytes", "it follows from the topic's max.message.bytes"},
    {"queue.buffering.max.messages", MEMORY},
    {"queue.buffering.max.kbytes", MEMORY},
    {"delivery.report.only.error", "a confirm is the broker's word about each message"},
    {"group.id", "it is the consumer's name"},
    {"enable.auto.commit", POSITION},
    {"enable.auto.offset.store", POSITION},
    {"auto.offset.reset", POSITION},
    {"isolation.level", POSITION},
    {"partition.assignment.strategy", POSITION},
    {"dr_cb", OURS},
    {"dr_msg_cb", OURS},
};

const char *
setting_refusal(const char *name)
{
    for (size_t i = 0; i < PR_LENGTH(refused); i++)
        if (strcmp(refused[i].name, name) == 0)
            return refused[i].why;
    return NULL;
}
