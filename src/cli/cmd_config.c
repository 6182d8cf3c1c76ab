#include <stdio.h>

#include "cli/command.h"
#include "config/options.h"

int
cmd_config_check(const struct command_env *env, int argc, char **argv)
{
    struct config *config;
    struct error err;

    (void) argc;
    (void) argv;
    if (!cli_config(env, &config, &err))
        return cli_fail(env, &err);
    if (env->json)
        printf("{\"ok\":true,\"outboxes\":%zu,\"destinations\":%zu,\"relays\":%zu,\"consumers\":%"
               "zu}\n",
               config->outbox_count, config->destination_count, config->relay_count,
               config->consumer_count);
    else
        printf("%s is good: %zu outboxes, %zu destinations, %zu relays, %zu consumers\n",
               config->path, config->outbox_count, config->destination_count, config->relay_count,
               config->consumer_count);
    config_free(config);
    return EXIT_OK;
}

int
cmd_config_show(const struct command_env *env, int argc, char **argv)
{
    struct config *config;
    struct error err;

    (void) argc;
    (void) argv;
    if (!cli_config(env, &config, &err))
        return cli_fail(env, &err);
    options_write_config(config, stdout);
    config_free(config);
    return EXIT_OK;
}

int
cmd_config_sample(const struct command_env *env, int argc, char **argv)
{
    (void) env;
    (void) argc;
    (void) argv;
    options_write_sample(stdout);
    return EXIT_OK;
}

int
cmd_config_manual(const struct command_env *env, int argc, char **argv)
{
    (void) env;
    (void) argc;
    (void) argv;
    options_write_manual(stdout);
    return EXIT_OK;
}
