#include "tests/unit/t.h"

#include <stdio.h>
#include <stdlib.h>

#include "config/config.h"
#include "config/options.h"
#include "config/values.h"
#include "core/strbuf.h"

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

/* Each row: a file, and what must be said about it, word for word. */
static const struct {
    const char *text, *expected;
} mistakes_told[] = {
    {"", "p.yaml:1: found an empty file, expected sections as outboxes and relays (`postrider "
         "config sample` writes a file to begin with)\n"},
    {"# only a comment\n",
     "p.yaml:1: found an empty file, expected sections as outboxes and relays "
     "(`postrider config sample` writes a file to begin with)\n"},
    {"- a\n", "p.yaml:1: found a list, expected a map of sections\n"},
    {"outboxs: {}\n",
     "p.yaml:1: outboxs: found an unknown section, expected outboxes, destinations, relays, "
     "consumers, checks, reconcile, http or log (did you mean \"outboxes\"?)\n"},
    {"xy: {}\n", "p.yaml:1: xy: found an unknown section, expected outboxes, destinations, relays, "
                 "consumers, checks, reconcile, http or log\n"},
    {"outboxes: [a]\n", "p.yaml:1: outboxes: found a list, expected a map from names to options\n"},
    {"outboxes:\n  a: text\n",
     "p.yaml:2: outboxes.a: found \"text\", expected a map of options\n"
     "p.yaml:2: outboxes.a.database: found nothing, expected a connection string, host=… dbname=… "
     "or postgresql://…\n"},
    {"outboxes:\n  a:\n    database: dbname=x\n    retentoin: 7d\n",
     "p.yaml:4: outboxes.a.retentoin: found an unknown option, expected database, table, "
     "aggregate_type, columns, mark, versions or retention "
     "(did you mean \"retention\"?)\n"},
    {"outboxes:\n  a: {database: \"${T_NOT_SET}\"}\n",
     "p.yaml:2: outboxes.a.database: the environment variable T_NOT_SET is not set (export "
     "T_NOT_SET=… first)\n"},
    {"outboxes:\n  a: {database: \"${T_EMPTY}\"}\n",
     "p.yaml:2: outboxes.a.database: the environment variable T_EMPTY is empty (export T_EMPTY=… "
     "first)\n"},
    {"outboxes:\n  a: {database: \"${1 x}\"}\n",
     "p.yaml:2: outboxes.a.database: found ${1 x}, expected the name of an environment variable "
     "in ${…}\n"},
    {"outboxes:\n  a: {database: \"${T_SHOP\"}\n",
     "p.yaml:2: outboxes.a.database: found ${ without }, expected ${NAME} (or $${ for a plain "
     "${)\n"},
    {"outboxes:\n  a: {database: ${T_SHOP}}\n",
     "p.yaml:2: did not find expected ',' or '}' while parsing a flow mapping, expected YAML (put "
     "a value with ${…} in double quotes)\n"},
    {"outboxes:\n  a: {database: \"host=h s3cret words\"}\n",
     "p.yaml:2: outboxes.a.database: found text that libpq cannot read, expected a connection "
     "string, host=… dbname=… or postgresql://… (put a value with spaces in '', write @ : / of a "
     "URI's password as %40 %3A %2F)\n"},
    {"outboxes:\n  a: {}\n", "p.yaml:2: outboxes.a.database: found nothing, expected a connection "
                             "string, host=… dbname=… or postgresql://…\n"},
    {"outboxes:\n  a: {database: }\n",
     "p.yaml:2: outboxes.a.database: found nothing, expected a connection string, host=… dbname=… "
     "or postgresql://…\n"},
    {"outboxes:\n  a: {database: dbname=x, retention: 7}\n",
     "p.yaml:2: outboxes.a.retention: found \"7\", expected a duration from 1d to 3650d (as 50ms, "
     "10s, 5m, 12h or 7d)\n"},
    {"outboxes:\n  a: {database: dbname=x, retention: 1s}\n",
     "p.yaml:2: outboxes.a.retention: found \"1s\", expected a duration from 1d to 3650d\n"},
    {"outboxes:\n  a: {database: [x]}\n",
     "p.yaml:2: outboxes.a.database: found a list, expected a connection string, host=… dbname=… "
     "or postgresql://…\n"},
    {"outboxes:\n  a: {database: dbname=x}\n  a: {database: dbname=y}\n",
     "p.yaml:3: outboxes: found \"a\" again, expected it once (it stands in line 2 already)\n"},
    {"outboxes:\n  A b: {database: dbname=x}\n",
     "p.yaml:2: outboxes.A b: found a name with other characters, expected a-z, 0-9, - and _, at "
     "most 63, the first a letter or digit\n"},
    {"outboxes:\n  ? [a]\n  : {database: dbname=x}\n",
     "p.yaml:2: outboxes: found a key that is no text, expected a name\n"},
    {"outboxes:\n  a: &a {database: dbname=x}\n  b: {<<: *a, database: dbname=y}\n",
     "p.yaml:3: outboxes.b: found the merge key <<, expected an option (repeat the options; "
     "anchors of single values work)\n"},
    {"destinations:\n  f: {transport: kafak}\n",
     "p.yaml:2: destinations.f.transport: found \"kafak\", expected postgres, kafka, file or "
     "null\n"},
    {"destinations:\n  f: {transport: file}\n",
     "p.yaml:2: destinations.f.path: found nothing, expected text\n"},
    {"destinations:\n  f:\n    transport: file\n    path: x\n    partitions: 3\n",
     "p.yaml:5: destinations.f.partitions: found with transport file, expected with transport "
     "postgres or kafka only (remove it)\n"},
    {"destinations:\n  f: {transport: postgres, database: dbname=x, path: x}\n",
     "p.yaml:2: destinations.f.path: found with transport postgres, expected with transport file "
     "only (remove it)\n"},
    {"destinations:\n  f: {transport: postgres, database: dbname=x, partitions: 0}\n",
     "p.yaml:2: destinations.f.partitions: found \"0\", expected a number from 1 to 1024\n"},
    {"destinations:\n  f: {transport: postgres, database: dbname=x, partitions: many}\n",
     "p.yaml:2: destinations.f.partitions: found \"many\", expected a number from 1 to 1024\n"},
    {"destinations:\n  f: {transport: postgres, database: dbname=x, topic: \"{event_type}\"}\n",
     "p.yaml:2: destinations.f.topic: found \"{event_type}\", expected fixed text, "
     "{aggregate_type}, or both (with {event_type}, events of one stream would lie in several "
     "topics and lose their order)\n"},
    {"destinations:\n  f: {transport: postgres, database: dbname=x, topic: \"a{b}\"}\n",
     "p.yaml:2: destinations.f.topic: found \"a{b}\", expected fixed text, {aggregate_type}, or "
     "both\n"},
    {"destinations:\n  f: {transport: postgres, database: dbname=x, topic: {aggregate_type}}\n",
     "p.yaml:2: destinations.f.topic: found a map, expected fixed text, {aggregate_type}, or both "
     "(put text with {…} in double quotes)\n"},
    {"destinations:\n  f: {transport: file, path: \"a\\nb\"}\n",
     "p.yaml:2: destinations.f.path: found a line break or another control character, expected "
     "text\n"},
    {"relays:\n  r: {outbox: none, destination: none}\n",
     "p.yaml:2: relays.r.outbox: found \"none\", expected a name from outboxes (there are none)\n"
     "p.yaml:2: relays.r.destination: found \"none\", expected a name from destinations (there "
     "are none)\n"},
    {"log: {level: loud}\n",
     "p.yaml:1: log.level: found \"loud\", expected debug, info, warn or error\n"},
    {"http: {listen: 9187}\n",
     "p.yaml:1: http.listen: found \"9187\", expected address:port, e.g. 127.0.0.1:9187\n"},
    {"http: {listen: \"h:65536\"}\n",
     "p.yaml:1: http.listen: found \"h:65536\", expected address:port, e.g. 127.0.0.1:9187\n"},
    {"http: {listen: \"h:1\"}\nhttp: {listen: \"h:2\"}\n",
     "p.yaml:2: found \"http\" again, expected it once (it stands in line 1 already)\n"},
    {"log:\n\tlevel: info\n",
     "p.yaml:2: found character that cannot start any token while scanning for the next token, "
     "expected YAML (the line begins with a tab: indent with spaces)\n"},
    {"log: {}\nlog2: \"\xff\"\n",
     "p.yaml:2: found bytes that are no text (invalid leading UTF-8 octet), expected UTF-8\n"},
    {"outboxes: {}\n---\nrelays: {}\n", "p.yaml:2: found a second document, expected one\n"},
    {"a: \"\\x07\\x1b[2J\"\nlog: {level: \"\\e[2J\"}\n",
     "p.yaml:1: a: found an unknown section, expected outboxes, destinations, relays, consumers, "
     "checks, reconcile, "
     "http or log\n"
     "p.yaml:2: log.level: found a line break or another control character, expected debug, info, "
     "warn or error\n"},
    {"log: {level: \"a\\0b\"}\n",
     "p.yaml:1: log.level: found a NUL byte, expected debug, info, warn or error\n"},
};

