#include "tests/unit/t.h"

#include <stdio.h>
#include <stdlib.h>

#include "config/config.h"
#include "config/options.h"
#include "config/rules.h"
#include "core/strbuf.h"

/* A file whose consumer has these `errors`, from line 6 on, and whose handler has `own`. */
static char *
file_of(const char *errors, const char *own)
{
    char *text;

    assert_true(asprintf(&text,
                         "destinations:\n"
                         "  events: {transport: postgres, database: dbname=bus}\n"
                         "consumers:\n"
                         "  c:\n"
                         "    errors:\n"
                         "%s"
                         "    database: dbname=rewards\n"
                         "    from: {destination: events, topic: t}\n"
                         "    handlers:\n"
                         "      E: {sql: \"SELECT 1\", errors: [%s]}\n",
                         errors, own) > 0);
    return text;
}

static char *
report_of(const char *text, struct config **ret)
{
    char *report = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&report, &size);
    struct error err;

    *ret = NULL;
    bool ok = config_parse("p.yaml", text, strlen(text), out, ret, &err);
    fclose(out);
    assert_int_equal(ok, *ret != NULL);
    return report;
}

static const struct {
    const char *errors, *expected;
} mistakes_told[] = {
    {"      - {sqlstate: P0001, class: rejcted}\n",
     "p.yaml:6: consumers.c.errors.class: found \"rejcted\", expected rejected, permanent, "
     "transient or unknown\n"},
    {"      - {sqlstate: P001, class: rejected}\n",
     "p.yaml:6: consumers.c.errors.sqlstate: found \"P001\", expected five characters of 0-9 and "
     "A-Z, as \"P0001\", or a class of codes, as \"23\" or \"23***\", in quotes (Appendix A of "
     "PostgreSQL's manual lists them)\n"},
    {"      - {sqlstate: unique_violation, class: rejected}\n",
     "p.yaml:6: consumers.c.errors.sqlstate: found \"unique_violation\", expected five characters "
     "of 0-9 and A-Z, as \"P0001\", or a class of codes, as \"23\" or \"23***\" (Appendix A of "
     "PostgreSQL's manual lists them)\n"},
    {"      - {sqlstate: p0001, class: rejected}\n",
     "p.yaml:6: consumers.c.errors.sqlstate: found \"p0001\", expected five characters of 0-9 and "
     "A-Z, as \"P0001\", or a class of codes, as \"23\" or \"23***\" (Appendix A of PostgreSQL's "
     "manual lists them)\n"},
    {"      - {sqlstate: \"40P01\", class: rejected}\n",
     "p.yaml:6: consumers.c.errors.sqlstate: found \"40P01\", expected a code that can be about "
     "one event (a deadlock is repeated at once and charges nothing)\n"},
    {"      - {sqlstate: \"53***\", class: permanent}\n",
     "p.yaml:6: consumers.c.errors.sqlstate: found \"53***\", expected a code that can be about "
     "one event (a full disk or memory is no event's fault: the consumer pauses)\n"},
    {"      - {sqlstate: 42P01, class: rejected}\n",
     "p.yaml:6: consumers.c.errors.sqlstate: found \"42P01\", expected a code that can be about "
     "one event (a missing table is the handler's fault: the consumer pauses until it is "
     "there)\n"},
    {"      - {class: rejected}\n",
     "p.yaml:6: consumers.c.errors: found neither sqlstate nor message, expected at least one of "
     "them\n"},
    {"      - {sqlstate: P0001}\n",
     "p.yaml:6: consumers.c.errors: found no class, expected rejected, permanent, transient or "
     "unknown\n"},
    {"      - {message: \"a(b\", class: rejected}\n",
     "p.yaml:6: consumers.c.errors.message: found \"a(b\", expected a POSIX extended regular "
     "expression (Unmatched ( or \\(; \\ takes the meaning off a character)\n"},
    {"      - {sqlstate: P0001, class: rejected, when: now}\n",
     "p.yaml:6: consumers.c.errors.when: found an unknown part of a rule, expected sqlstate, "
     "message or class\n"},
    {"      P0001: rejected\n",
     "p.yaml:5: consumers.c.errors: found a map, expected a list of rules, [{sqlstate: "
     "\"P0001\", class: rejected}]\n"},
    {"      - P0001\n", "p.yaml:6: consumers.c.errors: found \"P0001\", expected {sqlstate: "
                        "\"P0001\", message: \"…\", class: rejected}\n"},
    {"      - {sqlstate: \"23***\", class: transient}\n"
     "      - {sqlstate: \"23505\", message: x, class: rejected}\n",
     "p.yaml:7: consumers.c.errors: found a rule that never applies, expected it before the one "
     "of line 6, which takes everything that it would (first match wins)\n"},
    {"      - {message: closed, class: rejected}\n"
     "      - {sqlstate: P0001, class: permanent}\n"
     "      - {sqlstate: P0002, message: closed, class: permanent}\n",
     "p.yaml:8: consumers.c.errors: found a rule that never applies, expected it before the one "
     "of line 6, which takes everything that it would (first match wins)\n"},
};

