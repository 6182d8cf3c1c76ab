#include "tests/unit/t.h"

#include <stdlib.h>

#include "consume/handler.h"
#include "consume/incoming.h"
#include "core/attr.h"
#include "core/strbuf.h"

static bool
compile(const char *sql, struct handler *ret, struct error *err)
{
    static char event_type[] = "Paid";
    static struct handler_config config = {.event_type = event_type};

    config.sql = (char *) (uintptr_t) sql;
    *err = (struct error){0};
    return handler_compile(&config, "rewards", 7, ret, err);
}

static void
named_parameters_become_numbered_ones(void **state)
{
    static const struct {
        const char *sql, *numbered;
        int count;
    } cases[] = {
        {"SELECT f(:consumer, :event_id, :payload.a.b)", "SELECT f($1, $2, $3)", 3},
        {"SELECT :version, :aggregate_version, :event_type, :occurred_at", "SELECT $1, $2, $3, $4",
         4},
        {"SELECT :aggregate_type||:aggregate_id", "SELECT $1||$2", 2},
        {"SELECT :event_id, :event_id", "SELECT $1, $2", 2},
        {"SELECT :payload.a::text::int", "SELECT $1::text::int", 1},
        {"SELECT ':event_id', 'it''s :nothing', :event_id",
         "SELECT ':event_id', 'it''s :nothing', $1", 1},
        {"SELECT E'\\':nothing', :event_id", "SELECT E'\\':nothing', $1", 1},
        {"SELECT some'\\', :event_id", "SELECT some'\\', $1", 1},
        {"SELECT \":nothing\", :event_id", "SELECT \":nothing\", $1", 1},
        {"SELECT $$:nothing$$, $q$ $$:no $q$, :event_id", "SELECT $$:nothing$$, $q$ $$:no $q$, $1",
         1},
        {"SELECT a$b$c, :event_id -- :nothing", "SELECT a$b$c, $1 -- :nothing", 1},
        {"SELECT 1 /* :no /* :no */ :no */ + :version", "SELECT 1 /* :no /* :no */ :no */ + $1", 1},
        {"SELECT (:payload.list::int[])[1:2]", "SELECT ($1::int[])[1:2]", 1},
        {"SELECT f(p := :version)", "SELECT f(p := $1)", 1},
        {"SELECT :payload.\"a b\".\"c\"\"d\", :header.\"x-tenant\"", "SELECT $1, $2", 2},
        {"SELECT :payload.ünï", "SELECT $1", 1},
        {"  -- why\n /* and */ (WITH x AS (SELECT 1) SELECT :payload)",
         "  -- why\n /* and */ (WITH x AS (SELECT 1) SELECT $1)", 1},
        {"call p(:header.tenant)", "call p($1)", 1},
        {"INSERT INTO t VALUES (:payload.", "INSERT INTO t VALUES ($1.", 1},
        {"SELECT 'open :event_id", "SELECT 'open :event_id", 0},
        {"SELECT $open$ :event_id", "SELECT $open$ :event_id", 0},
        {"SELECT /* :event_id", "SELECT /* :event_id", 0},
    };

    (void) state;
    for (size_t i = 0; i < PR_LENGTH(cases); i++) {
        struct handler handler;
        struct error err;
        assert_true(compile(cases[i].sql, &handler, &err));
        assert_string_equal(handler.stmt.sql, cases[i].numbered);
        assert_int_equal(handler.count, cases[i].count);
        handler_release(&handler);
    }
}

static void
what_cannot_be_a_handler_is_refused_with_a_remedy(void **state)
{
    static const struct {
        const char *sql, *code, *text, *hint;
    } cases[] = {
        {"SELECT f(:playerId)", "handler.parameter", ":playerId", ":payload.name"},
        {"SELECT f(:event_ids)", "handler.parameter", ":event_ids", "did you mean :event_id?"},
        {"SELECT a[1:n]", "handler.parameter", ":n", "space behind the colon"},
        {"SELECT :header", "handler.parameter", ":header without a name", ":header.name"},
        {"SELECT f($1)", "handler.parameter", "$1", "name it"},
        {"COMMIT", "handler.statement", "\"COMMIT\"", "use one SELECT"},
        {"  begin; SELECT 1", "handler.statement", "\"begin\"", "use one SELECT"},
        {"SET search_path = x", "handler.statement", "\"SET\"", "use one SELECT"},
        {"", "handler.statement", "\"\"", "use one SELECT"},
        {"-- nothing", "handler.statement", "\"\"", "use one SELECT"},
        {"SELECTED", "handler.statement", "\"SELECTED\"", "use one SELECT"},
    };

    (void) state;
    for (size_t i = 0; i < PR_LENGTH(cases); i++) {
        struct handler handler;
        struct error err;
        assert_false(compile(cases[i].sql, &handler, &err));
        assert_string_equal(err.code, cases[i].code);
        assert_int_equal(err.exit, EXIT_CONFIG);
        assert_non_null(strstr(err.text, cases[i].text));
        assert_non_null(strstr(err.text, "rewards"));
        assert_non_null(strstr(err.text, "Paid"));
        assert_non_null(strstr(err.hint, cases[i].hint));
    }
}

