#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "config/options.h"
#include "config/values.h"
#include "core/strbuf.h"

/* ------------------------------------------------------------------ config show */

static void
show_quoted(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', out);
        fputc(*text, out);
    }
    fputc('"', out);
}

static void
show_value(FILE *out, const struct option *o, const char *base)
{
    const void *at = base + o->offset;
    char text[64];

    switch (o->type) {
    case OPTION_WORD:
        fputs(value_word(o->words, *(const int *) at, text, sizeof(text)), out);
        break;
    case OPTION_INTEGER:
        fprintf(out, "%d", *(const int *) at);
        break;
    case OPTION_DURATION:
        fputs(value_duration_text(*(const int64_t *) at, text, sizeof(text)), out);
        break;
    case OPTION_NAME_OF: /* every named element begins with its name */
        fputs(**(char *const *const *) at, out);
        break;
    case OPTION_DSN: {
        char *shown = value_redact(*(char *const *) at);
        show_quoted(out, shown);
        free(shown);
        break;
    }
    default:
        show_quoted(out, *(char *const *) at);
    }
}

static bool
is_set(const struct option *o, const char *base)
{
    if (o->type == OPTION_WORD || o->type == OPTION_INTEGER || o->type == OPTION_DURATION)
        return true;
    return *(void *const *) (base + o->offset) != NULL;
}

static void
show_handlers(FILE *out, const struct consumer_config *c)
{
    fputs("    handlers:\n", out);
    for (size_t i = 0; i < c->handler_count; i++) {
        fprintf(out, "      %s: {sql: ", c->handlers[i].event_type);
        show_quoted(out, c->handlers[i].sql);
        fputs("}\n", out);
    }
    if (c->ignore_count == 0)
        return;
    fputs("    ignore: [", out);
    for (size_t i = 0; i < c->ignore_count; i++)
        fprintf(out, "%s%s", i ? ", " : "", c->ignore[i]);
    fputs("]\n", out);
}

static bool
applies(const struct option *o, const char *section, const char *base)
{
    if (strcmp(o->section, section) != 0 || !is_set(o, base))
        return false;
    return !o->only || strcmp(((const struct destination_config *) (const void *) base)->transport,
                              o->only) == 0;
}

static void
show_element(FILE *out, const struct section *section, const char *base)
{
    const char *indent = section->named ? "    " : "  ";
    bool in_from = false;

    for (size_t i = 0; i < option_count; i++) {
        const struct option *o = &options[i];
        bool nested = strncmp(o->key, "from.", 5) == 0;
        if (!applies(o, section->name, base) || o->type == OPTION_LIST)
            continue;
        if (o->type == OPTION_HANDLERS) {
            show_handlers(out, (const struct consumer_config *) (const void *) base);
            continue;
        }
        if (nested && !in_from)
            fprintf(out, "%sfrom:\n", indent);
        in_from = nested;
        fprintf(out, "%s%s%s: ", indent, nested ? "  " : "", nested ? o->key + 5 : o->key);
        show_value(out, o, base);
        fputc('\n', out);
    }
}

void
options_write_config(const struct config *config, FILE *out)
{
    const char *top = (const char *) config;

    for (size_t s = 0; s < section_count; s++) {
        const struct section *section = &sections[s];
        if (!section->named) {
            fprintf(out, "%s:\n", section->name);
            show_element(out, section, top);
            continue;
        }
        const char *list = *(char *const *) (top + section->list_offset);
        size_t count = *(const size_t *) (top + section->list_offset + sizeof(void *));
        if (count > 0)
            fprintf(out, "%s:\n", section->name);
        for (size_t i = 0; i < count; i++) {
            const char *base = list + i * section->size;
            fprintf(out, "  %s:\n", *(char *const *) base);
            show_element(out, section, base);
        }
    }
}

/* ------------------------------------------------------------------ config sample */

/* What a sample cannot make up from the table: names and values that fit together. */
static const struct {
    const char *section, *name, *key, *value;
} sample_values[] = {
    {"outboxes", "registrations", "database", "\"${SHOP_DSN}\""},
    {"destinations", "events", "transport", "postgres"},
    {"destinations", "events", "database", "\"${BUS_DSN}\""},
    {"relays", "registrations-to-events", "outbox", "registrations"},
    {"relays", "registrations-to-events", "destination", "events"},
    {"consumers", "rewards", "database", "\"${REWARDS_DSN}\""},
    {"consumers", "rewards", "from.destination", "events"},
    {"consumers", "rewards", "from.topic", "registration"},
    {"consumers", "rewards", "handlers",
     "{RegistrationConfirmed: {sql: \"SELECT apply_reward_event(:consumer, :event_id, "
     ":payload.playerId, :payload.points)\"}}"},
    {"consumers", "rewards", "ignore", "[]"},
    {"http", "", "listen", "\"127.0.0.1:9187\""},
};

static const char *
sample_value(const char *section, const char *key)
{
    for (size_t i = 0; i < PR_LENGTH(sample_values); i++)
        if (strcmp(sample_values[i].section, section) == 0 &&
            strcmp(sample_values[i].key, key) == 0)
            return sample_values[i].value;
    return NULL;
}

