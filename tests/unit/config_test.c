#include "tests/unit/t.h"

#include <stdio.h>
#include <stdlib.h>

#include "config/config.h"
#include "config/options.h"
#include "config/values.h"

static const char good[] =
    "outboxes:\n"
    "  registrations: {database: \"${T_SHOP}\"}\n"
    "destinations:\n"
    "  events: {transport: postgres, database: \"${T_BUS}\", topic: \"{aggregate_type}\", "
    "partitions: 16}\n"
    "relays:\n"
    "  registrations-to-events: {outbox: registrations, destination: events}\n"
    "consumers:\n"
    "  rewards:\n"
    "    database: \"${T_REWARDS}\"\n"
    "    from: {destination: events, topic: registration}\n"
    "    order: stream\n"
    "    handlers:\n"
    "      RegistrationConfirmed: {sql: \"SELECT apply_reward_event(:consumer, :event_id)\"}\n";

/* Parses; returns the report, which the caller frees. */
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
    if (!ok) {
        assert_string_equal(err.code, "config.invalid");
        assert_int_equal(err.exit, EXIT_CONFIG);
    }
    return report;
}

static void
refused_with(const char *text, const char *expected)
{
    struct config *config;
    char *report = report_of(text, &config);

    assert_null(config);
    assert_string_equal(report, expected);
    free(report);
}

static void
the_wanted_file_is_good(void **state)
{
    struct config *config;
    char *report = report_of(good, &config);

    (void) state;
    assert_string_equal(report, "");
    assert_string_equal(config->outboxes[0].database, "dbname=shop");
    assert_ptr_equal(config->relays[0].outbox, &config->outboxes[0]);
    assert_ptr_equal(config->consumers[0].destination, &config->destinations[0]);
    assert_int_equal(config->relays[0].lease_us, 10000000);
    assert_int_equal(config->consumers[0].batch, 100);
    assert_string_equal(config->consumers[0].owner, "rewards");
    assert_string_equal(config->consumers[0].handlers[0].event_type, "RegistrationConfirmed");
    config_free(config);
    free(report);
}

static void
every_kind_of_mistake_has_its_line(void **state)
{
    (void) state;
    refused_with(
        "", "p.yaml:1: the file is empty; `postrider config sample` writes one to begin with\n");
    refused_with("- a\n",
                 "p.yaml:1: found a list, expected the sections outboxes, destinations, …\n");
    refused_with("outboxs: {}\n",
                 "p.yaml:1: outboxs: unknown section (did you mean \"outboxes\"?)\n");
    refused_with("outboxes:\n  a: {database: x, retentoin: 7d}\n",
                 "p.yaml:2: outboxes.a.retentoin: unknown option (did you mean \"retention\"?)\n");
    refused_with(
        "outboxes:\n  a: {database: \"${T_NOT_SET}\"}\n",
        "p.yaml:2: outboxes.a.database: the environment variable T_NOT_SET is not set (export "
        "T_NOT_SET=… before starting)\n");
    refused_with("outboxes:\n  a: {}\n",
                 "p.yaml:2: outboxes.a: database is missing: Connection string of "
                 "the database that holds the outbox.\n");
    refused_with("outboxes:\n  a: {database: x, retention: 7}\n",
                 "p.yaml:2: outboxes.a.retention: found \"7\", expected a duration such as 50ms, "
                 "10s, 5m, 12h "
                 "or 7d\n");
    refused_with("outboxes:\n  a: {database: x, retention: 1s}\n",
                 "p.yaml:2: outboxes.a.retention: found 1s, expected 1d to 3650d\n");
    refused_with("outboxes:\n  a: {database: [x]}\n",
                 "p.yaml:2: outboxes.a.database: found a list, expected a value\n");
    refused_with("outboxes:\n  a: {database: x}\n  a: {database: y}\n",
                 "p.yaml:3: outboxes.a: is given twice\n");
    refused_with("outboxes:\n  A b: {database: x}\n",
                 "p.yaml:2: outboxes.A b: a name is made of a-z, 0-9, - and _ (at most 63)\n");
    refused_with("destinations:\n  f: {transport: file, path: x, partitions: 3}\n",
                 "p.yaml:2: destinations.f: partitions belongs to transport postgres only\n");
    refused_with(
        "destinations:\n  f: {transport: postgres, database: x, topic: \"{event_type}\"}\n",
        "p.yaml:2: destinations.f.topic: {event_type} would tear a stream apart: its events would "
        "lie "
        "in several topics, without an order; use {aggregate_type}\n");
    refused_with("log: {level: loud}\n",
                 "p.yaml:1: log.level: found \"loud\", expected one of debug|info|warn|error\n");
    refused_with(
        "http: {listen: 9187}\n",
        "p.yaml:1: http.listen: found \"9187\", expected address:port, e.g. 127.0.0.1:9187\n");
    refused_with("a: 1\n\tb: 2\n", "p.yaml:2: this is no YAML: found a tab character that violates "
                                   "indentation (while scanning a plain scalar)\n");
    refused_with("outboxes: {}\n---\nrelays: {}\n",
                 "p.yaml:2: a second document begins; one is read\n");
}

