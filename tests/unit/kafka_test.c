/*
 * What becomes of each message when the broker answers with an error.  librdkafka's own
 * broker is used, because a real one cannot be made to answer so; it does not check
 * sequences, so a load is sent in batches of ten, of which one at a time is under way.
 * What a real broker does by itself is in tests/system/test_kafka.py.
 */
#include "tests/unit/t.h"

#include <librdkafka/rdkafka.h>
/* after its own prerequisite */
#include <librdkafka/rdkafka_mock.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/clock.h"
#include "relay/flight.h"
#include "transport/kafka/kafka.h"
#include "transport/transport.h"

enum { PRODUCE = 0, MESSAGES = 60, MOST_STORED = 600 }; /* PRODUCE: the request's number */

static struct bench {
    rd_kafka_t *owner;
    rd_kafka_mock_cluster_t *cluster;
    struct setting_config settings[3];
    struct destination_config config;
    struct transport *transport;
    struct flight flight;
    struct message messages[MESSAGES];
    char bodies[MESSAGES][8];
    int failures; /* flights that failed for the destination's sake */
    struct error last;
    int refused[MESSAGES];
    int refused_count;
} b;

static void
connect_to_mock(void)
{
    struct uuid writer = {{0}};
    struct error err;
    int partitions = 0;

    if (!transport_kafka.open(&b.config, "test", &writer, &b.transport, &err) ||
        !transport_kafka.topic(b.transport, "t", &partitions, &err))
        fail_msg("%s: %s", err.code, err.text);
    b.flight.transport = b.transport;
}

static int
set_up(void **state)
{
    static char batch[] = "batch.num.messages", ten[] = "10", linger[] = "linger.ms",
                long_ms[] = "20", backoff[] = "retry.backoff.ms", short_ms[] = "50", name[] = "d",
                kind[] = "kafka";
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    char reason[200];

    (void) state;
    memset(&b, 0, sizeof(b));
    b.owner = rd_kafka_new(RD_KAFKA_PRODUCER, conf, reason, sizeof(reason));
    b.cluster = rd_kafka_mock_cluster_new(b.owner, 1);
    rd_kafka_mock_topic_create(b.cluster, "t", 1, 1);
    b.settings[0] = (struct setting_config){batch, ten};
    b.settings[1] = (struct setting_config){linger, long_ms};
    b.settings[2] = (struct setting_config){backoff, short_ms};
    b.config = (struct destination_config){.name = name,
                                           .transport = kind,
                                           .settings = b.settings,
                                           .setting_count = PR_LENGTH(b.settings)};
    b.config.bootstrap = strdup(rd_kafka_mock_cluster_bootstraps(b.cluster));
    connect_to_mock();
    for (int i = 0; i < MESSAGES; i++) {
        snprintf(b.bodies[i], sizeof(b.bodies[i]), "%d", i);
        b.messages[i] = (struct message){
            .topic = "t", .key = {"k", 1}, .body = {b.bodies[i], strlen(b.bodies[i])}};
    }
    flight_load(&b.flight, b.messages, MESSAGES);
    return 0;
}

static int
tear_down(void **state)
{
    (void) state;
    if (b.transport)
        transport_kafka.close(b.transport);
    flight_release(&b.flight);
    rd_kafka_mock_cluster_destroy(b.cluster);
    rd_kafka_destroy(b.owner);
    free(b.config.bootstrap);
    return 0;
}

/* As the worker does it: a destination that failed is opened again. */
static void
fly(int64_t for_us)
{
    int64_t until = clock_mono_us() + for_us;

    while (!flight_settled(&b.flight)) {
        struct flight_news news;
        struct error err = {0};
        if (clock_mono_us() > until)
            fail_msg("%u of %d settled; last error: %s", b.flight.settled, MESSAGES, b.last.text);
        bool ok = flight_move(&b.flight, 1, clock_mono_us() + 100000, &news, &err);
        if (!ok)
            b.last = err;
        if (news.refused >= 0) {
            b.refused[b.refused_count++] = (int) news.refused;
            flight_decide(&b.flight, (uint32_t) news.refused, FATE_DEAD);
        } else if (!ok && !news.parted) {
            b.failures++;
            transport_kafka.close(b.transport);
            connect_to_mock();
        }
    }
}

