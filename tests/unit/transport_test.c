#include "tests/unit/t.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "relay/flight.h"
#include "transport/transport.h"

static char path[] = "/tmp/postrider-file-test.XXXXXX";

static struct transport *
open_file(void)
{
    struct destination_config config = {.transport = path, .path = path};
    struct transport *t;
    struct uuid writer = {{0}};
    struct error err;

    assert_true(transport_find("file")->open(&config, "test", &writer, &t, &err));
    return t;
}

static size_t
read_file(char *text, size_t size)
{
    FILE *in = fopen(path, "r");
    size_t len = fread(text, 1, size - 1, in);

    text[len] = '\0';
    fclose(in);
    return len;
}

static struct message
message(const char *body, int lane)
{
    static const struct header json = {"content-type", {"application/json", 16}};

    return (struct message){.topic = "t",
                            .key = {"k", 1},
                            .body = {body, strlen(body)},
                            .headers = &json,
                            .header_count = 1,
                            .lane = lane};
}

static void
file_lines_are_whole_and_a_half_one_is_cut(void **state)
{
    struct transport *t;
    struct message messages[2] = {message("{\"a\": 1}", 0), message("{\"b\": \"\\n\"}", 1)};
    struct flight flight = {0};
    struct error err;
    char text[4096];
    struct flight_news news;

    (void) state;
    int fd = open(path, O_WRONLY | O_APPEND);
    assert_int_equal(write(fd, "{\"kept\":1}\n{\"half", 17), 17);
    close(fd);
    t = open_file();
    flight.transport = t;
    flight_load(&flight, messages, 2);
    assert_true(flight_move(&flight, 0xffff, 0, &news, &err));
    assert_int_equal(news.stored, 2);
    assert_true(flight_settled(&flight));
    t->ops->close(t);
    read_file(text, sizeof(text));
    assert_string_equal(
        text, "{\"kept\":1}\n"
              "{\"topic\":\"t\",\"partition\":0,\"key\":\"k\",\"headers\":{\"content-type\":"
              "\"application/json\"},\"body\":\"{\\\"a\\\": 1}\"}\n"
              "{\"topic\":\"t\",\"partition\":0,\"key\":\"k\",\"headers\":{\"content-type\":"
              "\"application/json\"},\"body\":\"{\\\"b\\\": \\\"\\\\n\\\"}\"}\n");
    flight_release(&flight);
}

static void
messages_of_lost_lanes_are_not_sent(void **state)
{
    struct transport *t = open_file();
    struct message messages[3] = {message("1", 0), message("2", 1), message("3", 0)};
    struct flight flight = {.transport = t};
    struct error err;
    char text[4096];
    struct flight_news news;

    (void) state;
    assert_int_equal(truncate(path, 0), 0);
    flight_load(&flight, messages, 3);
    assert_true(flight_move(&flight, 1 << 1, 0, &news, &err));
    assert_int_equal(news.stored, 1);
    assert_true(flight_settled(&flight));
    t->ops->close(t);
    read_file(text, sizeof(text));
    assert_non_null(strstr(text, "\"body\":\"2\""));
    assert_null(strstr(text, "\"body\":\"1\""));
    flight_release(&flight);
}

/* A transport that fails where the test says, and keeps what it stored. */
struct flaky {
    struct transport base;
    uint32_t queue[64];
    size_t queued;
    int stored[64];
    int stored_count;
    int fail_after; /* messages stored before the failure; -1: none */
    int bad[2];     /* cookies of messages that are refused */
};

static bool
flaky_send(struct transport *base, const struct message *m, struct error *err)
{
    struct flaky *f = (struct flaky *) base;

    (void) err;
    f->queue[f->queued++] = m->cookie;
    return true;
}

static bool
flaky_settle(struct transport *base, int64_t until_us, struct receipts *ret, struct error *err)
{
    struct flaky *f = (struct flaky *) base;
    bool failed = false;

    (void) until_us;
    for (size_t i = 0; i < f->queued; i++) {
        failed |= f->fail_after >= 0 && f->stored_count >= f->fail_after;
        if (!failed)
            f->stored[f->stored_count++] = (int) f->queue[i];
        ret->list[ret->count++] = (struct receipt){f->queue[i], failed ? ERR_TRANSIENT : ERR_NONE};
    }
    f->queued = 0;
    return !failed || error_set(err, ERR_TRANSIENT, "test.flaky", "failed");
}

static const struct transport_ops flaky_ops = {.send = flaky_send, .settle = flaky_settle};

static void
what_has_no_word_is_sent_again_in_order(void **state)
{
    struct flaky f = {.base = {.ops = &flaky_ops, .caps = {.max_queue = 4, .max_bytes = SIZE_MAX}},
                      .fail_after = 2};
    struct message messages[10];
    struct flight flight = {.transport = &f.base};
    struct error err;
    struct flight_news news;

    (void) state;
    for (int i = 0; i < 10; i++)
        messages[i] = message("x", 0);
    flight_load(&flight, messages, 10);
    assert_false(flight_move(&flight, 1, 0, &news, &err));
    assert_int_equal(news.stored, 2);
    assert_int_equal(flight.settled, 2);
    f.fail_after = -1;
    while (!flight_settled(&flight))
        assert_true(flight_move(&flight, 1, 0, &news, &err));
    assert_int_equal(f.stored_count, 10);
    for (int i = 0; i < 10; i++)
        assert_int_equal(f.stored[i], i);
    flight_release(&flight);
}

