/*
 * doctor.c — how a finding is told, to people and as JSON.
 */
#include "cli/doctor.h"

#include <stdio.h>
#include <string.h>

static void
say(struct doctor *d, int number, const char *name, const char *result, const char *what,
    const char *why, const char *remedy)
{
    if (d->env->json) {
        jsonw_object(d->json, NULL);
        jsonw_i64(d->json, "number", number);
        jsonw_str(d->json, "check", name);
        jsonw_str(d->json, "database", d->target);
        jsonw_str(d->json, "result", result);
        jsonw_str(d->json, "what", what);
        jsonw_str(d->json, "why", why);
        jsonw_str(d->json, "remedy", remedy);
        jsonw_end(d->json);
        return;
    }
    printf("  %2d %-5s %s\n", number, result, name);
    if (what) {
        fputs("           ", stdout);
        cli_print_safe(what);
        putchar('\n');
    }
    if (why)
        printf("           why: %s\n", why);
    if (remedy && *remedy) {
        fputs("           → ", stdout);
        cli_print_safe(remedy);
        putchar('\n');
    }
}

void
doctor_ok(struct doctor *d, int number, const char *name)
{
    say(d, number, name, "ok", NULL, NULL, NULL);
}

void
doctor_skipped(struct doctor *d, int number, const char *name, const char *why)
{
    say(d, number, name, "-", why, NULL, NULL);
}

void
doctor_finding(struct doctor *d, int number, const char *name, bool must, const char *what,
               const char *why, const char *remedy)
{
    d->found += must;
    say(d, number, name, must ? "MEND" : "note", what, why, remedy);
}

void
doctor_error(struct doctor *d, int number, const char *name, const char *why,
             const struct error *err)
{
    d->away = d->away || err->exit == EXIT_AWAY;
    doctor_finding(d, number, name, true, err->text, why, err->hint);
}