static void
sample_option(FILE *out, const struct option *o, const char *indent)
{
    const char *value = sample_value(o->section, o->key);
    bool nested = strncmp(o->key, "from.", 5) == 0;

    fprintf(out, "%s%s# %s\n", indent, nested ? "  " : "", o->help);
    if (o->words && o->type != OPTION_NAME_OF)
        fprintf(out, "%s%s# one of: %s\n", indent, nested ? "  " : "", o->words);
    fprintf(out, "%s%s%s%s: ", indent, nested ? "  " : "", value || o->required ? "" : "# ",
            nested ? o->key + 5 : o->key);
    if (value)
        fprintf(out, "%s\n", value);
    else if (o->fallback)
        fprintf(out, o->type == OPTION_TOPIC ? "\"%s\"\n" : "%s\n", o->fallback);
    else
        fprintf(out, "…\n");
}

void
options_write_sample(FILE *out)
{
    fputs(
        "# postrider.yaml — made by `postrider config sample`; `postrider config check` reads it.\n"
        "# ${NAME} is replaced by that environment variable; keep passwords there.\n",
        out);
    for (size_t s = 0; s < section_count; s++) {
        const char *indent = sections[s].named ? "    " : "  ";
        bool in_from = false;
        fprintf(out, "\n# %s\n%s:\n", sections[s].help, sections[s].name);
        for (size_t i = 0; i < PR_LENGTH(sample_values); i++) {
            if (sections[s].named && strcmp(sample_values[i].section, sections[s].name) == 0) {
                fprintf(out, "  %s:\n", sample_values[i].name);
                break;
            }
        }
        for (size_t i = 0; i < option_count; i++) {
            if (strcmp(options[i].section, sections[s].name) != 0 ||
                (options[i].only && strcmp(options[i].only, "postgres") != 0))
                continue;
            if (strncmp(options[i].key, "from.", 5) == 0 && !in_from) {
                fprintf(out, "%sfrom:\n", indent);
                in_from = true;
            }
            sample_option(out, &options[i], indent);
        }
    }
}

/* ------------------------------------------------------------------ the manual page */

static const char *
type_text(const struct option *o)
{
    switch (o->type) {
    case OPTION_DSN:
        return "connection string";
    case OPTION_TOPIC:
        return "topic template";
    case OPTION_LISTEN:
        return "address:port";
    case OPTION_INTEGER:
        return "number";
    case OPTION_DURATION:
        return "duration";
    case OPTION_NAME_OF:
        return "name";
    case OPTION_LIST:
        return "list of names";
    case OPTION_HANDLERS:
        return "map";
    default:
        return o->words ? "word" : "text";
    }
}

/* scdoc takes underscores and asterisks for emphasis. */
static void
manual_text(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (strchr("_*`<>[]\\", *text))
            fputc('\\', out);
        fputc(*text, out);
    }
}

static void
manual_option(FILE *out, const struct option *o)
{
    char low[32], high[32];

    fputs("*", out);
    manual_text(out, o->key);
    fprintf(out, "* (%s%s)\n\t", type_text(o), o->required ? ", required" : "");
    manual_text(out, o->help);
    if (o->words && o->type != OPTION_NAME_OF) {
        fputs(" One of: ", out);
        manual_text(out, o->words);
        fputs(".", out);
    }
    if (o->type == OPTION_INTEGER)
        fprintf(out, " From %" PRId64 " to %" PRId64 ".", o->least, o->most);
    if (o->type == OPTION_DURATION)
        fprintf(out, " From %s to %s.", value_duration_text(o->least, low, sizeof(low)),
                value_duration_text(o->most, high, sizeof(high)));
    if (o->only)
        fprintf(out, " Transport %s only.", o->only);
    if (o->fallback) {
        fputs(" Default: ", out);
        manual_text(out, o->fallback);
        fputs(".", out);
    }
    fputs("\n\n", out);
}

void
options_write_manual(FILE *out)
{
    fputs("postrider.yaml(5)\n\n# NAME\n\npostrider.yaml - configuration of postrider(1)\n\n"
          "# DESCRIPTION\n\nOne YAML file says everything. It is checked as a whole before "
          "anything starts: _postrider config check_ names every mistake with its line. "
          "_postrider config sample_ writes a file to begin with.\n\n"
          "*${NAME}* is replaced by the environment variable NAME; *$${* stands for itself. "
          "Names are made of a-z, 0-9, - and \\_. Durations carry a unit: *50ms*, *10s*, "
          "*5m*, *12h*, *7d*.\n\n",
          out);
    for (size_t s = 0; s < section_count; s++) {
        fprintf(out, "# %s\n\n", sections[s].name);
        manual_text(out, sections[s].help);
        fputs(sections[s].named ? " A map from names to the options below.\n\n" : "\n\n", out);
        for (size_t i = 0; i < option_count; i++)
            if (strcmp(options[i].section, sections[s].name) == 0)
                manual_option(out, &options[i]);
    }
    fputs("# SEE ALSO\n\n*postrider*(1)\n", out);
}