/* A broker that refuses a whole unit for one bad message in it, as Kafka and our log do. */
static bool
picky_settle(struct transport *base, int64_t until_us, struct receipts *ret, struct error *err)
{
    struct flaky *f = (struct flaky *) base;
    bool bad = false;

    (void) until_us;
    for (size_t i = 0; i < f->queued; i++)
        bad |= (int) f->queue[i] == f->bad[0] || (int) f->queue[i] == f->bad[1];
    for (size_t i = 0; i < f->queued; i++) {
        if (!bad)
            f->stored[f->stored_count++] = (int) f->queue[i];
        ret->list[ret->count++] = (struct receipt){f->queue[i], bad ? ERR_PERMANENT : ERR_NONE};
    }
    f->queued = 0;
    return !bad || error_set(err, ERR_PERMANENT, "test.refused", "refused");
}

static const struct transport_ops picky_ops = {.send = flaky_send, .settle = picky_settle};

/* Only what is refused alone is refused; all else is stored, once, in order. */
static void
a_refusal_of_many_is_no_ones(void **state)
{
    struct flaky f = {.base = {.ops = &picky_ops, .caps = {.max_queue = 5, .max_bytes = SIZE_MAX}},
                      .bad = {3, 7}};
    struct message messages[10];
    struct flight flight = {.transport = &f.base};
    struct error err;
    struct flight_news news;
    int refused[10], refused_count = 0;

    (void) state;
    for (int i = 0; i < 10; i++)
        messages[i] = message("x", 0);
    flight_load(&flight, messages, 10);
    for (int guard = 0; !flight_settled(&flight); guard++) {
        assert_true(guard < 30);
        bool ok = flight_move(&flight, 1, 0, &news, &err);
        assert_true(ok || news.parted || news.refused >= 0);
        if (news.refused >= 0) {
            refused[refused_count++] = (int) news.refused;
            flight_decide(&flight, (uint32_t) news.refused, FATE_DEAD);
        }
    }
    assert_int_equal(refused_count, 2);
    assert_int_equal(refused[0], 3);
    assert_int_equal(refused[1], 7);
    assert_int_equal(f.stored_count, 8);
    for (int i = 1; i < 8; i++)
        assert_true(f.stored[i - 1] < f.stored[i]);
    flight_release(&flight);
}

/* What the caller decides about is never sent. */
static void
what_waits_is_not_sent(void **state)
{
    struct flaky f = {.base = {.ops = &flaky_ops, .caps = {.max_queue = 9, .max_bytes = SIZE_MAX}},
                      .fail_after = -1};
    struct message messages[3] = {message("1", 0), message("2", 0), message("3", 0)};
    struct flight flight = {.transport = &f.base};
    struct flight_news news;
    struct error err;

    (void) state;
    flight_load(&flight, messages, 3);
    flight_decide(&flight, 1, FATE_WAITING);
    assert_true(flight_move(&flight, 1, 0, &news, &err));
    assert_true(flight_settled(&flight));
    assert_int_equal(f.stored_count, 2);
    assert_int_equal(f.stored[1], 2);
    flight_release(&flight);
}

/* Bytes under way are bounded; a message that exceeds the bound by itself goes alone. */
static void
bytes_under_way_are_bounded(void **state)
{
    struct flaky f = {.base = {.ops = &flaky_ops, .caps = {.max_queue = 9, .max_bytes = 4}},
                      .fail_after = -1};
    struct message messages[4] = {message("aa", 0), message("bb", 0), message("cc", 0),
                                  message("too long", 0)};
    struct flight flight = {.transport = &f.base};
    struct flight_news news;
    struct error err;

    (void) state;
    flight_load(&flight, messages, 4);
    assert_true(flight_move(&flight, 1, 0, &news, &err));
    assert_int_equal(news.stored, 2);
    assert_true(flight_move(&flight, 1, 0, &news, &err));
    assert_int_equal(news.stored, 1);
    assert_true(flight_move(&flight, 1, 0, &news, &err));
    assert_int_equal(news.stored, 1);
    assert_true(flight_settled(&flight));
    flight_release(&flight);
}

/* A transport that breaks its promise is caught. */
static bool
hole_settle(struct transport *base, int64_t until_us, struct receipts *ret, struct error *err)
{
    struct flaky *f = (struct flaky *) base;

    (void) until_us;
    for (size_t i = 0; i < f->queued; i++)
        ret->list[ret->count++] = (struct receipt){f->queue[i], i == 1 ? ERR_UNKNOWN : ERR_NONE};
    f->queued = 0;
    return error_set(err, ERR_UNKNOWN, "test.hole", "failed");
}

static void
a_hole_in_a_stream_is_counted(void **state)
{
    static const struct transport_ops ops = {.send = flaky_send, .settle = hole_settle};
    struct flaky f = {.base = {.ops = &ops, .caps = {.max_queue = 9, .max_bytes = SIZE_MAX}}};
    struct message messages[3] = {message("1", 0), message("2", 0), message("3", 0)};
    struct flight flight = {.transport = &f.base};
    struct flight_news news;
    struct error err;

    (void) state;
    flight_load(&flight, messages, 3);
    assert_false(flight_move(&flight, 1, 0, &news, &err));
    assert_int_equal(flight.breaches, 1);
    flight_release(&flight);
}

static int
make_file(void **state)
{
    (void) state;
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int
remove_file(void **state)
{
    (void) state;
    return unlink(path);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(file_lines_are_whole_and_a_half_one_is_cut),
        cmocka_unit_test(messages_of_lost_lanes_are_not_sent),
        cmocka_unit_test(what_has_no_word_is_sent_again_in_order),
        cmocka_unit_test(a_refusal_of_many_is_no_ones),
        cmocka_unit_test(what_waits_is_not_sent),
        cmocka_unit_test(bytes_under_way_are_bounded),
        cmocka_unit_test(a_hole_in_a_stream_is_counted),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