static void
contradictions_are_told_with_the_arithmetic(void **state)
{
    struct config *config;
    char *text = NULL, *report;

    (void) state;
    assert_true(
        asprintf(&text, "%s    retention: 3d\n    ignore: [RegistrationConfirmed]\n", good) > 0);
    report = report_of(text, &config);
    assert_null(config);
    assert_non_null(
        strstr(report, "rewards: RegistrationConfirmed has a handler and stands under ignore"));
    assert_non_null(strstr(report,
                           "rewards: retention 3d is shorter than the 7d for which destination "
                           "events keeps messages"));
    free(report);
    free(text);
}

static void
all_mistakes_come_in_one_go(void **state)
{
    struct config *config;
    char *report =
        report_of("outboxes: {a: {database: x, q: 1}}\nrelays: {r: {outbox: b, destination: c}}\n"
                  "consumers: {c: {}}\n",
                  &config);
    int lines = 0;

    (void) state;
    for (const char *at = report; (at = strchr(at, '\n')); at++)
        lines++;
    assert_int_equal(lines, 7);
    free(report);
}

static void
no_beginning_of_a_good_file_crashes(void **state)
{
    (void) state;
    for (size_t len = 0; len < strlen(good); len++) {
        struct config *config;
        char *text = strndup(good, len);
        free(report_of(text, &config));
        config_free(config);
        free(text);
    }
}

static void
the_sample_is_good(void **state)
{
    struct config *config;
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    (void) state;
    options_write_sample(out);
    fclose(out);
    char *report = report_of(text, &config);
    assert_string_equal(report, "");
    config_free(config);
    free(report);
    free(text);
}

static void
what_is_shown_is_good_and_holds_no_password(void **state)
{
    struct config *config, *again;
    char *shown = NULL;
    size_t size;
    FILE *out = open_memstream(&shown, &size);

    (void) state;
    setenv("T_BUS", "postgresql://u:s3cret@h/bus", 1);
    char *report = report_of(good, &config);
    options_write_config(config, out);
    fclose(out);
    assert_null(strstr(shown, "s3cret"));
    char *second = report_of(shown, &again);
    assert_string_equal(second, "");
    assert_int_equal(again->destinations[0].partitions, 16);
    config_free(config);
    config_free(again);
    free(report);
    free(second);
    free(shown);
}

static void
passwords_are_never_shown(void **state)
{
    static const char *const dsns[][2] = {
        {"postgresql://u:p@w@h:1/d", "postgresql://u:***@h:1/d"},
        {"postgresql://u@h/d?password=x&a=b", "postgresql://u@h/d?password=***&a=b"},
        {"host=h password=abc dbname=d", "host=h password=*** dbname=d"},
        {"host=h password = 'a b\\'c' dbname=d", "host=h password=*** dbname=d"},
        {"dbname=d", "dbname=d"},
    };

    (void) state;
    for (size_t i = 0; i < PR_LENGTH(dsns); i++) {
        char *shown = value_redact(dsns[i][0]);
        assert_string_equal(shown, dsns[i][1]);
        free(shown);
    }
}

static void
durations_go_both_ways(void **state)
{
    static const char *const texts[] = {"50ms", "10s", "5m", "12h", "7d"};
    char text[32];
    int64_t us;

    (void) state;
    for (size_t i = 0; i < PR_LENGTH(texts); i++) {
        assert_true(value_duration(texts[i], &us));
        assert_string_equal(value_duration_text(us, text, sizeof(text)), texts[i]);
    }
    assert_false(value_duration("", &us));
    assert_false(value_duration("s", &us));
    assert_false(value_duration("1w", &us));
    assert_false(value_duration("-1s", &us));
    assert_false(value_duration("99999999999999999d", &us));
}

static void
variables_can_be_escaped(void **state)
{
    char missing[64];
    char *text = value_expand("a$${T_SHOP}b${T_SHOP}$", missing, sizeof(missing));

    (void) state;
    assert_string_equal(text, "a${T_SHOP}bdbname=shop$");
    free(text);
}

static int
set_environment(void **state)
{
    (void) state;
    setenv("T_SHOP", "dbname=shop", 1);
    setenv("T_BUS", "dbname=bus", 1);
    setenv("T_REWARDS", "dbname=rewards", 1);
    setenv("SHOP_DSN", "a", 1);
    setenv("BUS_DSN", "b", 1);
    setenv("REWARDS_DSN", "c", 1);
    return 0;
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_wanted_file_is_good),
        cmocka_unit_test(every_kind_of_mistake_has_its_line),
        cmocka_unit_test(contradictions_are_told_with_the_arithmetic),
        cmocka_unit_test(all_mistakes_come_in_one_go),
        cmocka_unit_test(no_beginning_of_a_good_file_crashes),
        cmocka_unit_test(the_sample_is_good),
        cmocka_unit_test(what_is_shown_is_good_and_holds_no_password),
        cmocka_unit_test(passwords_are_never_shown),
        cmocka_unit_test(durations_go_both_ways),
        cmocka_unit_test(variables_can_be_escaped),
    };
    return cmocka_run_group_tests(tests, set_environment, NULL);
}