static void
more_parameters_than_a_statement_takes_are_refused(void **state)
{
    struct strbuf sql = {0};
    struct handler handler;
    struct error err;

    (void) state;
    strbuf_adds(&sql, "SELECT :version");
    for (int i = 1; i < PGPARAMS_MAX; i++)
        strbuf_adds(&sql, ",:version");
    assert_true(compile(strbuf_str(&sql), &handler, &err));
    assert_int_equal(handler.count, PGPARAMS_MAX);
    handler_release(&handler);
    strbuf_adds(&sql, ",:version");
    assert_false(compile(strbuf_str(&sql), &handler, &err));
    assert_non_null(strstr(err.hint, ":payload"));
    strbuf_release(&sql);
}

/* ------------------------------------------------------------------ binding */

static struct incoming
an_event(const char *payload)
{
    static const struct header headers[] = {
        {"tenant", {"acme", 4}}, {"empty", {"", 0}}, {"bad", {"\xff", 1}}, {"null", {NULL, 0}}};
    struct incoming in = {.aggregate_type = "registration",
                          .aggregate_id = "r1",
                          .event_type = "Paid",
                          .version = 9223372036854775807,
                          .prev = -1,
                          .occurred_at = "2026-12-01T05:34:30.123456Z",
                          .headers = headers,
                          .header_count = PR_LENGTH(headers),
                          .body = {payload, payload ? strlen(payload) : 0}};

    assert_true(uuid_parse("019acf1c-7b5a-7000-8000-0123456789ab", 36, &in.event_id));
    return in;
}

static bool
bind(const char *sql, const struct incoming *in, struct pgparams *ret, struct error *err)
{
    struct handler handler;

    assert_true(compile(sql, &handler, err));
    bool ok = handler_bind(&handler, in, ret, err);
    handler_release(&handler);
    return ok;
}

static void
values_are_bound_as_text(void **state)
{
    struct incoming in =
        an_event("{\"n\": 12345678901234567890.10, \"nil\": null, \"o\": [1, {\"a\" : 2}]}");
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    struct error err;
    static const char *const expected[] = {"rewards",
                                           "019acf1c-7b5a-7000-8000-0123456789ab",
                                           "registration",
                                           "r1",
                                           "9223372036854775807",
                                           "Paid",
                                           "2026-12-01T05:34:30.123456Z",
                                           "12345678901234567890.10",
                                           NULL,
                                           "[1,{\"a\":2}]",
                                           "acme",
                                           "",
                                           NULL,
                                           NULL};

    (void) state;
    assert_true(bind("SELECT :consumer, :event_id, :aggregate_type, :aggregate_id, :version, "
                     ":event_type, :occurred_at, :payload.n, :payload.nil, :payload.o, "
                     ":header.tenant, :header.empty, :header.absent, :header.null",
                     &in, &p, &err));
    assert_int_equal(p.count, PR_LENGTH(expected));
    for (size_t i = 0; i < PR_LENGTH(expected); i++) {
        assert_int_equal(p.formats[i], 0);
        if (expected[i])
            assert_string_equal(p.values[i], expected[i]);
        else
            assert_null(p.values[i]);
    }
    arena_release(&arena);
}

static void
what_cannot_be_bound_is_permanent_and_says_why(void **state)
{
    static const struct {
        const char *sql, *payload, *code, *text;
    } cases[] = {
        {"SELECT :payload.a.b", "{\"a\": {\"c\": 1}}", "payload.missing", "payload.a.b"},
        {"SELECT :payload.a", "[]", "payload.missing", "payload.a"},
        {"SELECT :payload.a", "{\"a\": 1", "payload.json", "JSON"},
        {"SELECT :payload.a", NULL, "payload.json", "JSON"},
        {"SELECT :payload.a", "{\"a\": \"\xff\"}", "payload.text", "UTF-8"},
        {"SELECT :payload", "\xc0\x80", "payload.text", "UTF-8"},
        {"SELECT :header.bad", "{}", "payload.text", "UTF-8"},
    };

    (void) state;
    for (size_t i = 0; i < PR_LENGTH(cases); i++) {
        struct incoming in = an_event(cases[i].payload);
        struct arena arena = {0};
        struct pgparams p = {.arena = &arena};
        struct error err;
        assert_false(bind(cases[i].sql, &in, &p, &err));
        assert_int_equal(err.cls, ERR_PERMANENT);
        assert_string_equal(err.code, cases[i].code);
        assert_non_null(strstr(err.text, cases[i].text));
        arena_release(&arena);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(named_parameters_become_numbered_ones),
        cmocka_unit_test(what_cannot_be_a_handler_is_refused_with_a_remedy),
        cmocka_unit_test(more_parameters_than_a_statement_takes_are_refused),
        cmocka_unit_test(values_are_bound_as_text),
        cmocka_unit_test(what_cannot_be_bound_is_permanent_and_says_why),
    };

    return cmocka_run_group_tests_name("handler_params", tests, NULL, NULL);
}
