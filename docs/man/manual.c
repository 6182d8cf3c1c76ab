/*
 * Writes the source of a manual page: `manual postrider.yaml.5`, or `manual postrider.1`
 * with the page on standard input whose @…@ lines are to be filled in.
 */
#include <stdio.h>
#include <string.h>

#include "cli/help.h"
#include "config/options.h"

int
main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "postrider.yaml.5") == 0) {
        options_write_manual(stdout);
    } else if (argc == 2 && strcmp(argv[1], "postrider.1") == 0) {
        help_write_manual(stdin, stdout);
    } else {
        fputs("usage: manual postrider.1 < PAGE | manual postrider.yaml.5\n", stderr);
        return EXIT_USAGE;
    }
    return fflush(stdout) == 0 && !ferror(stdout) ? EXIT_OK : EXIT_FULL;
}
