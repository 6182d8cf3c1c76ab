#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"
#include "cli/help.h"
#include "config/values.h"
#include "core/alloc.h"
#include "core/jsonw.h"

enum {
    MOST_VALUES = 64,
    MOST_GLOBAL = 8,
    GLOBAL_BASE = 1000, /* what getopt returns: base and index of the option */
    COMMAND_BASE = 2000,
};

/* What the command line says; one command per process. */
static struct {
    struct command_env env;
    const struct command *command;
    const char *values[COMMAND_OPTIONS][MOST_VALUES + 1];
    int counts[COMMAND_OPTIONS];
    char *mistakes; /* of the configuration, held back for --json */
} given;

/* ------------------------------------------------------------------ messages */

static void
add_mistakes(struct jsonw *w)
{
    char *rest = NULL;

    if (!given.mistakes)
        return;
    jsonw_array(w, "mistakes");
    for (char *line = strtok_r(given.mistakes, "\n", &rest); line;
         line = strtok_r(NULL, "\n", &rest))
        jsonw_str(w, NULL, line);
    jsonw_end(w);
    free(given.mistakes);
    given.mistakes = NULL;
}

int
cli_fail(const struct command_env *env, const struct error *err)
{
    struct strbuf out = {0};
    struct jsonw w = {.out = &out};

    fflush(stdout); /* what was done before comes first where both go to one place */
    if (!env->json) {
        fprintf(stderr, "postrider: %s\n", err->text);
        if (err->hint[0])
            fprintf(stderr, "  hint: %s\n", err->hint);
        return (int) err->exit;
    }
    jsonw_object(&w, NULL);
    jsonw_str(&w, "error", err->text);
    jsonw_str(&w, "hint", err->hint);
    jsonw_str(&w, "code", err->code);
    if (err->sqlstate[0])
        jsonw_str(&w, "sqlstate", err->sqlstate);
    jsonw_i64(&w, "exit", (int64_t) err->exit);
    add_mistakes(&w);
    jsonw_end(&w);
    fprintf(stderr, "%s\n", strbuf_str(&out));
    strbuf_release(&out);
    return (int) err->exit;
}

int
cli_usage(const char *fmt, ...)
{
    struct error err;
    char text[sizeof(err.text)];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    error_set_exit(&err, ERR_STOP, EXIT_USAGE, "cli.usage", "%s", text);
    error_hint(&err, "postrider %s%s--help", given.command ? given.command->name : "",
               given.command ? " " : "");
    return cli_fail(&given.env, &err);
}

void
cli_print_safe(const char *text)
{
    for (; *text; text++)
        putchar((unsigned char) *text < 0x20 || *text == 0x7f ? '?' : *text);
}

bool
cli_config(const struct command_env *env, struct config **ret, struct error *err)
{
    size_t size;

    if (!env->json)
        return config_load(env->config_path, stderr, ret, err);
    FILE *report = open_memstream(&given.mistakes, &size);
    PR_CHECK(report);
    bool ok = config_load(env->config_path, report, ret, err);
    fclose(report);
    if (ok || !*given.mistakes) {
        free(given.mistakes);
        given.mistakes = NULL;
    }
    return ok;
}

/* ------------------------------------------------------------------ finding the command */

/* How many of the arguments are the words of this command, one or two; 0: it is another. */
static int
match(const struct command *c, int argc, char **argv)
{
    const char *space = strchr(c->name, ' ');
    size_t first = space ? (size_t) (space - c->name) : strlen(c->name);

    if (argc < 1 || strlen(argv[0]) != first || strncmp(argv[0], c->name, first) != 0)
        return 0;
    if (!space)
        return 1;
    return argc > 1 && strcmp(argv[1], space + 1) == 0 ? 2 : 0;
}

/* The command with the most words that stand at the front; *ret_words: how many. */
static const struct command *
find_command(int argc, char **argv, int *ret_words)
{
    const struct command *best = NULL;

    *ret_words = 0;
    for (const struct command *c = commands; c->name; c++) {
        int words = match(c, argc, argv);
        if (words > *ret_words) {
            best = c;
            *ret_words = words;
        }
    }
    return best;
}