static void
every_kind_of_mistake_has_its_line(void **state)
{
    (void) state;
    for (size_t i = 0; i < PR_LENGTH(mistakes_told); i++)
        refused_with(mistakes_told[i].text, mistakes_told[i].expected);
}

/* The good file with a line of its end or middle replaced. */
static void
changed_is_refused_with(const char *from, const char *to, const char *expected)
{
    const char *at = strstr(good, from);
    char *text = NULL;

    assert_non_null(at);
    assert_true(asprintf(&text, "%.*s%s%s", (int) (at - good), good, to, at + strlen(from)) > 0);
    refused_with(text, expected);
    free(text);
}

static void
contradictions_are_told_with_the_arithmetic(void **state)
{
    (void) state;
    changed_is_refused_with(
        "    order: stream\n", "    order: stream\n    retention: 3d\n",
        "p.yaml:12: consumers.rewards.retention: found 3d, expected at least 7d, the retention of "
        "destination events (7d - 3d = 4d in which a message can come back after its record is "
        "gone, and be applied again)\n");
    changed_is_refused_with(
        "    order: stream\n", "    order: none\n    first: 1\n",
        "p.yaml:12: consumers.rewards.first: found 1, expected it with order stream only (no other "
        "order knows which version opens a stream)\n");
    changed_is_refused_with(
        "    order: stream\n", "    ignore:\n      - RegistrationConfirmed\n",
        "p.yaml:11: consumers.rewards.ignore: found RegistrationConfirmed, which has a handler in "
        "line 14, expected it in one of the two (an event cannot be both handled and ignored)\n");
    changed_is_refused_with(
        "consumers:\n", "  second: {outbox: registrations, destination: events}\nconsumers:\n",
        "p.yaml:7: relays.second: found outbox registrations and destination events, which relay "
        "registrations-to-events has already, expected another pair (every event would be "
        "published twice)\n");
    changed_is_refused_with(
        "topic: \"{aggregate_type}\"", "topic: \"shop.{aggregate_type}\"",
        "p.yaml:10: consumers.rewards.from.topic: found \"registration\", expected a topic as "
        "destination events has them, \"shop.{aggregate_type}\" (nothing would ever arrive)\n");
    changed_is_refused_with(
        "from: {destination: events,", "from: {destination: event,",
        "p.yaml:10: consumers.rewards.from.destination: found \"event\", expected a name from "
        "destinations (did you mean \"events\"?)\n");
    changed_is_refused_with(
        "{transport: postgres, database: \"${T_BUS}\", topic: \"{aggregate_type}\", partitions: "
        "16}",
        "{transport: file, path: \"-\"}",
        "p.yaml:10: consumers.rewards.from.destination: found events, whose transport is file, "
        "expected one of transport postgres or kafka (there is nothing to read from the others)\n");
    changed_is_refused_with(
        "topic: registration}", "topik: registration}",
        "p.yaml:10: consumers.rewards.from.topik: found an unknown option, expected destination, "
        "topic or start (did you mean \"topic\"?)\n"
        "p.yaml:10: consumers.rewards.from.topic: found nothing, expected text\n");
    changed_is_refused_with(
        "{sql:", "{sqll:",
        "p.yaml:13: consumers.rewards.handlers.RegistrationConfirmed.sqll: found an unknown kind "
        "of handler, expected sql or errors\n");
}

