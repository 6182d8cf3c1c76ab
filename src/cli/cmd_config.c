#include <stdio.h>

#include "cli/command.h"
#include "config/options.h"
#include "core/jsonw.h"

static size_t
length_of(const struct config *config, size_t s)
{
    return sections[s].named ? section_length(&sections[s], config) : 0;
}

static void
print_good(const struct config *config)
{
    const char *between = "ok: ";

    for (size_t s = 0; s < section_count; s++) {
        if (!sections[s].named)
            continue;
        printf("%s%zu %s", between, length_of(config, s), sections[s].name);
        between = ", ";
    }
    putchar('\n');
}

static void
print_good_json(const struct config *config)
{
    struct strbuf out = {0};
    struct jsonw w = {.out = &out};

    jsonw_object(&w, NULL);
    jsonw_bool(&w, "ok", true);
    for (size_t s = 0; s < section_count; s++)
        if (sections[s].named)
            jsonw_i64(&w, sections[s].name, (int64_t) length_of(config, s));
    jsonw_end(&w);
    puts(strbuf_str(&out));
    strbuf_release(&out);
}

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
        print_good_json(config);
    else
        print_good(config);
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
    if (env->json)
        options_write_json(config, stdout);
    else
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
