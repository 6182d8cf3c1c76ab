#include "tests/unit/t.h"

#include "consume/jsonpath.h"
#include "core/attr.h"

static const char *
find(const char *json, const char *a, const char *b, enum jsonpath_answer expected,
     struct arena *arena)
{
    const char *path[] = {a, b}, *text;

    assert_int_equal(jsonpath_find(json, strlen(json), path,
                                   b   ? 2
                                   : a ? 1
                                       : 0,
                                   arena, &text),
                     expected);
    return text;
}

static void
values_come_as_they_were_written(void **state)
{
    static const struct {
        const char *json, *a, *b, *text;
    } cases[] = {
        {"{\"n\": 12345678901234567890.10}", "n", NULL, "12345678901234567890.10"},
        {"{\"n\":-0.5e+10}", "n", NULL, "-0.5e+10"},
        {"{\"n\":1E400}", "n", NULL, "1E400"},
        {"{\"s\":\"\"}", "s", NULL, ""},
        {"{\"s\":\"a\\\"b\\\\\\/\\b\\f\\n\\r\\t\"}", "s", NULL, "a\"b\\/\b\f\n\r\t"},
        {"{\"s\":\"\\u00e4\\u20ac\\ud83d\\ude00\\u0041\"}", "s", NULL, "ä€😀A"},
        {"{\"s\":\"ä😀\"}", "s", NULL, "ä😀"},
        {"{\"t\":true,\"f\":false}", "f", NULL, "false"},
        {"{\"o\": { \"a\" : [ 1 , \"x y\\\" \" ] , \"b\":{} } }", "o", NULL,
         "{\"a\":[1,\"x y\\\" \"],\"b\":{}}"},
        {"{\"a\":{\"b\":1}}", "a", "b", "1"},
        {"{\"x\":{\"b\":2},\"a\":{\"c\":{\"b\":3},\"b\":1}}", "a", "b", "1"},
        {"{\"a\":1,\"a\":2}", "a", NULL, "2"},
        {"{\"\\u0061\":1}", "a", NULL, "1"},
        {" [1, 2] ", NULL, NULL, "[1,2]"},
        {"\"x\"", NULL, NULL, "x"},
    };

    (void) state;
    for (size_t i = 0; i < PR_LENGTH(cases); i++) {
        struct arena arena = {0};
        assert_string_equal(find(cases[i].json, cases[i].a, cases[i].b, JSONPATH_FOUND, &arena),
                            cases[i].text);
        arena_release(&arena);
    }
}

static void
null_and_missing_are_told_apart(void **state)
{
    struct arena arena = {0};

    (void) state;
    assert_null(find("{\"a\":null}", "a", NULL, JSONPATH_NULL, &arena));
    assert_null(find("{\"b\":1}", "a", NULL, JSONPATH_MISSING, &arena));
    assert_null(find("{\"a\":1}", "a", "b", JSONPATH_MISSING, &arena));
    assert_null(find("{\"a\":null}", "a", "b", JSONPATH_MISSING, &arena));
    assert_null(find("{\"a\":{\"b\":1},\"a\":{}}", "a", "b", JSONPATH_MISSING, &arena));
    assert_null(find("[{\"a\":1}]", "a", NULL, JSONPATH_MISSING, &arena));
    assert_null(find("3", "a", NULL, JSONPATH_MISSING, &arena));
    arena_release(&arena);
}

static void
what_is_no_json_is_broken(void **state)
{
    static const char *const texts[] = {
        "",
        " ",
        "{",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":1",
        "{\"a\":1,",
        "{\"a\":1,}",
        "{a:1}",
        "{\"a\" 1}",
        "[1,]",
        "[1 2]",
        "{\"a\":01}",
        "{\"a\":1.}",
        "{\"a\":.5}",
        "{\"a\":+1}",
        "{\"a\":1e}",
        "{\"a\":-}",
        "{\"a\":\"x}",
        "{\"a\":\"\\x\"}",
        "{\"a\":\"\\u12\"}",
        "{\"a\":\"\n\"}",
        "{\"a\":tru}",
        "{\"a\":1}x",
        "{\"a\":'x'}",
        "nul",
        "\"\\",
        "{\"a\":NaN}",
    };
    struct arena arena = {0};

    (void) state;
    for (size_t i = 0; i < PR_LENGTH(texts); i++)
        find(texts[i], "a", NULL, JSONPATH_BROKEN, &arena);
    arena_release(&arena);
}

static void
a_text_that_postgresql_cannot_hold_is_broken(void **state)
{
    static const char *const texts[] = {"{\"a\":\"\\u0000\"}", "{\"a\":\"\\ud83d\"}",
                                        "{\"a\":\"\\ude00\"}", "{\"a\":\"\\ud83d\\u0041\"}",
                                        "{\"a\":\"\\ud83dx\"}"};
    struct arena arena = {0};

    (void) state;
    for (size_t i = 0; i < PR_LENGTH(texts); i++)
        find(texts[i], "a", NULL, JSONPATH_BROKEN, &arena);
    arena_release(&arena);
}

static void
deep_nesting_ends_in_an_answer(void **state)
{
    static char json[20001];
    struct arena arena = {0};

    (void) state;
    memset(json, '[', 20000);
    find(json, "a", NULL, JSONPATH_BROKEN, &arena);
    memset(json, '[', 500);
    memset(json + 500, ']', 500);
    json[1000] = '\0';
    find(json, "a", NULL, JSONPATH_MISSING, &arena);
    arena_release(&arena);
}

static void
every_prefix_of_a_text_is_broken(void **state)
{
    static const char json[] = "{\"a\": [1.5e3, \"x\\u00e4\", {\"b\": null}], \"c\": true}";
    const char *path[] = {"c"}, *text;
    struct arena arena = {0};

    (void) state;
    for (size_t len = 0; len < sizeof(json) - 1; len++)
        assert_int_equal(jsonpath_find(json, len, path, 1, &arena, &text), JSONPATH_BROKEN);
    assert_int_equal(jsonpath_find(json, sizeof(json) - 1, path, 1, &arena, &text), JSONPATH_FOUND);
    arena_release(&arena);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_come_as_they_were_written),
        cmocka_unit_test(null_and_missing_are_told_apart),
        cmocka_unit_test(what_is_no_json_is_broken),
        cmocka_unit_test(a_text_that_postgresql_cannot_hold_is_broken),
        cmocka_unit_test(deep_nesting_ends_in_an_answer),
        cmocka_unit_test(every_prefix_of_a_text_is_broken),
    };

    return cmocka_run_group_tests_name("jsonpath", tests, NULL, NULL);
}