static bool
is_group(const char *word)
{
    size_t len = strlen(word);

    for (const struct command *c = commands; c->name; c++)
        if (strncmp(c->name, word, len) == 0 && c->name[len] == ' ')
            return true;
    return false;
}

/* The names of the commands, or of a group's without its word; the caller frees the array. */
static const char **
command_names(const char *group, size_t *ret_count)
{
    size_t len = strlen(group), count = 0, cap = 0;
    const char **names = NULL;

    for (const struct command *c = commands; c->name; c++) {
        if (len > 0 && (strncmp(c->name, group, len) != 0 || c->name[len] != ' '))
            continue;
        GROW(names, count, cap);
        names[count++] = c->name + (len > 0 ? len + 1 : 0);
    }
    *ret_count = count;
    return names;
}

static int
unknown_command(int argc, char **argv)
{
    bool group = is_group(argv[0]), second = argc > 1 && argv[1][0] != '-';
    struct strbuf list = {0};
    size_t count;
    const char **names = command_names(group ? argv[0] : "", &count);
    const char *word = !group ? argv[0] : second ? argv[1] : "";
    const char *near = value_nearest(word, names, count);

    for (size_t i = 0; i < count && group; i++)
        strbuf_addf(&list, "%s%s", i == 0 ? "" : i + 1 < count ? ", " : " or ", names[i]);
    int code = group && !second ? cli_usage("%s is followed by %s", argv[0], strbuf_str(&list))
               : group && !near ? cli_usage("%s is followed by %s, not by \"%s\"", argv[0],
                                            strbuf_str(&list), word)
               : near ? cli_usage("there is no command \"%s%s%s\" (did you mean \"%s%s%s\"?)",
                                  group ? argv[0] : "", group ? " " : "", word,
                                  group ? argv[0] : "", group ? " " : "", near)
                      : cli_usage("there is no command \"%s\"", word);
    strbuf_release(&list);
    free(names);
    return code;
}

/* ------------------------------------------------------------------ options */

static int
option_index(const char *name)
{
    const struct command_option *list = given.command->options;
    int i = 0;

    while (i < COMMAND_OPTIONS && list[i].name && strcmp(list[i].name, name) != 0)
        i++;
    PR_CHECK(i < COMMAND_OPTIONS && list[i].name); /* commands.c names it */
    return i;
}

const char *const *
command_option_all(const char *name)
{
    return given.values[option_index(name)];
}

const char *
command_option(const char *name)
{
    int i = option_index(name);

    return given.counts[i] > 0 ? given.values[i][given.counts[i] - 1] : NULL;
}

bool
cli_option_given(const char *name)
{
    const char *value = command_option(name);

    return value && value[strspn(value, " \t")] != '\0';
}

static void
add_long_options(struct option *list, int *n, const struct command_option *options, int base)
{
    for (int i = 0; options && i < COMMAND_OPTIONS && options[i].name; i++)
        list[(*n)++] = (struct option){
            options[i].name, options[i].value ? required_argument : no_argument, NULL, base + i};
}

static int
wrong_option(const struct option *list, int n, const char *typed, bool lacks_value)
{
    const char *names[MOST_GLOBAL + COMMAND_OPTIONS], *near = NULL;
    size_t len = strcspn(typed, "=");
    char *name = xasprintf("%.*s", (int) len, typed);
    int code;

    for (int i = 0; i < n; i++)
        names[i] = list[i].name;
    if (strncmp(name, "--", 2) == 0)
        near = value_nearest(name + 2, names, (size_t) n);
    bool exists = near && strcmp(near, name + 2) == 0;
    if (lacks_value)
        code = cli_usage("%s needs a value", name);
    else if (exists)
        code = cli_usage("%s takes no value", name);
    else if (near)
        code = cli_usage("there is no option %s (did you mean --%s?)", name, near);
    else
        code = cli_usage("there is no option %s", name);
    free(name);
    return code;
}

enum { GO_ON = -1 };

