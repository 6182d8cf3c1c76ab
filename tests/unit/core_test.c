#include "tests/unit/t.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/arena.h"
#include "core/backoff.h"
#include "core/bytes.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/jsonw.h"
#include "core/strbuf.h"
#include "core/utf8.h"
#include "core/uuid.h"

static void
bytes_stop_at_the_end_and_stay_bad(void **state)
{
    static const unsigned char data[] = {1, 0, 2, 0, 0, 0, 3, 'a', 'b', 0, 9};
    struct bytes in = {.at = data, .left = sizeof(data)};

    (void) state;
    assert_int_equal(bytes_u8(&in), 1);
    assert_int_equal(bytes_u16(&in), 2);
    assert_int_equal(bytes_u32(&in), 3);
    assert_string_equal(bytes_cstr(&in), "ab");
    assert_false(in.bad);
    assert_int_equal(bytes_u16(&in), 0);
    assert_true(in.bad);
    assert_int_equal(bytes_u8(&in), 0); /* one byte is left, but the cursor is bad */
}

static void
bytes_refuse_a_string_without_end(void **state)
{
    struct bytes in = {.at = "abc", .left = 3};

    (void) state;
    assert_string_equal(bytes_cstr(&in), "");
    assert_true(in.bad);
}

static void
arena_gives_aligned_memory_and_forgets_it(void **state)
{
    struct arena arena = {0};

    (void) state;
    for (int i = 1; i < 1000; i++)
        assert_int_equal((uintptr_t) arena_alloc(&arena, (size_t) i) % sizeof(max_align_t) % 16, 0);
    char *big = arena_alloc(&arena, 1 << 20);
    memset(big, 'x', 1 << 20);
    assert_true(arena.used > 1 << 20);
    arena_reset(&arena);
    assert_int_equal(arena.used, 0);
    assert_string_equal(arena_printf(&arena, "%d-%s", 7, "x"), "7-x");
    arena_release(&arena);
}

static void
strbuf_grows_and_writes_big_endian(void **state)
{
    struct strbuf buf = {0};
    char *taken;

    (void) state;
    assert_string_equal(strbuf_str(&buf), "");
    for (int i = 0; i < 100; i++)
        strbuf_addf(&buf, "%02d", i);
    assert_int_equal(buf.len, 200);
    strbuf_reset(&buf);
    strbuf_add_u64(&buf, 0x0102030405060708);
    assert_memory_equal(buf.data, "\1\2\3\4\5\6\7\10", 8);
    taken = strbuf_take(&buf);
    assert_null(buf.data);
    free(taken);
}

static void
json_escapes_what_must_be(void **state)
{
    struct strbuf out = {0};
    struct jsonw w = {.out = &out};

    (void) state;
    jsonw_object(&w, NULL);
    jsonw_str(&w, "a\"b", "x\n\x01\\");
    jsonw_array(&w, "list");
    jsonw_i64(&w, NULL, -5);
    jsonw_null(&w, NULL);
    jsonw_bool(&w, NULL, true);
    jsonw_end(&w);
    jsonw_raw(&w, "raw", "{}");
    jsonw_end(&w);
    assert_string_equal(strbuf_str(&out),
                        "{\"a\\\"b\":\"x\\n\\u0001\\\\\",\"list\":[-5,null,true],\"raw\":{}}");
    strbuf_release(&out);
}

static void
uuid_v7_carries_the_time(void **state)
{
    struct uuid id = uuid_v7(), again;
    char text[UUID_TEXT];
    int64_t now_ms = clock_wall_us() / 1000;

    (void) state;
    assert_int_equal(uuid_version(&id), 7);
    assert_in_range(uuid_v7_ms(&id), (uintmax_t) now_ms - 1000, (uintmax_t) now_ms);
    uuid_format(&id, text);
    assert_true(uuid_parse(text, strlen(text), &again));
    assert_true(uuid_equal(&id, &again));
}

static void
uuid_refuses_other_text(void **state)
{
    static const char *const wrong[] = {"",
                                        "x",
                                        "0190a0b0-0000-7000-8000-00000000000",
                                        "0190a0b0-0000-7000-8000-0000000000000",
                                        "0190a0b0x0000-7000-8000-000000000000",
                                        "0190a0b0-0000-7000-8000-00000000000g"};
    struct uuid id;

    (void) state;
    for (size_t i = 0; i < PR_LENGTH(wrong); i++)
        assert_false(uuid_parse(wrong[i], strlen(wrong[i]), &id));
}

