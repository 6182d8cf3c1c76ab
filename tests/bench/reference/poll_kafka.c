/*
 * poll_kafka.c DSN BROKERS TOPIC PARTITIONS — the bare read of an outbox feeding a bare
 * librdkafka producer with the relay's settings and the same headers; every delivery
 * report awaited.  Bodies are lent, so a range is kept until all of it is delivered.
 */
#include "ranges.h"

#include <librdkafka/rdkafka.h>

enum { MOST_RANGES = 64 }; /* read and not yet delivered as a whole */

struct range {
    PGresult *res;
    long left; /* messages without a report */
};

static struct range ranges_sent[MOST_RANGES];
static long delivered;

static const char *const settings[][2] = {
    {"enable.idempotence", "true"},
    {"enable.gapless.guarantee", "true"},
    {"message.timeout.ms", "0"},
    {"linger.ms", "2"},
    {"batch.num.messages", "10000"},
    {"queue.buffering.max.messages", "1000000"},
    {"queue.buffering.max.kbytes", "1048576"},
    {"message.max.bytes", "100000000"},
};

static void
release(struct range *range)
{
    if (--range->left > 0)
        return;
    PQclear(range->res);
    range->res = NULL;
}

static void
on_delivery(rd_kafka_t *kafka, const rd_kafka_message_t *message, void *unused)
{
    (void) kafka;
    (void) unused;
    if (message->err)
        fail("delivery", rd_kafka_err2str(message->err));
    delivered++;
    release(message->_private);
}

static rd_kafka_t *
open_producer(const char *brokers)
{
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    char why[512];

    for (size_t i = 0; i < sizeof(settings) / sizeof(*settings); i++)
        if (rd_kafka_conf_set(conf, settings[i][0], settings[i][1], why, sizeof(why)))
            fail("setting", why);
    if (rd_kafka_conf_set(conf, "bootstrap.servers", brokers, why, sizeof(why)))
        fail("setting", why);
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    rd_kafka_t *kafka = rd_kafka_new(RD_KAFKA_PRODUCER, conf, why, sizeof(why));
    if (!kafka)
        fail("producer", why);
    return kafka;
}

static void
produce(rd_kafka_t *kafka, rd_kafka_topic_t *topic, int partitions, struct range *range, int row)
{
    char text[200];
    struct value values[MESSAGE_HEADERS], key = column(range->res, row, AGGREGATE),
                                          body = column(range->res, row, BODY);
    rd_kafka_headers_t *headers = rd_kafka_headers_new(MESSAGE_HEADERS);
    rd_kafka_resp_err_t err;

    headers_of(range->res, row, text, values);
    for (int i = 0; i < MESSAGE_HEADERS; i++)
        rd_kafka_header_add(headers, header_name[i], -1, values[i].at, values[i].len);
    do {
        err = rd_kafka_producev(
            kafka, RD_KAFKA_V_RKT(topic),
            RD_KAFKA_V_PARTITION((int32_t) (spread(key.at, key.len) % (uint32_t) partitions)),
            RD_KAFKA_V_KEY(key.at, (size_t) key.len),
            RD_KAFKA_V_VALUE((void *) body.at, (size_t) body.len), RD_KAFKA_V_HEADERS(headers),
            RD_KAFKA_V_OPAQUE(range), RD_KAFKA_V_END);
        if (err == RD_KAFKA_RESP_ERR__QUEUE_FULL)
            rd_kafka_poll(kafka, 10);
    } while (err == RD_KAFKA_RESP_ERR__QUEUE_FULL);
    if (err)
        fail("produce", rd_kafka_err2str(err));
}

static struct range *
free_range(rd_kafka_t *kafka)
{
    for (;;) {
        for (int i = 0; i < MOST_RANGES; i++)
            if (!ranges_sent[i].res)
                return &ranges_sent[i];
        rd_kafka_poll(kafka, 10);
    }
}

int
main(int argc, char **argv)
{
    if (argc != 5)
        fail("usage", "poll_kafka DSN BROKERS TOPIC PARTITIONS");
    int partitions = (int) strtol(argv[4], NULL, 10);
    rd_kafka_t *kafka = open_producer(argv[2]);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(kafka, argv[3], NULL);
    struct ranges ranges;
    double began = now_seconds();
    long count = 0;
    PGresult *res;

    ranges_open(&ranges, argv[1]);
    while ((res = ranges_take(&ranges))) {
        struct range *range = free_range(kafka);
        int rows = PQntuples(res);
        *range = (struct range){res, rows + 1}; /* the one more is for this loop */
        for (int row = 0; row < rows; row++) {
            produce(kafka, topic, partitions, range, row);
            if (row % 256 == 0) {
                rd_kafka_poll(kafka, 0);
                ranges_drain(&ranges);
            }
        }
        release(range);
        count += rows;
    }
    while (delivered < count)
        rd_kafka_poll(kafka, 100);
    ranges_close(&ranges);
    report(count, began);
    rd_kafka_topic_destroy(topic);
    rd_kafka_destroy(kafka);
    return 0;
}