static void
all_mistakes_come_in_one_go_by_line(void **state)
{
    (void) state;
    refused_with("relays:\n  r: {outbox: a, destination: c}\n"
                 "consumers: {c: {}}\n"
                 "outboxes: {a: {database: dbname=x, q: 1}}\n",
                 "p.yaml:2: relays.r.destination: found \"c\", expected a name from destinations "
                 "(there are none)\n"
                 "p.yaml:3: consumers.c.database: found nothing, expected a connection string, "
                 "host=… dbname=… or postgresql://…\n"
                 "p.yaml:3: consumers.c.from.destination: found nothing, expected a name from "
                 "destinations\n"
                 "p.yaml:3: consumers.c.from.topic: found nothing, expected text\n"
                 "p.yaml:3: consumers.c.handlers: found nothing, expected a map from event types "
                 "to {sql: \"…\"}\n"
                 "p.yaml:4: outboxes.a.q: found an unknown option, expected database, table, "
                 "aggregate_type, columns, mark, versions or retention\n");
}

static void
what_a_variable_holds_is_not_told(void **state)
{
    (void) state;
    setenv("T_SECRET", "postgresql://u:s3cret@h/d", 1);
    refused_with("destinations: {d: {transport: \"${T_SECRET}\"}}\n",
                 "p.yaml:1: destinations.d.transport: found \"${T_SECRET}\", expected postgres, "
                 "kafka, file or null\n");
    refused_with("relays: {r: {outbox: \"${T_SECRET}\", destination: x}}\n",
                 "p.yaml:1: relays.r.outbox: found \"${T_SECRET}\", expected a name from outboxes "
                 "(there are none)\n"
                 "p.yaml:1: relays.r.destination: found \"x\", expected a name from destinations "
                 "(there are none)\n");
}