/* The bodies in the log, in order. */
static int
read_log(int *ret)
{
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    char reason[200];
    int count = 0;
    bool end = false;

    rd_kafka_conf_set(conf, "bootstrap.servers", b.config.bootstrap, NULL, 0);
    rd_kafka_conf_set(conf, "group.id", "g", NULL, 0);
    rd_kafka_conf_set(conf, "enable.partition.eof", "true", NULL, 0);
    rd_kafka_t *reader = rd_kafka_new(RD_KAFKA_CONSUMER, conf, reason, sizeof(reason));
    rd_kafka_topic_partition_list_t *parts = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(parts, "t", 0)->offset = RD_KAFKA_OFFSET_BEGINNING;
    rd_kafka_assign(reader, parts);
    rd_kafka_topic_partition_list_destroy(parts);
    for (int tries = 0; !end && tries < MOST_STORED; tries++) {
        rd_kafka_message_t *message = rd_kafka_consumer_poll(reader, 500);
        if (!message)
            continue;
        end = message->err == RD_KAFKA_RESP_ERR__PARTITION_EOF;
        if (!message->err)
            ret[count++] = (int) strtol((char *) message->payload, NULL, 10);
        rd_kafka_message_destroy(message);
    }
    assert_true(end);
    rd_kafka_consumer_close(reader);
    rd_kafka_destroy(reader);
    return count;
}

/* Everything that was not refused is there, and was there for the first time in order. */
static int
check_log(void)
{
    int log[MOST_STORED], count = read_log(log), next = 0;

    for (int i = 0; i < count; i++) {
        if (log[i] < next)
            continue; /* once more */
        for (int r = 0; r < b.refused_count; r++)
            next += b.refused[r] == next;
        assert_int_equal(log[i], next);
        next++;
    }
    assert_int_equal(next, MESSAGES);
    assert_int_equal(b.flight.breaches, 0);
    return count;
}

static void
push(rd_kafka_resp_err_t code)
{
    /* The first batch is stored, the second is answered so. */
    rd_kafka_mock_push_request_errors(b.cluster, PRODUCE, 2, RD_KAFKA_RESP_ERR_NO_ERROR, code);
}

static void
what_the_library_gets_over_is_no_failure(void **state)
{
    static const rd_kafka_resp_err_t codes[] = {
        RD_KAFKA_RESP_ERR__TRANSPORT, RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
        RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS, RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS_AFTER_APPEND};

    (void) state;
    for (size_t i = 0; i < PR_LENGTH(codes); i++) {
        push(codes[i]);
        flight_load(&b.flight, b.messages, MESSAGES);
        fly(20000000);
        assert_int_equal(b.failures, 0);
        assert_int_equal(b.refused_count, 0);
    }
    assert_int_equal(b.flight.breaches, 0);
}

/* The second batch fails for good: nothing behind it may be stored before it is. */
static void
nothing_is_stored_behind_a_failure(void **state)
{
    rd_kafka_resp_err_t code = *(rd_kafka_resp_err_t *) *state;

    set_up(NULL);
    push(code);
    fly(20000000);
    assert_int_equal(b.refused_count, 0); /* the refusal of a batch is no message's */
    assert_int_equal(check_log(), MESSAGES);
    if (kafka_class(code) == ERR_PERMANENT) {
        assert_int_equal(b.failures, 0);
        assert_int_equal(b.last.cls, ERR_PERMANENT);
    } else {
        assert_int_equal(b.failures, 1);
        assert_int_equal(b.last.cls, kafka_class(code));
        assert_string_not_equal(b.last.code, "kafka.purged"); /* it is the cause that is told */
    }
    tear_down(NULL);
}

