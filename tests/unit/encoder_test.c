#include "tests/unit/t.h"

#include <stdio.h>

#include "relay/encoder.h"

static const char *
header(const struct message *m, const char *name)
{
    static char value[256];

    for (int i = 0; i < m->header_count; i++) {
        if (strcmp(m->headers[i].name, name) == 0) {
            snprintf(value, sizeof(value), "%.*s", (int) m->headers[i].value.len,
                     (const char *) m->headers[i].value.data);
            return value;
        }
    }
    return NULL;
}

static struct outbox_row
row(void)
{
    struct outbox_row r = {.id = 42,
                           .lane = 3,
                           .aggregate_type = "registration",
                           .aggregate_id = "r1",
                           .version = 7,
                           .event_type = "RegistrationConfirmed",
                           .body = "{\"a\": 1}",
                           .body_len = 8,
                           .content_type = "application/json",
                           .occurred_at_pg = 1764567270123456 - 946684800000000};

    assert_true(uuid_parse("0190a0b0-0000-7000-8000-000000000001", 36, &r.event_id));
    return r;
}

static void
headers_tell_everything_and_the_body_is_untouched(void **state)
{
    struct outbox_row r = row();
    struct arena arena = {0};
    struct message m;
    struct error err;

    (void) state;
    assert_true(encode_message(&r, "orders", 5, -1, &arena, &m, &err));
    assert_string_equal(header(&m, "postrider-id"), "0190a0b0-0000-7000-8000-000000000001");
    assert_string_equal(header(&m, "postrider-type"), "RegistrationConfirmed");
    assert_string_equal(header(&m, "postrider-aggregate-type"), "registration");
    assert_string_equal(header(&m, "postrider-aggregate-id"), "r1");
    assert_string_equal(header(&m, "postrider-version"), "7");
    assert_string_equal(header(&m, "postrider-occurred-at"), "2025-12-01T05:34:30.123456Z");
    assert_string_equal(header(&m, "postrider-relay"), "orders");
    assert_string_equal(header(&m, "postrider-lane"), "3");
    assert_string_equal(header(&m, "postrider-epoch"), "5");
    assert_string_equal(header(&m, "postrider-sequence"), "00000000000000000042");
    assert_string_equal(header(&m, "content-type"), "application/json");
    assert_int_equal(m.header_count, 11);
    assert_ptr_equal(m.body.data, r.body);
    assert_int_equal(m.body.len, 8);
    assert_memory_equal(m.key.data, "r1", m.key.len);
    r.version = INT64_MAX;
    r.id = INT64_MAX;
    assert_true(encode_message(&r, "orders", INT64_MIN, 0, &arena, &m, &err));
    assert_string_equal(header(&m, "postrider-version"), "9223372036854775807");
    assert_string_equal(header(&m, "postrider-prev"), "0");
    assert_string_equal(header(&m, "postrider-epoch"), "-9223372036854775808");
    assert_string_equal(header(&m, "postrider-sequence"), "09223372036854775807");
    arena_release(&arena);
}

static void
own_headers_follow_and_none_is_lost(void **state)
{
    struct outbox_row r = row();
    struct arena arena = {0};
    struct message m;
    struct error err;

    (void) state;
    r.headers = "{\"traceparent\": \"00-ab\", \"n\": 5, \"nothing\": null, \"deep\": {\"a\": [1]}}";
    assert_true(encode_message(&r, "orders", 5, -1, &arena, &m, &err));
    assert_int_equal(m.header_count, 15);
    assert_string_equal(header(&m, "traceparent"), "00-ab");
    assert_string_equal(header(&m, "n"), "5");
    assert_string_equal(header(&m, "nothing"), "null");
    assert_string_equal(header(&m, "deep"), "{\"a\":[1]}");
    arena_release(&arena);
}

static void
what_no_consumer_could_trust_is_refused(void **state)
{
    static const struct {
        const char *headers, *code;
    } cases[] = {
        {"{\"postrider-prev\": \"0\"}", "event.headers"},
        {"{\"Content-Type\": \"x\"}", "event.headers"},
        {"{\"a\": \"x\\r\\ny: z\"}", "event.headers"},
        {"{\"a\\nb\": \"x\"}", "event.headers"},
        {"{\"\": \"x\"}", "event.headers"},
        {"[1]", "event.headers"},
        {"no json", "event.headers"},
    };
    struct outbox_row r = row();
    struct arena arena = {0};
    struct message m;
    struct error err;

    (void) state;
    for (size_t i = 0; i < PR_LENGTH(cases); i++) {
        r.headers = cases[i].headers;
        assert_false(encode_message(&r, "orders", 5, -1, &arena, &m, &err));
        assert_string_equal(err.code, cases[i].code);
        assert_true(err.proven && err.cls == ERR_PERMANENT);
    }
    r.headers = "null";
    assert_true(encode_message(&r, "orders", 5, -1, &arena, &m, &err));
    r.version = 0;
    assert_false(encode_message(&r, "orders", 5, -1, &arena, &m, &err));
    assert_string_equal(err.code, "event.version");
    r.version = 1;
    r.aggregate_id = "";
    assert_false(encode_message(&r, "orders", 5, -1, &arena, &m, &err));
    assert_string_equal(err.code, "event.name");
    arena_release(&arena);
}

static void
unusual_times_are_written_whole(void **state)
{
    static const struct {
        int64_t at;
        const char *text;
    } times[] = {
        {INT64_MAX, "infinity"},
        {INT64_MIN, "-infinity"},
        {-1, "1999-12-31T23:59:59.999999Z"},
        {9223371331199000000, "+294276-12-31T23:59:59.000000Z"},
        {-64464465600000000, "-0043-03-15T12:00:00.000000Z"},
    };
    struct arena arena = {0};
    struct message m;
    struct error err;

    (void) state;
    for (size_t i = 0; i < PR_LENGTH(times); i++) {
        struct outbox_row r = row();
        r.occurred_at_pg = times[i].at;
        assert_true(encode_message(&r, "orders", 5, -1, &arena, &m, &err));
        assert_string_equal(header(&m, "postrider-occurred-at"), times[i].text);
    }
    arena_release(&arena);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_tell_everything_and_the_body_is_untouched),
        cmocka_unit_test(own_headers_follow_and_none_is_lost),
        cmocka_unit_test(what_no_consumer_could_trust_is_refused),
        cmocka_unit_test(unusual_times_are_written_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