static void
a_thousand_mistakes_are_counted(void **state)
{
    struct strbuf text = {0};
    struct config *config;

    (void) state;
    for (int i = 0; i < 500; i++)
        strbuf_addf(&text, "x%d: {}\n", i);
    char *report = report_of(strbuf_str(&text), &config);
    assert_non_null(strstr(report, "p.yaml:100: x99: "));
    assert_null(strstr(report, "p.yaml:101: x100: "));
    assert_non_null(strstr(report, "p.yaml: and 400 more\n"));
    free(report);
    strbuf_release(&text);
}

static void
a_file_that_is_too_deep_or_too_wide_is_refused(void **state)
{
    struct strbuf text = {0};
    struct config *config;

    (void) state;
    for (int i = 0; i < 200000; i++)
        strbuf_addc(&text, '[');
    refused_with(strbuf_str(&text), "p.yaml:1: found more than 32 levels, expected at most six\n");
    strbuf_reset(&text);
    strbuf_adds(&text, "outboxes:\n");
    for (int i = 0; i < 40000; i++)
        strbuf_addf(&text, "  o%d: {database: dbname=x}\n", i);
    char *report = report_of(strbuf_str(&text), &config);
    assert_string_equal(report,
                        "p.yaml:1: outboxes: found more than 1000 entries, expected fewer\n");
    free(report);
    strbuf_reset(&text);
    strbuf_adds(&text, "consumers:\n  c: {ignore: &i [a");
    for (int i = 0; i < 900; i++)
        strbuf_adds(&text, ", a");
    strbuf_adds(&text, "]}\n");
    for (int i = 0; i < 900; i++)
        strbuf_addf(&text, "  c%d: {ignore: *i}\n", i);
    report = report_of(strbuf_str(&text), &config);
    assert_non_null(strstr(report, "p.yaml:24: consumers.c21.ignore: found more than 20000 "
                                   "entries in all, expected fewer\n"));
    free(report);
    strbuf_release(&text);
}

