#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"
#include "config/values.h"
#include "core/alloc.h"
#include "core/jsonw.h"

enum { MOST_VALUES = 64, OPTION_BASE = 1000 };

static struct {
    const struct command *command;
    const char *values[COMMAND_OPTIONS][MOST_VALUES + 1];
    int counts[COMMAND_OPTIONS];
} given;

/* ------------------------------------------------------------------ messages */

int
cli_fail(const struct command_env *env, const struct error *err)
{
    struct strbuf out = {0};
    struct jsonw w = {.out = &out};

    if (!env->json) {
        fprintf(stderr, "postrider: %s\n", err->text);
        if (err->hint[0])
            fprintf(stderr, "  hint: %s\n", err->hint);
        return (int) err->exit;
    }
    jsonw_object(&w, NULL);
    jsonw_str(&w, "error", err->text);
    jsonw_str(&w, "code", err->code);
    jsonw_str(&w, "hint", err->hint);
    if (err->sqlstate[0])
        jsonw_str(&w, "sqlstate", err->sqlstate);
    jsonw_i64(&w, "exit", (int64_t) err->exit);
    jsonw_end(&w);
    fprintf(stderr, "%s\n", strbuf_str(&out));
    strbuf_release(&out);
    return (int) err->exit;
}

int
cli_usage(const char *fmt, ...)
{
    va_list ap;

    fputs("postrider: ", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputs("\n", stderr);
    if (given.command)
        fprintf(stderr, "  hint: postrider %s --help\n", given.command->name);
    return EXIT_USAGE;
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
    return config_load(env->config_path, stderr, ret, err);
}

/* ------------------------------------------------------------------ help */

static void
print_option(const struct command_option *o)
{
    char left[64];

    snprintf(left, sizeof(left), "--%s%s%s", o->name, o->value ? " " : "",
             o->value ? o->value : "");
    printf("  %-28s %s\n", left, o->help);
}

static void
print_global_options(void)
{
    static const struct command_option global[] = {
        {"config", "FILE", "configuration (default: $POSTRIDER_CONFIG, else postrider.yaml)"},
        {"json", NULL, "answers and errors as JSON"},
        {"help", NULL, "this text"},
        {"version", NULL, "version of the program"},
    };
    for (size_t i = 0; i < PR_LENGTH(global); i++)
        print_option(&global[i]);
}

static int
print_help(void)
{
    puts("postrider: carries facts out of a PostgreSQL transaction and applies them once\n\n"
         "usage: postrider COMMAND [OPTIONS]\n");
    for (const struct command *c = commands; c->name; c++)
        printf("  %-16s %s\n", c->name, c->summary);
    puts("");
    print_global_options();
    puts("\n`postrider COMMAND --help` says more; so do postrider(1) and postrider.yaml(5).");
    return EXIT_OK;
}

static int
print_command_help(const struct command *c)
{
    printf("usage: postrider %s%s%s%s\n\n%s.\n", c->name, c->options[0].name ? " [OPTIONS]" : "",
           *c->args ? " " : "", c->args, c->summary);
    if (*c->help)
        printf("%s\n", c->help);
    puts("");
    for (const struct command_option *o = c->options; o->name; o++)
        print_option(o);
    print_global_options();
    return EXIT_OK;
}

/* ------------------------------------------------------------------ finding the command */

/* The command whose words stand at the front of the arguments; *ret_words: how many. */
static const struct command *
find_command(int argc, char **argv, int *ret_words)
{
    const struct command *best = NULL;

    *ret_words = 0;
    for (const struct command *c = commands; c->name; c++) {
        const char *space = strchr(c->name, ' ');
        size_t first = space ? (size_t) (space - c->name) : strlen(c->name);
        if (argc < 1 || strlen(argv[0]) != first || strncmp(argv[0], c->name, first) != 0)
            continue;
        if (space && (argc < 2 || strcmp(argv[1], space + 1) != 0))
            continue;
        best = c;
        *ret_words = space ? 2 : 1;
    }
    return best;
}

static int
unknown_command(int argc, char **argv)
{
    const char *names[32];
    size_t count = 0;
    char *typed = xasprintf("%s%s%s", argv[0], argc > 1 ? " " : "", argc > 1 ? argv[1] : "");

    for (const struct command *c = commands; c->name && count < PR_LENGTH(names); c++)
        names[count++] = c->name;
    const char *near = value_nearest(typed, names, count);
    if (!near)
        near = value_nearest(argv[0], names, count);
    fprintf(stderr, "postrider: there is no command \"%s\"%s%s%s\n  hint: postrider --help\n",
            typed, near ? " (did you mean \"" : "", near ? near : "", near ? "\"?)" : "");
    free(typed);
    return EXIT_USAGE;
}

/* ------------------------------------------------------------------ options */

static int
option_index(const char *name)
{
    for (int i = 0; given.command && i < COMMAND_OPTIONS && given.command->options[i].name; i++)
        if (strcmp(given.command->options[i].name, name) == 0)
            return i;
    return -1;
}

const char *const *
command_option_all(const char *name)
{
    int i = option_index(name);

    PR_CHECK(i >= 0); /* the command's own table names it */
    return given.values[i];
}

const char *
command_option(const char *name)
{
    int i = option_index(name);

    PR_CHECK(i >= 0);
    return given.counts[i] > 0 ? given.values[i][given.counts[i] - 1] : NULL;
}

enum { GOON = -1 };

/* Takes all options, wherever they stand.  GOON, or the exit code to end with. */
static int
parse_options(int argc, char **argv, struct command_env *env)
{
    struct option list[COMMAND_OPTIONS + 5] = {
        {"config", required_argument, NULL, 'c'},
        {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'V'},
    };
    int n = 4, c;

    for (int i = 0; given.command && i < COMMAND_OPTIONS && given.command->options[i].name; i++) {
        const struct command_option *o = &given.command->options[i];
        list[n++] = (struct option){o->name, o->value ? required_argument : no_argument, NULL,
                                    OPTION_BASE + i};
    }
    optind = 1;
    while ((c = getopt_long(argc, argv, "hV", list, NULL)) != -1) {
        if (c == 'c') {
            env->config_path = optarg;
        } else if (c == 'j') {
            env->json = true;
        } else if (c == 'h') {
            return given.command ? print_command_help(given.command) : print_help();
        } else if (c == 'V') {
            puts("postrider " PR_VERSION);
            return EXIT_OK;
        } else if (c >= OPTION_BASE) {
            int i = c - OPTION_BASE;
            if (given.counts[i] == MOST_VALUES)
                return cli_usage("--%s is given too often", given.command->options[i].name);
            given.values[i][given.counts[i]++] = optarg ? optarg : "";
        } else {
            fprintf(stderr, "  hint: postrider %s --help\n",
                    given.command ? given.command->name : "");
            return EXIT_USAGE;
        }
    }
    return GOON;
}

/* Moves the command's words behind the program's name out of the way. */
static void
find_words(int argc, char **argv, int *ret_first)
{
    *ret_first = argc;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--config") == 0)
            i++;
        else if (argv[i][0] != '-') {
            *ret_first = i;
            return;
        }
    }
}

