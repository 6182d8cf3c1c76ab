/*
 * kafka.h — the inside of the Kafka transport, shared by its files: kafka.c (sending and
 * the broker's word), handle.c (the producer and its settings), topics.c (what a topic
 * is), errors.c (what each error of librdkafka means).
 *
 * One idempotent, gapless producer for each relay.  When a batch is refused for good,
 * librdkafka stops the whole producer: nothing behind it is stored.  Then everything
 * under way is waited for, the producer is thrown away and a fresh one takes over.
 * docs/internals/transports.md, "Kafka".
 */
#ifndef PR_KAFKA_H
#define PR_KAFKA_H

#include <librdkafka/rdkafka.h>

#include "transport/transport.h"

enum {
    KAFKA_MAX_QUEUE = 32768,
    KAFKA_MAX_BYTES = 16 * 1024 * 1024,
    KAFKA_BATCH = 1000000, /* bytes of a batch, where the topic allows it */
    KAFKA_OVERHEAD = 512,  /* of a message in a batch, and of a batch, at most */
};

struct kafka_topic {
    char *name;
    rd_kafka_topic_t *handle; /* NULL: of a producer that is gone */
    int partitions;           /* as the relay counts them */
    int has;                  /* as the broker counted them last */
    int64_t max_bytes;        /* the largest batch the broker takes; 0: not known */
    int64_t asked_us;         /* when that was read */
    bool said;                /* its guarantees have been logged */
};

struct kafka {
    struct transport base;
    const struct destination_config *config;
    rd_kafka_t *producer; /* NULL: a new one is made when it is needed */
    rd_kafka_queue_t *events;
    int64_t batch_bytes; /* of the producer */
    struct kafka_topic *topics;
    int topic_count, topic_cap;
    int64_t untold_until_us; /* the broker does not tell limits: it is not asked before then */
    int64_t watch_us;        /* between two looks at the topics; not above 0: none */
    int64_t watch_at_us;     /* the next one */

    size_t under_way;
    bool draining;       /* something failed: nothing is sent, all under way is waited for */
    int64_t purge_at_us; /* … until then; what has no word by that time is given up */
    bool purged;
    struct error cause; /* the first failure */
    uint32_t *kept;     /* messages taken while draining, or refused before they were sent */
    enum error_class *kept_class;
    size_t kept_count;

    struct error trouble; /* the brokers are away or the like; code "": they are not */
    int64_t word_us;      /* when the broker's last word came, or waiting for it began */
    int64_t look_at_us;   /* next search for the reason of its silence */
};

/* errors.c: the class of a message's failure by itself. */
enum error_class kafka_class(rd_kafka_resp_err_t code);
/* Fills err for a failure while `doing`; false. */
bool kafka_error(const struct destination_config *d, rd_kafka_resp_err_t code, const char *doing,
                 const char *reason, struct error *err);
/* The same for a request without an answer: what the library has said meanwhile tells more. */
bool kafka_no_answer(struct kafka *k, rd_kafka_resp_err_t code, const char *doing,
                     struct error *err);

/* handle.c */
struct kafka_default {
    const char *name, *value;
};
struct kafka_defaults {
    const struct kafka_default *usual; /* the configuration may set them otherwise */
    size_t usual_count;
    const struct kafka_default *fixed; /* it may not */
    size_t fixed_count;
};

/* One of librdkafka's settings; `where` names its place in the configuration. */
bool kafka_set(rd_kafka_conf_t *conf, const char *name, const char *value, const char *where,
               struct error *err) PR_MUSTCHECK;
/* What every client of the destination has: defaults, its own settings, the brokers, the log. */
bool kafka_configure(rd_kafka_conf_t *conf, const struct destination_config *d,
                     const struct kafka_defaults *defaults, struct error *err) PR_MUSTCHECK;
/* Bytes of a batch that every known topic takes. */
int64_t kafka_least_limit(const struct kafka *k);
bool kafka_handle_open(struct kafka *k, struct error *err) PR_MUSTCHECK;
void kafka_handle_close(struct kafka *k);

/* topics.c */
struct kafka_topic *kafka_topic_find(struct kafka *k, const char *name);
bool kafka_topic_open(struct kafka *k, const char *name, int *partitions,
                      struct error *err) PR_MUSTCHECK;
/* Reads the topic's limits again if that was not done just now. */
void kafka_topic_limits(struct kafka *k, struct kafka_topic *topic);
/* Whether some topic has other partitions than it had, once in a while. */
bool kafka_topics_watch(struct kafka *k, struct error *err) PR_MUSTCHECK;
/* Whether each topic is there with a leader of each partition. */
bool kafka_topics_ready(struct kafka *k, struct error *err) PR_MUSTCHECK;
void kafka_topics_forget(struct kafka *k); /* the producer is gone */
void kafka_topics_free(struct kafka *k);

#endif
