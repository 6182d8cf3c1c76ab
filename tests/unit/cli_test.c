#include "tests/unit/t.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/help.h"

/* What one run of the program said and how it ended. */
static char said[65536], complained[65536];
static int ended;

/* Sends a stream into a file of its own; what it was is in *ret_before. */
static FILE *
divert(FILE *stream, int *ret_before)
{
    FILE *file = tmpfile();

    assert_non_null(file);
    fflush(stream);
    *ret_before = dup(fileno(stream));
    assert_true(dup2(fileno(file), fileno(stream)) >= 0);
    return file;
}

static void
restore(FILE *stream, int before, FILE *file, char *text, size_t size)
{
    fflush(stream);
    assert_true(dup2(before, fileno(stream)) >= 0);
    close(before);
    rewind(file);
    text[fread(text, 1, size - 1, file)] = '\0';
    fclose(file);
}

/* Runs the program with the words of a line. */
static void
run(const char *line)
{
    char *copy = strdup(line), *rest = NULL, *argv[16] = {strdup("postrider")};
    char *const program = argv[0];
    int argc = 1, out, err;

    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        argv[argc++] = word;
    FILE *out_file = divert(stdout, &out), *err_file = divert(stderr, &err);
    ended = cli_main(argc, argv);
    restore(stdout, out, out_file, said, sizeof(said));
    restore(stderr, err, err_file, complained, sizeof(complained));
    free(program);
    free(copy);
}

/* A wrong line ends with 2, says one thing on stderr and nothing on stdout. */
static void
wrong(const char *line, const char *text)
{
    run(line);
    assert_string_equal(complained, text);
    assert_string_equal(said, "");
    assert_int_equal(ended, EXIT_USAGE);
}

static void
wrong_lines_are_told_with_the_right_ones(void **state)
{
    (void) state;
    wrong("statsu", "postrider: there is no command \"statsu\" (did you mean \"status\"?)\n"
                    "  hint: postrider --help\n");
    wrong("zzzzzz", "postrider: there is no command \"zzzzzz\"\n  hint: postrider --help\n");
    wrong("help zzzzzz", "postrider: there is no command \"zzzzzz\"\n  hint: postrider --help\n");
    wrong("config", "postrider: config is followed by check, show or sample\n"
                    "  hint: postrider --help\n");
    wrong("config samp",
          "postrider: there is no command \"config samp\" (did you mean \"config sample\"?)\n"
          "  hint: postrider --help\n");
    wrong("config zzzzzz", "postrider: config is followed by check, show or sample, not by "
                           "\"zzzzzz\"\n  hint: postrider --help\n");
    wrong("init --dry-rnu", "postrider: there is no option --dry-rnu (did you mean --dry-run?)\n"
                            "  hint: postrider init --help\n");
    wrong("init --dry-run=1",
          "postrider: --dry-run takes no value\n  hint: postrider init --help\n");
    wrong("init --config", "postrider: --config needs a value\n  hint: postrider init --help\n");
    wrong("-x init", "postrider: there is no option -x\n  hint: postrider init --help\n");
    wrong("init more", "postrider: \"more\" is too much here\n  hint: postrider init --help\n");
    wrong("init more --json", "{\"error\":\"\\\"more\\\" is too much here\",\"hint\":\"postrider "
                              "init --help\",\"code\":\"cli.usage\",\"exit\":2}\n");
}

static void
without_a_command_help_is_shown_and_fails(void **state)
{
    (void) state;
    run("");
    assert_int_equal(ended, EXIT_USAGE);
    assert_non_null(strstr(said, "usage: postrider COMMAND [OPTIONS]\n"));
}

static void
help_is_the_same_however_it_is_asked_for(void **state)
{
    static const char *const ways[][2] = {
        {"help dlq show", "dlq show --help"}, {"help dlq show", "--help dlq show"},
        {"help dlq show", "dlq show 3 -h"},   {"help", "--help"},
        {"help dlq", "dlq --help"},
    };

    (void) state;
    for (size_t i = 0; i < PR_LENGTH(ways); i++) {
        run(ways[i][0]);
        assert_int_equal(ended, EXIT_OK);
        assert_string_equal(complained, "");
        char *first = strdup(said);
        run(ways[i][1]);
        assert_int_equal(ended, EXIT_OK);
        assert_string_equal(said, first);
        free(first);
    }
}

static void
every_command_explains_itself(void **state)
{
    (void) state;
    run("help");
    char *all = strdup(said);
    for (const struct command *c = commands; c->name; c++) {
        char *line = NULL;
        assert_non_null(strstr(all, c->summary));
        assert_true(asprintf(&line, "%s --help", c->name) > 0);
        run(line);
        assert_int_equal(ended, EXIT_OK);
        assert_non_null(c->run);
        assert_true(c->summary[strlen(c->summary) - 1] != '.'); /* the list has none */
        assert_true(strlen(c->help) > 0);
        assert_non_null(strstr(said, c->help));
        for (const struct command_option *o = c->options; o->name; o++) {
            assert_non_null(strstr(said, o->name));
            assert_non_null(strstr(said, o->help));
            for (const struct command_option *g = global_options; g->name; g++)
                assert_string_not_equal(o->name, g->name);
        }
        free(line);
    }
    free(all);
}

static void
version_is_told_before_and_behind_the_command(void **state)
{
    (void) state;
    run("--version");
    assert_string_equal(said, "postrider " PR_VERSION "\n");
    run("config check --version");
    assert_string_equal(said, "postrider " PR_VERSION "\n");
    assert_int_equal(ended, EXIT_OK);
}

