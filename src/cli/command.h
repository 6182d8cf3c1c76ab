/*
 * command.h — one subcommand of the program, and what every command is given.
 *
 * Threads: commands run on the main thread.
 */
#ifndef PR_COMMAND_H
#define PR_COMMAND_H

#include <stdbool.h>

struct command_env {
    const char *config_path; /* --config, else $POSTRIDER_CONFIG, else "postrider.yaml" */
    bool json;               /* --json */
};

struct command {
    const char *name;    /* "status" or, for a group, "dlq list" */
    const char *args;    /* shown in the usage line: "[--dry-run]" */
    const char *summary; /* one line, for the list of commands */
    const char *help;    /* the text behind the usage line of --help */

    /* argv[0] is the last word of the name; returns the exit code. */
    int (*run)(const struct command_env *env, int argc, char **argv);
};

/* In the order in which --help shows them; a NULL name ends the list (commands.c). */
extern const struct command commands[];

/* Finds the command and runs it; the whole program but for its main(). */
int cli_main(int argc, char **argv);

#endif
