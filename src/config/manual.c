#include <string.h>

#include "config/options.h"
#include "config/values.h"
#include "core/strbuf.h"

/* ------------------------------------------------------------------ config sample */

enum { SAMPLE_WIDTH = 90 };

/* A comment in lines of bounded width. */
static void
comment(FILE *out, const char *indent, const char *text)
{
    size_t room = SAMPLE_WIDTH - strlen(indent) - 2;

    while (*text) {
        size_t len = strlen(text);
        if (len > room) {
            len = room;
            while (len > 0 && text[len] != ' ')
                len--;
            if (len == 0)
                len = strcspn(text, " "); /* one word, longer than a line */
        }
        fprintf(out, "%s# %.*s\n", indent, (int) len, text);
        text += len;
        text += *text == ' ';
    }
}

static void
sample_comment(FILE *out, const char *indent, const struct option *o)
{
    struct strbuf text = {0};
    char words[128];

    strbuf_adds(&text, o->help);
    if (o->words && o->type != OPTION_NAME_OF)
        strbuf_addf(&text, " One of %s.", value_words_text(o->words, words, sizeof(words)));
    if (!o->required && o->example && o->fallback)
        strbuf_addf(&text, " Default: %s.", o->fallback);
    comment(out, indent, strbuf_str(&text));
    strbuf_release(&text);
}

/* What has neither a value in the sample nor belongs to its transport is commented out. */
static void
sample_option(FILE *out, const char *indent, const struct option *o, const char *transport)
{
    bool foreign = o->only && value_word_index(o->only, transport) < 0;
    char only[64];
    const char *value = o->example ? o->example : o->fallback ? o->fallback : "\"…\"";

    if (foreign)
        fprintf(out, "%s# Transport %s only:\n", indent,
                value_words_text(o->only, only, sizeof(only)));
    sample_comment(out, indent, o);
    fprintf(out, "%s%s%s:%s%s\n", indent, o->example && !foreign ? "" : "# ", option_last_key(o),
            *value == '\n' ? "" : " ", value);
}

/* A map of which no option has a value in the sample is commented out as a whole. */
static bool
map_is_shown(const struct section *section, const char *map)
{
    size_t len = strlen(map);

    for (size_t i = 0; i < option_count; i++)
        if (strcmp(options[i].section, section->name) == 0 && options[i].example &&
            strncmp(options[i].key, map, len) == 0 && options[i].key[len] == '.')
            return true;
    return false;
}

static void
sample_section(FILE *out, const struct section *section)
{
    const struct option *transport = option_find("destinations", "transport");
    const char *indent = section->named ? "    " : "  ";
    char map[32] = "";

    fprintf(out, "\n# %s\n%s:\n", section->help, section->name);
    if (section->named)
        fprintf(out, "  %s:\n", section->sample);
    for (size_t i = 0; i < option_count; i++) {
        const struct option *o = &options[i];
        size_t prefix = (size_t) (option_last_key(o) - o->key);
        if (strcmp(o->section, section->name) != 0)
            continue;
        char in[32];
        snprintf(in, sizeof(in), "%.*s", prefix ? (int) prefix - 1 : 0, o->key);
        if (prefix > 0 && strcmp(in, map) != 0)
            fprintf(out, "%s%s%s:\n", indent, map_is_shown(section, in) ? "" : "# ", in);
        snprintf(map, sizeof(map), "%s", in);
        sample_option(out, prefix > 0 ? "      " : indent, o, transport->example);
    }
}

void
options_write_sample(FILE *out)
{
    fputs("# postrider.yaml: made by `postrider config sample`; `postrider config check` reads "
          "it.\n"
          "# ${NAME} is replaced by that environment variable; keep passwords there.\n"
          "# What is commented out shows its default.\n",
          out);
    for (size_t s = 0; s < section_count; s++)
        sample_section(out, &sections[s]);
}

/* ------------------------------------------------------------------ the manual page */

void
scdoc_text(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (strchr("_*`<>[]\\#~|", *text))
            fputc('\\', out);
        fputc(*text, out);
    }
}

static void
manual_option(FILE *out, const struct option *o)
{
    char what[256];

    fputs("*", out);
    scdoc_text(out, o->key);
    fputs("*: ", out);
    scdoc_text(out, option_expected(o, what, sizeof(what)));
    fputs("\n\t", out);
    scdoc_text(out, o->help);
    if (o->more) {
        fputc(' ', out);
        scdoc_text(out, o->more);
    }
    if (o->only)
        fprintf(out, " With transport %s only.", value_words_text(o->only, what, sizeof(what)));
    if (o->required) {
        fputs(" Required.", out);
    } else if (o->fallback) {
        fputs(" Default: ", out);
        scdoc_text(out, o->fallback);
        fputs(".", out);
    }
    fputs("\n\n", out);
}

void
options_write_manual(FILE *out)
{
    fputs("postrider.yaml(5)\n\n# NAME\n\npostrider.yaml - configuration of postrider(1)\n\n"
          "# DESCRIPTION\n\nOne YAML file says everything. It is checked as a whole before "
          "anything starts: *postrider config check* names every mistake with its line, "
          "*postrider config show* prints what is in force, without passwords, and *postrider "
          "config sample* writes a file to begin with.\n\n"
          "${NAME} is replaced by the environment variable NAME, which must be set; $${ stands "
          "for a plain ${. Such a value needs double quotes. Names of outboxes, destinations, "
          "relays and consumers are made of a-z, 0-9, - and \\_, at most 63, the first a letter "
          "or digit. A duration has one unit: 50ms, 10s, 5m, 12h, 7d. Anchors and aliases of "
          "YAML work, merge keys do not.\n\n",
          out);
    for (size_t s = 0; s < section_count; s++) {
        fprintf(out, "# %s\n\n", sections[s].name);
        scdoc_text(out, sections[s].help);
        fputs(sections[s].named ? " A map from names to the options below.\n\n" : "\n\n", out);
        for (size_t i = 0; i < option_count; i++)
            if (strcmp(options[i].section, sections[s].name) == 0)
                manual_option(out, &options[i]);
    }
    fputs("# EXAMPLE\n\n```\n", out);
    options_write_sample(out);
    fputs("```\n\n# SEE ALSO\n\n*postrider*(1)\n", out);
}