static void
every_mistake_has_its_line_and_its_remedy(void **state)
{
    (void) state;
    for (size_t i = 0; i < PR_LENGTH(mistakes_told); i++) {
        struct config *config;
        char *text = file_of(mistakes_told[i].errors, "");
        char *report = report_of(text, &config);
        assert_string_equal(report, mistakes_told[i].expected);
        assert_null(config);
        free(report);
        free(text);
    }
}

static const char good[] = "      - {sqlstate: \"23505\", message: \"^dup\", class: rejected}\n"
                           "      - {sqlstate: \"23\", class: transient}\n"
                           "      - {message: \"season [0-9]+ closed$\", class: unknown}\n"
                           "      - {sqlstate: P0***, class: permanent}\n";

static const struct {
    const char *sqlstate, *message;
    int rule; /* -1: none */
} matches[] = {
    {"23505", "duplicate key", 0},
    {"23505", "a duplicate key", 1},
    {"23001", "", 1},
    {"P0001", "the season 7 closed", 2},
    {"22023", "season 12 closed", 2},
    {"P0001", "season closed", 3},
    {"P0001", "", 3},
    {"22023", "", -1},
    {"XX000", "season 1 closed.", -1},
};

static void
the_first_rule_that_fits_is_found(void **state)
{
    struct config *config;
    char *text = file_of(good, "{sqlstate: \"23\", class: permanent}");
    char *report = report_of(text, &config);

    (void) state;
    assert_string_equal(report, "");
    const struct error_rules *rules = &config->consumers[0].errors;
    for (size_t i = 0; i < PR_LENGTH(matches); i++) {
        const struct error_rule *rule = rules_find(rules, matches[i].sqlstate, matches[i].message);
        assert_int_equal(rule ? rule - rules->list : -1, matches[i].rule);
    }
    assert_int_equal(rules->list[0].cls, ERR_REJECTED);
    assert_int_equal(rules->list[2].line, 8);
    assert_true(rule_is_exact(&rules->list[0]));
    assert_false(rule_is_exact(&rules->list[1]));
    assert_false(rule_is_exact(&rules->list[2]));
    assert_int_equal(config->consumers[0].handlers[0].errors.list[0].cls, ERR_PERMANENT);
    config_free(config);
    free(report);
    free(text);
}

static void
what_is_shown_can_be_read_again(void **state)
{
    struct config *config;
    char *text = file_of(good, "{sqlstate: \"23\", class: permanent}"), *shown = NULL;
    char *report = report_of(text, &config);
    size_t size;
    FILE *out = open_memstream(&shown, &size);

    (void) state;
    options_write_config(config, out);
    fclose(out);
    assert_non_null(strstr(shown, "    errors: [{sqlstate: \"23505\", message: \"^dup\", class: "
                                  "rejected}, {sqlstate: \"23\", class: transient}, "));
    config_free(config);
    free(report);
    report = report_of(shown, &config);
    assert_string_equal(report, "");
    assert_int_equal(config->consumers[0].errors.count, 4);
    assert_string_equal(config->consumers[0].errors.list[2].message, "season [0-9]+ closed$");
    free(shown);
    out = open_memstream(&shown, &size);
    options_write_json(config, out);
    fclose(out);
    assert_non_null(strstr(shown, "{\"message\":\"season [0-9]+ closed$\",\"class\":\"unknown\"}"));
    assert_non_null(strstr(shown, "\"errors\":[{\"sqlstate\":\"23\",\"class\":\"permanent\"}]"));
    config_free(config);
    free(report);
    free(shown);
    free(text);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mistake_has_its_line_and_its_remedy),
        cmocka_unit_test(the_first_rule_that_fits_is_found),
        cmocka_unit_test(what_is_shown_can_be_read_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