static void
only_what_is_refused_alone_is_refused(void **state)
{
    rd_kafka_resp_err_t too_large = RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE, fine = 0;

    (void) state;
    /* The second batch as a whole, then the third of its messages alone. */
    rd_kafka_mock_push_request_errors(b.cluster, PRODUCE, 5, fine, too_large, fine, fine,
                                      too_large);
    fly(30000000);
    assert_int_equal(b.refused_count, 1);
    assert_int_equal(b.refused[0], 12);
    assert_int_equal(check_log(), MESSAGES - 1);
    assert_int_equal(b.failures, 0);
}

/* What librdkafka calls fatal is routine: a fresh producer, and everything in order. */
static void
a_fatal_error_is_got_over(void **state)
{
    struct flight_news news;
    struct error err;

    (void) state;
    rd_kafka_mock_broker_set_rtt(b.cluster, 1, 300);
    assert_true(flight_move(&b.flight, 1, clock_mono_us() + 20000, &news, &err));
    assert_int_equal(b.flight.sent - b.flight.settled, MESSAGES);
    rd_kafka_test_fatal_error(((struct kafka *) b.transport)->producer,
                              RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER, "by the test");
    fly(20000000);
    assert_int_equal(b.failures, 1);
    assert_string_equal(b.last.code, "kafka.sequence");
    check_log();
}

/* The same while nothing is under way: the next message finds it out. */
static void
a_fatal_error_at_rest_is_got_over(void **state)
{
    (void) state;
    fly(20000000);
    rd_kafka_test_fatal_error(((struct kafka *) b.transport)->producer,
                              RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED, "by the test");
    flight_load(&b.flight, b.messages, MESSAGES);
    fly(20000000);
    assert_int_equal(b.failures, 1);
    assert_string_equal(b.last.code, "kafka.rights");
    assert_int_equal(b.flight.breaches, 0);
}

static void
a_broker_that_is_away_is_waited_for(void **state)
{
    struct flight_news news;
    struct error err = {0}, reason = {0};

    (void) state;
    rd_kafka_mock_broker_set_down(b.cluster, 1);
    for (int i = 0; i < 15; i++)
        assert_true(flight_move(&b.flight, 1, clock_mono_us() + 100000, &news, &err));
    assert_true(transport_kafka.waiting(b.transport, &reason));
    assert_string_equal(reason.code, "kafka.away");
    assert_int_equal(b.flight.settled, 0);
    rd_kafka_mock_broker_set_up(b.cluster, 1);
    fly(20000000);
    assert_int_equal(b.failures, 0);
    assert_int_equal(check_log(), MESSAGES);
    assert_false(transport_kafka.waiting(b.transport, &reason));
}

/* librdkafka tries again without a word when replicas are missing; a person has to be told. */
static void
silence_is_explained(void **state)
{
    struct flight_news news;
    struct error err, reason = {0};
    int64_t until = clock_mono_us() + 15000000;

    (void) state;
    for (int i = 0; i < 1000; i++)
        rd_kafka_mock_push_request_errors(b.cluster, PRODUCE, 1,
                                          RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS);
    do {
        assert_true(flight_move(&b.flight, 1, clock_mono_us() + 100000, &news, &err));
        assert_true(clock_mono_us() < until);
    } while (!transport_kafka.waiting(b.transport, &reason));
    assert_string_equal(reason.code, "kafka.silent");
    assert_non_null(strstr(reason.text, "no word about 60 messages for 10 s"));
    rd_kafka_mock_clear_request_errors(b.cluster, PRODUCE);
    fly(20000000);
    assert_int_equal(b.failures, 0);
    assert_int_equal(check_log(), MESSAGES);
}