/* Writes a configuration into a new file; the caller frees and unlinks the name. */
static char *
file_with(const char *text)
{
    char *name = strdup("/tmp/postrider-cli-test-XXXXXX");
    int fd = mkstemp(name);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    return name;
}

static void
run_with(const char *format, const char *file)
{
    char *at = strstr(format, "FILE"), *line = NULL;

    assert_true(asprintf(&line, "%.*s%s%s", (int) (at - format), format, file, at + 4) > 0);
    run(line);
    free(line);
}

static void
global_options_stand_before_or_behind_the_command(void **state)
{
    static const char *const lines[] = {"--config FILE config check", "--config=FILE config check",
                                        "config check --config FILE", "config check --config=FILE"};
    char *name = file_with("outboxes: {a: {database: dbname=a}}\n");

    (void) state;
    for (size_t i = 0; i < PR_LENGTH(lines); i++) {
        run_with(lines[i], name);
        assert_string_equal(said, "ok: 1 outboxes, 0 destinations, 0 relays, 0 consumers, "
                                  "0 checks\n");
        assert_string_equal(complained, "");
        assert_int_equal(ended, EXIT_OK);
    }
    setenv("POSTRIDER_CONFIG", name, 1);
    run("config check --json");
    unsetenv("POSTRIDER_CONFIG");
    assert_string_equal(said, "{\"ok\":true,\"outboxes\":1,\"destinations\":0,\"relays\":0,"
                              "\"consumers\":0,\"checks\":0}\n");
    unlink(name);
    free(name);
}

static void
mistakes_of_the_configuration_are_told_in_both_forms(void **state)
{
    char *name = file_with("log: {level: x}\n"), *text = NULL;

    (void) state;
    run_with("config check --config FILE", name);
    assert_int_equal(ended, EXIT_CONFIG);
    assert_true(asprintf(&text,
                         "%s:1: log.level: found \"x\", expected debug, info, warn or error\n"
                         "postrider: %s has 1 mistake\n"
                         "  hint: mend these lines, then `postrider config check`\n",
                         name, name) > 0);
    assert_string_equal(complained, text);
    free(text);
    run_with("config check --json --config FILE", name);
    assert_int_equal(ended, EXIT_CONFIG);
    assert_true(asprintf(&text,
                         "{\"error\":\"%s has 1 mistake\",\"hint\":\"mend these lines, then "
                         "`postrider config check`\",\"code\":\"config.invalid\",\"exit\":78,"
                         "\"mistakes\":[\"%s:1: log.level: found \\\"x\\\", expected debug, info, "
                         "warn or error\"]}\n",
                         name, name) > 0);
    assert_string_equal(complained, text);
    free(text);
    unlink(name);
    run_with("config check --json --config FILE", name);
    assert_int_equal(ended, EXIT_CONFIG);
    assert_null(strstr(complained, "mistakes"));
    free(name);
}

/* The page in docs/man, filled in, without the backslashes that scdoc takes away. */
static const char *
manual(void)
{
    static char text[65536];
    FILE *page = fopen("docs/man/postrider.1.scd", "re");
    FILE *out = fmemopen(text, sizeof(text), "w");
    size_t n = 0;

    assert_non_null(page);
    help_write_manual(page, out);
    assert_true(ftell(out) < (long) sizeof(text) - 1);
    fclose(page);
    fclose(out);
    for (const char *at = text; *at; at++)
        if (*at != '\\')
            text[n++] = *at;
    text[n] = '\0';
    return text;
}

static void
the_manual_has_every_command_option_and_exit_code(void **state)
{
    static const enum exit_code codes[] = {EXIT_OK,     EXIT_DIFFERS, EXIT_USAGE, EXIT_REFUSED,
                                           EXIT_AWAY,   EXIT_FAULT,   EXIT_FULL,  EXIT_NEWER,
                                           EXIT_RIGHTS, EXIT_CONFIG};
    const char *text = manual();

    (void) state;
    assert_null(strstr(text, "\n@"));
    for (const struct command *c = commands; c->name; c++) {
        char *head = NULL;
        assert_true(asprintf(&head, "*%s*%s%s\n\t%s", c->name, *c->args ? " " : "", c->args,
                             c->summary) > 0);
        const char *at = strstr(text, head);
        if (!at)
            fail_msg("the manual lacks %s", c->name);
        for (const struct command_option *o = c->options; o->name && at; o++)
            assert_non_null(strstr(at, o->help));
        free(head);
    }
    for (const struct command_option *o = global_options; o->name; o++)
        assert_non_null(strstr(text, o->help));
    for (size_t i = 0; i < PR_LENGTH(codes); i++) {
        char head[16];
        snprintf(head, sizeof(head), "\n*%d*\n", (int) codes[i]);
        assert_non_null(strstr(text, head));
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_lines_are_told_with_the_right_ones),
        cmocka_unit_test(without_a_command_help_is_shown_and_fails),
        cmocka_unit_test(help_is_the_same_however_it_is_asked_for),
        cmocka_unit_test(every_command_explains_itself),
        cmocka_unit_test(version_is_told_before_and_behind_the_command),
        cmocka_unit_test(global_options_stand_before_or_behind_the_command),
        cmocka_unit_test(mistakes_of_the_configuration_are_told_in_both_forms),
        cmocka_unit_test(the_manual_has_every_command_option_and_exit_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
