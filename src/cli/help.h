/*
 * help.h — what the program says about itself: --help and postrider(1), both from the
 * table of commands.
 *
 * Threads: the main thread.
 */
#ifndef PR_HELP_H
#define PR_HELP_H

#include <stdio.h>

#include "cli/command.h"

/* The options that every command takes; a NULL name ends them. */
extern const struct command_option global_options[];

/* Each prints on stdout and returns EXIT_OK. */
int help_program(void);
int help_command(const struct command *command);
int help_group(const char *group); /* commands whose first word it is */

/*
 * Copies a page in scdoc's language; a line @OPTIONS@, @COMMANDS@ or @EXIT-STATUS@ is
 * replaced by what the program knows.
 */
void help_write_manual(FILE *page, FILE *out);

#endif
