#include <stdio.h>

#include "cli/command.h"
#include "core/jsonw.h"
#include "daemon/janitor.h"

struct report {
    bool dry_run;
    struct jsonw *json; /* NULL: text */
};

static void
on_pruned(const struct pruned *pruned, void *arg)
{
    struct report *report = arg;
    const char *result = pruned->held_by[0] ? "held" : report->dry_run ? "would drop" : "dropped";

    if (report->json) {
        jsonw_object(report->json, NULL);
        jsonw_str(report->json, "table", pruned->table);
        jsonw_str(report->json, "partition", pruned->partition);
        jsonw_str(report->json, "result", result);
        jsonw_str(report->json, "held_by", pruned->held_by[0] ? pruned->held_by : NULL);
        jsonw_end(report->json);
    } else if (pruned->held_by[0]) {
        printf("%s: kept, %s\n", pruned->partition, pruned->held_by);
    } else {
        printf("%s: %s\n", pruned->partition, result);
    }
}

int
cmd_prune(const struct command_env *env, int argc, char **argv)
{
    const char *databases[256];
    struct strbuf out = {0};
    struct jsonw json = {.out = &out};
    struct report report = {.dry_run = command_option("dry-run") != NULL,
                            .json = env->json ? &json : NULL};
    struct config *config;
    struct error err;
    bool ok = true;

    (void) argc;
    (void) argv;
    if (!cli_config(env, &config, &err))
        return cli_fail(env, &err);
    jsonw_array(&json, NULL);
    size_t count = janitor_databases(config, databases, PR_LENGTH(databases));
    for (size_t i = 0; ok && i < count; i++)
        ok = janitor_prune(config, databases[i], report.dry_run, on_pruned, &report, &err);
    jsonw_end(&json);
    if (ok && env->json)
        puts(strbuf_str(&out));
    strbuf_release(&out);
    config_free(config);
    return ok ? EXIT_OK : cli_fail(env, &err);
}