static int
take_option(int c)
{
    if (c >= COMMAND_BASE && given.command) {
        int i = c - COMMAND_BASE;
        if (given.counts[i] == MOST_VALUES)
            return cli_usage("--%s is given too often", given.command->options[i].name);
        given.values[i][given.counts[i]++] = optarg ? optarg : "";
        return GO_ON;
    }
    const char *name = c == 'h'   ? "help"
                       : c == 'V' ? "version"
                                  : global_options[c - GLOBAL_BASE].name;
    if (strcmp(name, "config") == 0)
        given.env.config_path = optarg;
    if (strcmp(name, "help") == 0)
        return given.command ? help_command(given.command) : help_program();
    if (strcmp(name, "version") == 0) {
        puts("postrider " PR_VERSION);
        return EXIT_OK;
    }
    return GO_ON; /* --json has been seen before */
}

/* Takes all options, wherever they stand.  GO_ON, or the exit code to end with. */
static int
parse_options(int argc, char **argv)
{
    struct option list[MOST_GLOBAL + COMMAND_OPTIONS + 1] = {{0}};
    int n = 0, c, code = GO_ON;

    add_long_options(list, &n, global_options, GLOBAL_BASE);
    add_long_options(list, &n, given.command ? given.command->options : NULL, COMMAND_BASE);
    opterr = 0;
    optind = 0; /* begin anew, whatever was parsed before */
    while (code == GO_ON && (c = getopt_long(argc, argv, ":hV", list, NULL)) != -1) {
        if (c != '?' && c != ':') {
            code = take_option(c);
        } else if (c == '?' && optopt > 0 && optopt < GLOBAL_BASE) {
            char typed[] = {'-', (char) optopt, '\0'};
            code = wrong_option(list, n, typed, false);
        } else {
            code = wrong_option(list, n, argv[optind - 1], c == ':');
        }
    }
    return code;
}

/* ------------------------------------------------------------------ the program */

static bool
has_word(int argc, char **argv, const char *word)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], word) == 0)
            return true;
    return false;
}

/* Where the command's words begin: behind the program's name and global options. */
static int
first_word(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--config") == 0)
            i++;
        else if (argv[i][0] != '-')
            return i;
    }
    return argc;
}

static int
help_on(int argc, char **argv)
{
    int words;
    const struct command *command = find_command(argc, argv, &words);

    if (command)
        return help_command(command);
    if (argc > 0 && is_group(argv[0]))
        return help_group(argv[0]);
    return argc > 0 && argv[0][0] != '-' ? unknown_command(argc, argv) : help_program();
}

static int
run_command(int argc, char **argv)
{
    int code = parse_options(argc, argv);

    if (code != GO_ON)
        return code;
    if (!given.command) {
        help_program();
        return EXIT_USAGE;
    }
    if (!*given.command->args && optind < argc)
        return cli_usage("\"%s\" is too much here", argv[optind]);
    return given.command->run(&given.env, argc - optind, argv + optind);
}

static int
dispatch(int argc, char **argv)
{
    int first = first_word(argc, argv), words;

    if (first == argc)
        return run_command(argc, argv);
    if (strcmp(argv[first], "help") == 0)
        return help_on(argc - first - 1, argv + first + 1);
    given.command = find_command(argc - first, argv + first, &words);
    if (!given.command && (has_word(argc, argv, "--help") || has_word(argc, argv, "-h")))
        return help_on(argc - first, argv + first);
    if (!given.command)
        return unknown_command(argc - first, argv + first);
    memmove(argv + first, argv + first + words,
            sizeof(*argv) * (size_t) (argc - first - words + 1));
    return run_command(argc - words, argv);
}

int
cli_main(int argc, char **argv)
{
    const char *from_env = getenv("POSTRIDER_CONFIG");

    memset(&given, 0, sizeof(given));
    given.env.config_path = from_env && *from_env ? from_env : "postrider.yaml";
    given.env.json = has_word(argc, argv, "--json");
    int code = dispatch(argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fputs("postrider: cannot write to standard output\n", stderr);
        return code == EXIT_OK || code == EXIT_DIFFERS ? EXIT_FULL : code; /* nobody saw it */
    }
    return code;
}