static void
aliases_work_and_cannot_go_in_circles(void **state)
{
    struct config *config;
    char *report = report_of("outboxes:\n  a: {database: &shop \"${T_SHOP}\"}\n"
                             "  b: {database: *shop}\n",
                             &config);

    (void) state;
    assert_string_equal(report, "");
    assert_string_equal(config->outboxes[1].database, "dbname=shop");
    config_free(config);
    free(report);
    refused_with("outboxes: &o\n  a: *o\n",
                 "p.yaml:2: outboxes.a.a: found an unknown option, expected database, table, "
                 "aggregate_type, columns, mark, versions or retention\n"
                 "p.yaml:2: outboxes.a.database: found nothing, expected a connection string, "
                 "host=… dbname=… or postgresql://…\n");
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

/* Bytes replaced, dropped and doubled at random, the same ones in every run. */
static void
no_rubbish_crashes(void **state)
{
    static const char bytes[] = "{}[]:,-\"'\n\t &*!|>%@`#${<\xff\0\xc3";
    uint64_t seed = 42;

    (void) state;
    for (int round = 0; round < 3000; round++) {
        size_t len = strlen(good);
        char *text = strdup(good), *report = NULL;
        size_t size = 0;
        FILE *out = open_memstream(&report, &size);
        struct config *config;
        struct error err;
        for (int i = 0; i < 1 + round % 6; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            size_t at = (seed >> 33) % len;
            if (seed >> 62 == 0)
                memmove(text + at, text + at + 1, --len - at);
            else
                text[at] = bytes[(seed >> 20) % (sizeof(bytes) - 1)];
        }
        bool ok = config_parse("p.yaml", text, len, out, &config, &err);
        fclose(out);
        assert_int_equal(ok, *report == '\0');
        config_free(config);
        free(report);
        free(text);
    }
}

static void
files_that_cannot_be_read_are_named(void **state)
{
    struct config *config;
    struct error err;

    (void) state;
    assert_false(config_load("/nonexistent/p.yaml", stderr, &config, &err));
    assert_string_equal(err.text, "cannot read /nonexistent/p.yaml: No such file or directory");
    assert_string_equal(err.hint, "name the file with --config, or make one: postrider config "
                                  "sample > postrider.yaml");
    assert_int_equal(err.exit, EXIT_CONFIG);
    assert_false(config_load("/", stderr, &config, &err));
    assert_string_equal(err.text, "cannot read /: Is a directory");
    assert_false(config_load("/dev/zero", stderr, &config, &err));
    assert_string_equal(err.text, "cannot read /dev/zero: it is larger than 1 MB");
}

/* What one of the options_write_… functions writes, until the next call. */
static char *
written_by(void (*write)(FILE *out))
{
    static char text[65536];
    FILE *out = fmemopen(text, sizeof(text), "w");

    write(out);
    assert_true(ftell(out) < (long) sizeof(text) - 1);
    fclose(out);
    return text;
}

static void
the_sample_is_good(void **state)
{
    struct config *config;
    char *text = written_by(options_write_sample);
    char *report = report_of(text, &config);

    (void) state;
    assert_string_equal(report, "");
    assert_int_equal(config->consumers[0].retention_us, 14 * 86400000000);
    config_free(config);
    free(report);
}

/* Puts the lines of each comment together again. */
static void
unwrap(char *text)
{
    char *to = text;

    for (const char *at = text; *at; at++) {
        const char *next = at + 1 + strspn(at + 1, " ");
        if (*at == '\n' && next[0] == '#' && next[1] == ' ') {
            *to++ = ' ';
            at = next + 1;
        } else {
            *to++ = *at;
        }
    }
    *to = '\0';
}

static void
the_sample_names_every_option_and_its_default(void **state)
{
    char *text = written_by(options_write_sample);

    (void) state;
    unwrap(text);
    for (size_t i = 0; i < option_count; i++) {
        const struct option *o = &options[i];
        const char *value = o->example ? o->example : o->fallback ? o->fallback : "\"…\"";
        char *line = NULL;
        assert_true(
            asprintf(&line, " %s:%s%s", option_last_key(o), *value == '\n' ? "" : " ", value) > 0);
        const char *help = strstr(text, o->help);
        if (!help || !strstr(help, line))
            fail_msg("the sample lacks %s.%s", o->section, o->key);
        free(line);
    }
}

/* As scdoc would print it: without the backslashes in front of what would be markup. */
static void
the_manual_has_every_option(void **state)
{
    char *text = written_by(options_write_manual);
    size_t n = 0;

    (void) state;
    for (const char *at = text; *at; at++)
        if (*at != '\\')
            text[n++] = *at;
    text[n] = '\0';
    for (size_t i = 0; i < option_count; i++) {
        const struct option *o = &options[i];
        char *entry = NULL, what[256];
        option_expected(o, what, sizeof(what));
        assert_true(asprintf(&entry, "*%s*: %s\n\t%s", o->key, what, o->help) > 0);
        if (!strstr(text, entry))
            fail_msg("the manual lacks %s.%s", o->section, o->key);
        assert_true(!o->more || strstr(text, o->more));
        free(entry);
    }
}

static void
every_option_can_be_read(void **state)
{
    static const char every[] =
        "outboxes: {o: {database: dbname=o, retention: 8d, versions: sparse},\n"
        "  t: {database: dbname=t, table: public.outbox, aggregate_type: registration, columns: "
        "{event_id: id,\n"
        "    aggregate_type: a, aggregate_id: b, aggregate_version: c, event_type: d, payload: e, "
        "headers: f,\n"
        "    content_type: g, occurred_at: h}, mark: {column: s, pending: N, published: P, "
        "discarded: D}}}\n"
        "destinations:\n"
        "  d: {transport: postgres, database: dbname=d, topic: \"a.{aggregate_type}\", "
        "partitions: 1024, retention: 9d}\n"
        "  f: {transport: file, path: \"-\"}\n"
        "  k: {transport: kafka, bootstrap: \"h:1\", topic: x, settings: {linger.ms: 7, "
        "sasl.password: s3cret}}\n"
        "  n: {transport: null}\n"
        "relays: {r: {outbox: o, destination: d, start: now, lease: 300ms, poll_cap: 1s, owner: "
        "us,\n"
        "  filter: {aggregate_types: [a, b], event_types: [E]}}}\n"
        "consumers:\n"
        "  c:\n"
        "    {database: dbname=c, from: {destination: d, topic: a.x, start: now}, order: stream, "
        "first: 1,\n"
        "     handlers: {A: {sql: SELECT 1}, B: {sql: SELECT 2}}, ignore: [C, D], errors: [], "
        "batch: 1000, parked_limit: {stream: 7, total: 8}, "
        "owner: me,\n"
        "     lease: 5m, retention: 9d}\n"
        "checks: {k: {left: {database: dbname=l, sql: \"SELECT 1,\\n2\"}, right: {database: "
        "dbname=r,\n"
        "  sql: SELECT 3}, settle: 1s}}\n"
        "reconcile: {every: 1h, window: 2d}\n"
        "http: {listen: \"[::1]:0\"}\n"
        "log: {level: error, format: json}\n";
    struct config *c;
    char *report = report_of(every, &c);

    (void) state;
    assert_string_equal(report, "");
    assert_true(c->outboxes[0].retention_us == 8 * 86400000000);
    assert_int_equal(c->destinations[0].partitions, 1024);
    assert_string_equal(c->destinations[1].path, "-");
    assert_string_equal(c->destinations[2].bootstrap, "h:1");
    assert_int_equal(c->destinations[2].partitions, 0);
    assert_string_equal(c->destinations[2].settings[0].name, "linger.ms");
    assert_string_equal(c->destinations[2].settings[0].value, "7");
    assert_string_equal(c->destinations[3].transport, "null");
    assert_int_equal(c->outboxes[0].versions, VERSIONS_SPARSE);
    assert_string_equal(c->outboxes[1].columns.occurred_at, "h");
    assert_string_equal(c->outboxes[1].mark.discarded, "D");
    assert_int_equal(c->relays[0].filter.aggregate_type_count, 2);
    assert_string_equal(c->relays[0].filter.event_types[0], "E");
    assert_string_equal(c->relays[0].owner, "us");
    assert_int_equal(c->relays[0].start, START_NOW);
    assert_int_equal(c->relays[0].lease_us, 300000);
    assert_int_equal(c->relays[0].poll_cap_us, 1000000);
    assert_string_equal(c->consumers[0].start, "now");
    assert_int_equal(c->consumers[0].order, ORDER_STREAM);
    assert_int_equal(c->consumers[0].first, FIRST_ONE);
    assert_int_equal(c->consumers[0].handler_count, 2);
    assert_string_equal(c->consumers[0].ignore[1], "D");
    assert_string_equal(c->consumers[0].owner, "me");
    assert_int_equal(c->consumers[0].batch, 1000);
    assert_string_equal(c->checks[0].left.sql, "SELECT 1,\n2");
    assert_string_equal(c->checks[0].right.database, "dbname=r");
    assert_int_equal(c->checks[0].settle_us, 1000000);
    assert_true(c->reconcile_every_us == 3600000000);
    assert_true(c->reconcile_window_us == 2 * 86400000000);
    assert_int_equal(c->consumers[0].parked_stream, 7);
    assert_int_equal(c->consumers[0].parked_total, 8);
    assert_string_equal(c->http_listen, "[::1]:0");
    assert_int_equal(c->log_level, LOG_ERROR);
    assert_int_equal(c->log_format, LOG_JSON);
    for (size_t i = 0; i < option_count; i++) /* the file above is not stale */
        assert_non_null(strstr(every, option_last_key(&options[i])));
    config_free(c);
    free(report);
}

/* Shown, read and shown again, nothing is different, and a password is nowhere. */
static void
what_is_shown_is_the_configuration_without_passwords(void **state)
{
    static const char odd[] = "    ignore: [\"a: b\", \"${T_ODD}\"]\n"
                              "    handlers:\n"
                              "      \"x # y\":\n        sql: |\n          SELECT '\"\\$${T}'\n"
                              "          -- two lines\n";
    struct config *config;
    char *text = NULL, *shown = NULL, *again = NULL;
    size_t size;

    (void) state;
    setenv("T_BUS", "postgresql://u:s3cret@h/bus?sslpassword=s3cret2", 1);
    setenv("T_ODD", "${T_SHOP}", 1);
    const char *handlers = strstr(good, "    handlers:");
    assert_true(asprintf(&text, "%.*s%s", (int) (handlers - good), good, odd) > 0);
    char *report = report_of(text, &config);
    assert_string_equal(report, "");
    assert_string_equal(config->consumers[0].handlers[0].sql, "SELECT '\"\\${T}'\n-- two lines\n");
    FILE *out = open_memstream(&shown, &size);
    options_write_config(config, out);
    options_write_json(config, out);
    fclose(out);
    assert_null(strstr(shown, "s3cret"));
    *strstr(shown, "\n{") = '\0'; /* where JSON begins */
    config_free(config);
    free(report);

    report = report_of(shown, &config);
    assert_string_equal(report, "");
    assert_string_equal(config->consumers[0].handlers[0].sql, "SELECT '\"\\${T}'\n-- two lines\n");
    assert_string_equal(config->consumers[0].ignore[1], "${T_SHOP}");
    out = open_memstream(&again, &size);
    options_write_config(config, out);
    fclose(out);
    assert_memory_equal(again, shown, strlen(shown));
    config_free(config);
    free(report);
    free(again);
    free(shown);
    free(text);
    setenv("T_BUS", "dbname=bus", 1);
}

static void
passwords_are_never_shown(void **state)
{
    static const char *const dsns[][2] = {
        {"postgresql://u:pw@h:1/d", "user=u password=*** dbname=d host=h port=1"},
        {"postgresql://u@h/d?p%61ssword=x&application_name=b",
         "user=u password=*** dbname=d host=h application_name=b"},
        {"host=h password=abc dbname=d", "password=*** dbname=d host=h"},
        {"host=h password = 'a b\\'c' dbname='a b'", "password=*** dbname='a b' host=h"},
        {"dbname='it\\'s'", "dbname='it\\'s'"},
        {"dbname=d sslpassword=x", "dbname=d sslpassword=***"},
        {"postgresql://u:p/w@h/d", "***"},
        {"postgresql://u:1/w@h/d", "***"},
        {"host=h port=s3cret", "***"},
        {"postgresql:///d?host=/run/a@b", "dbname=d host=/run/a@b"},
        {"host=h password=://a@b dbname=d", "password=*** dbname=d host=h"},
        {"host=h password=two words", "***"},
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
    static const char *const bad[] = {"",
                                      "s",
                                      "1",
                                      "1w",
                                      "-1s",
                                      "1.5s",
                                      " 1s",
                                      "1s ",
                                      "1 s",
                                      "99999999999999999d",
                                      "9223372036854775807s"};
    char text[32];
    int64_t us;

    (void) state;
    for (size_t i = 0; i < PR_LENGTH(texts); i++) {
        assert_true(value_duration(texts[i], &us));
        assert_string_equal(value_duration_text(us, text, sizeof(text)), texts[i]);
    }
    for (size_t i = 0; i < PR_LENGTH(bad); i++)
        assert_false(value_duration(bad[i], &us));
}

static void
variables_can_be_escaped(void **state)
{
    char why[256], *text;

    (void) state;
    assert_true(value_expand("a$${T_SHOP}b${T_SHOP}$", &text, why, sizeof(why)));
    assert_string_equal(text, "a${T_SHOP}bdbname=shop$");
    free(text);
}

static void
the_nearest_word_is_near(void **state)
{
    static const char *const words[] = {"status", "dlq list", "run", "retention"};

    (void) state;
    assert_string_equal(value_nearest("statsu", words, 4), "status");
    assert_string_equal(value_nearest("stat", words, 4), "status");
    assert_string_equal(value_nearest("rum", words, 4), "run");
    assert_null(value_nearest("xyz", words, 4));
    assert_null(value_nearest("", words, 4));
}

static int
set_environment(void **state)
{
    (void) state;
    setenv("T_SHOP", "dbname=shop", 1);
    setenv("T_BUS", "dbname=bus", 1);
    setenv("T_REWARDS", "dbname=rewards", 1);
    setenv("T_EMPTY", "", 1);
    setenv("SHOP_DSN", "dbname=a", 1);
    setenv("BUS_DSN", "dbname=b", 1);
    setenv("REWARDS_DSN", "dbname=c", 1);
    return 0;
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_wanted_file_is_good),
        cmocka_unit_test(every_kind_of_mistake_has_its_line),
        cmocka_unit_test(contradictions_are_told_with_the_arithmetic),
        cmocka_unit_test(all_mistakes_come_in_one_go_by_line),
        cmocka_unit_test(what_a_variable_holds_is_not_told),
        cmocka_unit_test(a_thousand_mistakes_are_counted),
        cmocka_unit_test(a_file_that_is_too_deep_or_too_wide_is_refused),
        cmocka_unit_test(aliases_work_and_cannot_go_in_circles),
        cmocka_unit_test(no_beginning_of_a_good_file_crashes),
        cmocka_unit_test(no_rubbish_crashes),
        cmocka_unit_test(files_that_cannot_be_read_are_named),
        cmocka_unit_test(the_sample_is_good),
        cmocka_unit_test(the_sample_names_every_option_and_its_default),
        cmocka_unit_test(the_manual_has_every_option),
        cmocka_unit_test(every_option_can_be_read),
        cmocka_unit_test(what_is_shown_is_the_configuration_without_passwords),
        cmocka_unit_test(passwords_are_never_shown),
        cmocka_unit_test(durations_go_both_ways),
        cmocka_unit_test(variables_can_be_escaped),
        cmocka_unit_test(the_nearest_word_is_near),
    };
    return cmocka_run_group_tests(tests, set_environment, NULL);
}
