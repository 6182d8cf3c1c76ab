/*
 * command.h — one subcommand of the program, and what every command is given.
 *
 * Threads: commands run on the main thread.
 */
#ifndef PR_COMMAND_H
#define PR_COMMAND_H

#include <stdbool.h>

#include "config/config.h"
#include "core/error.h"

struct command_env {
    const char *config_path; /* --config, else $POSTRIDER_CONFIG, else "postrider.yaml" */
    bool json;               /* --json */
};

/* An option of one command, for its help and its parser. */
struct command_option {
    const char *name;  /* "dry-run" */
    const char *value; /* "N": takes one; NULL: a switch */
    const char *help;
};

enum { COMMAND_OPTIONS = 12 };

struct command {
    const char *name;    /* "status" or, in a group, "dlq list" */
    const char *args;    /* what follows the options in the usage line: "ID" */
    const char *summary; /* one line, for the list of commands */
    const char *help;    /* more, for its own --help and the manual */
    struct command_option options[COMMAND_OPTIONS]; /* a NULL name ends them */

    /* argv holds what is left after the options; returns the exit code. */
    int (*run)(const struct command_env *env, int argc, char **argv);
};

/* In the order in which --help shows them; a NULL name ends the list (commands.c). */
extern const struct command commands[];

/* The value of an option of the running command; NULL if not given ("" for a switch). */
const char *command_option(const char *name);

/* Whether it was given something that is not only blanks. */
bool cli_option_given(const char *name);

/* All values of an option that may be repeated; NULL ends. */
const char *const *command_option_all(const char *name);

/* Finds the command and runs it; the whole program but for its main(). */
int cli_main(int argc, char **argv);

/*
 * Says the error on stderr and returns its exit code.  With --json it is one object:
 *     {"error", "hint", "code", "exit"}, if there are some "sqlstate", "mistakes": [line, …]
 */
int cli_fail(const struct command_env *env, const struct error *err);

/* A wrong command line: says so and returns EXIT_USAGE. */
int cli_usage(const char *fmt, ...) PR_PRINTF(1, 2);

/* Reads the configuration.  Its mistakes are on stderr then, or wait for cli_fail() (--json). */
bool cli_config(const struct command_env *env, struct config **ret, struct error *err) PR_MUSTCHECK;

/* Prints text for a person: control characters become '?'. */
void cli_print_safe(const char *text);

int cmd_config_check(const struct command_env *env, int argc, char **argv);
int cmd_config_show(const struct command_env *env, int argc, char **argv);
int cmd_config_sample(const struct command_env *env, int argc, char **argv);
int cmd_consumer_list(const struct command_env *env, int argc, char **argv);
int cmd_consumer_rewind(const struct command_env *env, int argc, char **argv);
int cmd_dev(const struct command_env *env, int argc, char **argv);
int cmd_dlq_discard(const struct command_env *env, int argc, char **argv);
int cmd_dlq_list(const struct command_env *env, int argc, char **argv);
int cmd_dlq_replay(const struct command_env *env, int argc, char **argv);
int cmd_dlq_show(const struct command_env *env, int argc, char **argv);
int cmd_doctor(const struct command_env *env, int argc, char **argv);
int cmd_emit(const struct command_env *env, int argc, char **argv);
int cmd_gaps_close(const struct command_env *env, int argc, char **argv);
int cmd_gaps_list(const struct command_env *env, int argc, char **argv);
int cmd_init(const struct command_env *env, int argc, char **argv);
int cmd_lanes(const struct command_env *env, int argc, char **argv);
int cmd_prune(const struct command_env *env, int argc, char **argv);
int cmd_reconcile(const struct command_env *env, int argc, char **argv);
int cmd_relay_drop(const struct command_env *env, int argc, char **argv);
int cmd_relay_list(const struct command_env *env, int argc, char **argv);
int cmd_run(const struct command_env *env, int argc, char **argv);
int cmd_status(const struct command_env *env, int argc, char **argv);
int cmd_tail(const struct command_env *env, int argc, char **argv);

#endif
