#include <string.h>

#include "cli/command.h"
#include "daemon/daemon.h"

int
cmd_run(const struct command_env *env, int argc, char **argv)
{
    const char *only = command_option("only");
    struct daemon_choice choice = {.relays = true, .consumers = true};
    struct config *config;
    struct error err;

    (void) argc;
    (void) argv;
    if (only && strcmp(only, "relays") != 0 && strcmp(only, "consumers") != 0)
        return cli_usage("--only takes relays or consumers, not \"%s\"", only);
    if (only) {
        choice.relays = strcmp(only, "relays") == 0;
        choice.consumers = !choice.relays;
    }
    if (!cli_config(env, &config, &err))
        return cli_fail(env, &err);
    bool ok = daemon_run(config, &choice, &err);
    config_free(config);
    return ok ? EXIT_OK : cli_fail(env, &err);
}