/* Closed with messages under way: the library lets go of them at once, and none is lost. */
static void
closing_lets_go_of_what_is_under_way(void **state)
{
    struct flight_news news;
    struct error err;
    int64_t began;

    (void) state;
    rd_kafka_mock_broker_set_rtt(b.cluster, 1, 500);
    assert_true(flight_move(&b.flight, 1, clock_mono_us() + 1000, &news, &err));
    began = clock_mono_us();
    transport_kafka.close(b.transport);
    assert_true(clock_mono_us() - began < 2000000);
    rd_kafka_mock_broker_set_rtt(b.cluster, 1, 0);
    connect_to_mock();
    flight_load(&b.flight, b.messages, MESSAGES);
    fly(20000000);
    check_log();
}

/* An error nobody has thought of may mean that the message was stored. */
static void
classes_of_errors(void **state)
{
    (void) state;
    assert_int_equal(kafka_class(RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE), ERR_PERMANENT);
    assert_int_equal(kafka_class(RD_KAFKA_RESP_ERR_INVALID_RECORD), ERR_PERMANENT);
    assert_int_equal(kafka_class(RD_KAFKA_RESP_ERR_INVALID_MSG), ERR_PERMANENT);
    assert_int_equal(kafka_class(RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION), ERR_PERMANENT);
    assert_int_equal(kafka_class(RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART), ERR_DESTINATION);
    assert_int_equal(kafka_class(RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC), ERR_DESTINATION);
    assert_int_equal(kafka_class(RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED), ERR_DESTINATION);
    assert_int_equal(kafka_class(RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED), ERR_DESTINATION);
    assert_int_equal(kafka_class(RD_KAFKA_RESP_ERR__AUTHENTICATION), ERR_DESTINATION);
    assert_int_equal(kafka_class(RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE), ERR_DESTINATION);
    assert_int_equal(kafka_class(RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS), ERR_DESTINATION);
    assert_int_equal(kafka_class(RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN), ERR_DESTINATION);
    assert_int_equal(kafka_class(RD_KAFKA_RESP_ERR__PURGE_QUEUE), ERR_TRANSIENT);
    assert_int_equal(kafka_class(RD_KAFKA_RESP_ERR__PURGE_INFLIGHT), ERR_UNKNOWN);
    assert_int_equal(kafka_class(RD_KAFKA_RESP_ERR__MSG_TIMED_OUT), ERR_UNKNOWN);
    assert_int_equal(kafka_class(RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER), ERR_UNKNOWN);
    assert_int_equal(kafka_class(RD_KAFKA_RESP_ERR_POLICY_VIOLATION), ERR_UNKNOWN);
}

#define OVER_CODE(name)                                                                            \
    {                                                                                              \
        "nothing_is_stored_behind_" #name, nothing_is_stored_behind_a_failure, NULL, NULL,         \
            &(rd_kafka_resp_err_t)                                                                 \
        {                                                                                          \
            RD_KAFKA_RESP_ERR_##name                                                               \
        }                                                                                          \
    }

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_of_errors),
        cmocka_unit_test_setup_teardown(what_the_library_gets_over_is_no_failure, set_up,
                                        tear_down),
        OVER_CODE(MSG_SIZE_TOO_LARGE),
        OVER_CODE(INVALID_RECORD),
        OVER_CODE(TOPIC_AUTHORIZATION_FAILED),
        OVER_CODE(INVALID_PRODUCER_EPOCH),
        OVER_CODE(OUT_OF_ORDER_SEQUENCE_NUMBER),
        OVER_CODE(POLICY_VIOLATION),
        cmocka_unit_test_setup_teardown(only_what_is_refused_alone_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_fatal_error_is_got_over, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_fatal_error_at_rest_is_got_over, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_broker_that_is_away_is_waited_for, set_up, tear_down),
        cmocka_unit_test_setup_teardown(silence_is_explained, set_up, tear_down),
        cmocka_unit_test_setup_teardown(closing_lets_go_of_what_is_under_way, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