static void
errors_are_one_line_and_keep_their_beginning(void **state)
{
    struct error err;
    char long_text[2000];

    (void) state;
    assert_false(error_set(&err, ERR_TRANSIENT, "x.y", "two\nlines"));
    assert_string_equal(err.text, "two lines");
    assert_int_equal(err.exit, EXIT_FAULT);
    error_wrap(&err, "while trying %d", 3);
    assert_string_equal(err.text, "while trying 3: two lines");
    memset(long_text, 'z', sizeof(long_text) - 1);
    long_text[sizeof(long_text) - 1] = '\0';
    error_set(&err, ERR_STOP, "x", "%s", long_text);
    error_wrap(&err, "front");
    assert_memory_equal(err.text, "front: zzz", 10);
    assert_int_equal(strlen(err.text), sizeof(err.text) - 1);
}

static void
times_are_written_in_utc(void **state)
{
    char text[CLOCK_TEXT];

    (void) state;
    clock_format(1764567270123456, text);
    assert_string_equal(text, "2025-12-01T05:34:30.123456Z");
    clock_format(-1, text);
    assert_string_equal(text, "1969-12-31T23:59:59.999999Z");
    clock_format(951782400000007, text);
    assert_string_equal(text, "2000-02-29T00:00:00.000007Z");
    clock_format(-62135596800000000, text);
    assert_string_equal(text, "0001-01-01T00:00:00.000000Z");
    clock_format(253402300800000000, text);
    assert_string_equal(text, "+10000-01-01T00:00:00.000000Z");
    clock_format_since(-63549360000, 0, text);
    assert_string_equal(text, "-0044-03-15T00:00:00.000000Z");
}

static void
text_is_mended_where_it_was_cut(void **state)
{
    static const char *const cases[][2] = {
        {"plain", "plain"},
        {"\xc3\xa4\xe2\x82\xac", "\xc3\xa4\xe2\x82\xac"},
        {"\xc3\xa4\xe2\x82", "\xc3\xa4"}, /* the end was cut off */
        {"a\xf0\x9f\x98", "a"},
        {"\xe2\x82 \xac", "?? ?"}, /* cut, and text after it */
        {"\xc0\xaf\xed\xa0\x80\xf5z", "????"
                                      "??z"}, /* overlong, surrogate, beyond */
    };

    (void) state;
    for (size_t i = 0; i < PR_LENGTH(cases); i++) {
        char text[32];
        snprintf(text, sizeof(text), "%s", cases[i][0]);
        utf8_mend(text);
        assert_string_equal(text, cases[i][1]);
        assert_true(utf8_is_text(text, strlen(text)));
    }
}

static void
errors_are_text_however_long(void **state)
{
    struct error err = {0};
    char text[3 * sizeof(err.text)];

    (void) state;
    for (int shift = 0; shift < 3; shift++) {
        for (size_t i = 0; i + 3 < sizeof(text); i += 3)
            memcpy(text + i, "\xe2\x82\xac", 4);
        error_set(&err, ERR_UNKNOWN, "x", "%.*s%s", shift, "aa", text);
        assert_true(utf8_is_text(err.text, strlen(err.text)));
        error_hint(&err, "%.*s%s", shift, "aa", text);
        assert_true(utf8_is_text(err.hint, strlen(err.hint)));
        error_wrap(&err, "%.*s%s", shift, "aa", text);
        assert_true(utf8_is_text(err.text, strlen(err.text)));
    }
}

static void
waits_grow_and_end_at_ten_seconds(void **state)
{
    int64_t longest = 0;

    (void) state;
    for (int i = 0; i < 200; i++) {
        assert_in_range(backoff_us(0), 10000, 60000);
        int64_t us = backoff_us(100);
        assert_in_range(us, 10000, 10010000);
        longest = us > longest ? us : longest;
    }
    assert_true(longest > 5000000);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_stop_at_the_end_and_stay_bad),
        cmocka_unit_test(bytes_refuse_a_string_without_end),
        cmocka_unit_test(arena_gives_aligned_memory_and_forgets_it),
        cmocka_unit_test(strbuf_grows_and_writes_big_endian),
        cmocka_unit_test(json_escapes_what_must_be),
        cmocka_unit_test(uuid_v7_carries_the_time),
        cmocka_unit_test(uuid_refuses_other_text),
        cmocka_unit_test(errors_are_one_line_and_keep_their_beginning),
        cmocka_unit_test(times_are_written_in_utc),
        cmocka_unit_test(text_is_mended_where_it_was_cut),
        cmocka_unit_test(errors_are_text_however_long),
        cmocka_unit_test(waits_grow_and_end_at_ten_seconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