int
cli_main(int argc, char **argv)
{
    const char *from_env = getenv("POSTRIDER_CONFIG");
    struct command_env env = {.config_path = from_env && *from_env ? from_env : "postrider.yaml"};
    int first, words = 0, code;
    union {
        const char *in;
        char *out;
    } name = {"postrider"};

    argv[0] = name.out; /* getopt's own messages begin with it */
    find_words(argc, argv, &first);
    if (first < argc && strcmp(argv[first], "help") == 0)
        return print_help();
    if (first < argc) {
        given.command = find_command(argc - first, argv + first, &words);
        if (!given.command)
            return unknown_command(argc - first, argv + first);
        memmove(argv + first, argv + first + words,
                sizeof(*argv) * (size_t) (argc - first - words + 1));
        argc -= words;
    }
    code = parse_options(argc, argv, &env);
    if (code != GOON)
        return code;
    if (!given.command) {
        print_help();
        return EXIT_USAGE;
    }
    if (!*given.command->args && optind < argc)
        return cli_usage("\"%s\" is too much here", argv[optind]);
    code = given.command->run(&env, argc - optind, argv + optind);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fputs("postrider: cannot write to standard output\n", stderr);
        return code == EXIT_OK ? EXIT_FULL : code;
    }
    return code;
}
