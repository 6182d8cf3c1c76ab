#include "tests/unit/t.h"

#include "consume/incoming.h"
#include "core/attr.h"

enum { NAMES = 7 };

static const char *const names[NAMES] = {
    "postrider-id",           "postrider-type",    "postrider-aggregate-type",
    "postrider-aggregate-id", "postrider-version", "postrider-occurred-at",
    "postrider-prev"};
static const char *const good[NAMES] = {
    "019acf1c-7b5a-7000-8000-0123456789ab", "Paid", "registration", "r1", "7",
    "2026-12-01T05:34:30.123456Z",          "3"};

static struct incoming
decode(const char *const values[NAMES], struct arena *arena)
{
    struct header *headers = arena_alloc(arena, sizeof(*headers) * NAMES);
    struct incoming in = {.headers = headers, .body = {"xyz", 3}};

    for (int i = 0; i < NAMES; i++)
        if (values[i])
            headers[in.header_count++] = (struct header){names[i], {values[i], strlen(values[i])}};
    incoming_decode(&in, arena);
    return in;
}

/* The good headers but for one. */
static struct incoming
decode_with(int which, const char *value, struct arena *arena)
{
    const char *values[NAMES];

    memcpy(values, good, sizeof(values));
    values[which] = value;
    return decode(values, arena);
}

static void
a_good_message_is_read_whole(void **state)
{
    struct arena arena = {0};
    struct incoming in = decode(good, &arena);
    unsigned char digest[DIGEST_BYTES];

    (void) state;
    event_digest("registration", "r1", 7, "Paid", "xyz", 3, digest);
    assert_null(in.foreign);
    assert_string_equal(in.aggregate_id, "r1");
    assert_int_equal(in.version, 7);
    assert_int_equal(in.prev, 3);
    assert_int_equal(in.occurred_at_pg, 1796103270123456 - 946684800000000);
    assert_null(in.content_type);
    assert_memory_equal(in.digest, digest, DIGEST_BYTES);
    in = decode_with(6, NULL, &arena);
    assert_null(in.foreign);
    assert_int_equal(in.prev, -1);
    arena_release(&arena);
}

static void
what_is_no_event_of_ours_says_which_header(void **state)
{
    static const struct {
        int which;
        const char *value;
    } bad[] = {
        {0, NULL},
        {0, ""},
        {0, "42"},
        {0, "019acf1c-7b5a-7000-8000-0123456789ag"},
        {0, "019acf1c-7b5a-7000-8000-0123456789ab0"},
        {1, NULL},
        {1, ""},
        {1, "\xff"},
        {2, NULL},
        {3, NULL},
        {3, "\xed\xa0\x80"},
        {3, "\xc0\x80"},
        {3, "\xf4\x90\x80\x80"},
        {3, "\xe2\x82"},
        {4, NULL},
        {4, ""},
        {4, "0"},
        {4, "-1"},
        {4, "+1"},
        {4, " 1"},
        {4, "1x"},
        {4, "9223372036854775808"},
        {4, "99999999999999999999999"},
        {5, NULL},
        {5, "yesterday"},
        {5, "2026-13-01T00:00:00Z"},
        {5, "2026-02-30T00:00:00Z"},
        {5, "2026-12-01T24:00:00Z"},
        {5, "2026-12-01T00:00:00"},
        {5, "2026-12-01T00:00:00Zx"},
        {5, "2026-12-01T00:00:00+99:00"},
        {6, "7"},
        {6, "8"},
        {6, "-1"},
        {6, "x"},
        {6, ""},
    };
    struct arena arena = {0};

    (void) state;
    for (size_t i = 0; i < PR_LENGTH(bad); i++) {
        struct incoming in = decode_with(bad[i].which, bad[i].value, &arena);
        assert_non_null(in.foreign);
        assert_non_null(strstr(in.foreign, names[bad[i].which]));
    }
    arena_release(&arena);
}

static void
a_name_may_be_as_long_as_an_index_can_hold(void **state)
{
    char name[1002];
    struct arena arena = {0};

    (void) state;
    memset(name, 'x', sizeof(name));
    name[1000] = '\0';
    assert_null(decode_with(3, name, &arena).foreign);
    name[1000] = 'x';
    name[1001] = '\0';
    assert_non_null(decode_with(3, name, &arena).foreign);
    arena_release(&arena);
}

static void
times_are_read_with_their_zone(void **state)
{
    static const struct {
        const char *text;
        int64_t pg_us;
    } times[] = {
        {"1970-01-01T00:00:00Z", -946684800000000},
        {"1970-01-01T00:00:00.5Z", -946684799500000},
        {"1970-01-01T00:00:00.1234567Z", -946684799876544},
        {"1970-01-01T02:00:00+02:00", -946684800000000},
        {"1969-12-31T19:30:00-04:30", -946684800000000},
        {"1969-12-31T23:59:59.999999Z", -946684800000001},
        {"2024-02-29T00:00:00Z", 762480000000000},
        {"-0043-03-15T12:00:00Z", -64464465600000000},
        {"-4713-11-24T00:00:00Z", -211813488000000000},
        {"+294276-12-31T23:59:59Z", 9223371331199000000},
        {"infinity", INT64_MAX},
        {"-infinity", INT64_MIN},
    };
    struct arena arena = {0};

    (void) state;
    for (size_t i = 0; i < PR_LENGTH(times); i++) {
        struct incoming in = decode_with(5, times[i].text, &arena);
        assert_null(in.foreign);
        assert_true(in.occurred_at_pg == times[i].pg_us);
    }
    arena_release(&arena);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_message_is_read_whole),
        cmocka_unit_test(what_is_no_event_of_ours_says_which_header),
        cmocka_unit_test(a_name_may_be_as_long_as_an_index_can_hold),
        cmocka_unit_test(times_are_read_with_their_zone),
    };

    return cmocka_run_group_tests_name("incoming", tests, NULL, NULL);
}
