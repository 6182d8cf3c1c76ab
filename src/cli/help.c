#include "cli/help.h"

#include <stdlib.h>
#include <string.h>

#include "config/options.h"

const struct command_option global_options[] = {
    {"config", "FILE", "configuration (default: $POSTRIDER_CONFIG, else postrider.yaml)"},
    {"json", NULL, "answers and errors as JSON"},
    {"help", NULL, "this text"},
    {"version", NULL, "version of the program"},
    {NULL, NULL, NULL},
};

static const struct {
    enum exit_code code;
    const char *meaning;
} exit_codes[] = {
    {EXIT_OK, "Done, or all is right."},
    {EXIT_DIFFERS, "The answer is no, or things differ."},
    {EXIT_USAGE, "The command line is wrong."},
    {EXIT_REFUSED, "The input was refused: an event over the limits, a statement that fails."},
    {EXIT_AWAY, "A server is away or cannot be reached, or an address is taken."},
    {EXIT_FAULT, "A fault of the program's own: please report it."},
    {EXIT_FULL, "A disk is full, or a file cannot be made or written."},
    {EXIT_NEWER, "The schema in a database is newer than this program: upgrade it."},
    {EXIT_RIGHTS, "A password is wrong or a right is missing."},
    {EXIT_CONFIG, "The configuration has mistakes or cannot be read."},
};

/* ------------------------------------------------------------------ --help */

static void
print_options(const struct command_option *list)
{
    char left[64];

    for (const struct command_option *o = list; o->name; o++) {
        snprintf(left, sizeof(left), "--%s%s%s", o->name, o->value ? " " : "",
                 o->value ? o->value : "");
        printf("  %-28s %s\n", left, o->help);
    }
}

int
help_program(void)
{
    puts("postrider: carries facts out of a PostgreSQL transaction and applies them once\n\n"
         "usage: postrider COMMAND [OPTIONS]\n");
    for (const struct command *c = commands; c->name; c++)
        printf("  %-16s %s\n", c->name, c->summary);
    puts("");
    print_options(global_options);
    puts("\n`postrider COMMAND --help` says more; so do postrider(1) and postrider.yaml(5).");
    return EXIT_OK;
}

int
help_command(const struct command *c)
{
    printf("usage: postrider %s%s%s%s\n\n%s.\n", c->name, c->options[0].name ? " [OPTIONS]" : "",
           *c->args ? " " : "", c->args, c->summary);
    if (*c->help)
        printf("%s\n", c->help);
    puts("");
    print_options(c->options);
    print_options(global_options);
    return EXIT_OK;
}

int
help_group(const char *group)
{
    size_t len = strlen(group);

    printf("usage: postrider %s COMMAND [OPTIONS]\n\n", group);
    for (const struct command *c = commands; c->name; c++)
        if (strncmp(c->name, group, len) == 0 && c->name[len] == ' ')
            printf("  %-16s %s\n", c->name, c->summary);
    return EXIT_OK;
}

/* ------------------------------------------------------------------ postrider(1) */

static void
manual_options(FILE *out, const struct command_option *list, const char *indent)
{
    for (const struct command_option *o = list; o->name; o++) {
        fprintf(out, "%s*--%s*", indent, o->name);
        if (o->value) {
            fputc(' ', out);
            scdoc_text(out, o->value);
        }
        fprintf(out, "\n%s\t", indent);
        scdoc_text(out, o->help);
        fputs("\n\n", out);
    }
}

static void
manual_commands(FILE *out)
{
    for (const struct command *c = commands; c->name; c++) {
        fprintf(out, "*%s*", c->name);
        if (*c->args) {
            fputc(' ', out);
            scdoc_text(out, c->args);
        }
        fputs("\n\t", out);
        scdoc_text(out, c->summary);
        fputs(". ", out);
        scdoc_text(out, c->help);
        fputs("\n\n", out);
        manual_options(out, c->options, "\t");
    }
}

static void
manual_exit_status(FILE *out)
{
    for (size_t i = 0; i < PR_LENGTH(exit_codes); i++)
        fprintf(out, "*%d*\n\t%s\n\n", (int) exit_codes[i].code, exit_codes[i].meaning);
}

void
help_write_manual(FILE *page, FILE *out)
{
    char *line = NULL;
    size_t size = 0;

    while (getline(&line, &size, page) > 0) {
        if (strcmp(line, "@OPTIONS@\n") == 0)
            manual_options(out, global_options, "");
        else if (strcmp(line, "@COMMANDS@\n") == 0)
            manual_commands(out);
        else if (strcmp(line, "@EXIT-STATUS@\n") == 0)
            manual_exit_status(out);
        else
            fputs(line, out);
    }
    free(line);
}
