#include "tests/unit/t.h"

#include "core/attr.h"
#include "pg/snapshot.h"

static void
visibility_follows_the_server(void **state)
{
    struct snapshot snap;

    (void) state;
    assert_true(snapshot_parse("10:20:12,15,19", &snap));
    for (uint64_t xid = 1; xid < 25; xid++) {
        bool running = xid == 12 || xid == 15 || xid == 19;
        assert_int_equal(snapshot_sees(&snap, xid), xid < 20 && !running);
    }
    snapshot_release(&snap);
}

static void
late_transactions_are_those_that_ended_in_between(void **state)
{
    struct snapshot done, open;
    struct strbuf late = {0};

    (void) state;
    assert_true(snapshot_parse("10:20:10,12,15", &done));
    assert_true(snapshot_parse("12:40:12,33", &open));
    snapshot_late(&done, &open, &late);
    assert_string_equal(strbuf_str(&late), "{10,15}");
    strbuf_reset(&late);
    snapshot_late(&done, &done, &late);
    assert_string_equal(strbuf_str(&late), "{}");
    strbuf_release(&late);
    snapshot_release(&done);
    snapshot_release(&open);
}

static void
other_text_is_refused_and_gives_nothing(void **state)
{
    static const char *const wrong[] = {
        "", "1", "1:", "1:2", "a:2:", "1:2:x", "1:2:3,", "1:2:3 ", ":2:"};
    struct snapshot snap;

    (void) state;
    for (size_t i = 0; i < PR_LENGTH(wrong); i++) {
        assert_false(snapshot_parse(wrong[i], &snap));
        assert_false(snapshot_is_set(&snap));
    }
}

static void
a_copy_lives_by_itself(void **state)
{
    struct snapshot a, b = {0};

    (void) state;
    assert_true(snapshot_parse("1:5:3", &a));
    snapshot_copy(&b, &a);
    assert_true(snapshot_equal(&a, &b));
    snapshot_release(&a);
    assert_false(snapshot_sees(&b, 3));
    assert_string_equal(b.text, "1:5:3");
    snapshot_release(&b);
    assert_true(snapshot_equal(&a, &b));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(visibility_follows_the_server),
        cmocka_unit_test(late_transactions_are_those_that_ended_in_between),
        cmocka_unit_test(other_text_is_refused_and_gives_nothing),
        cmocka_unit_test(a_copy_lives_by_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
