#include <stdlib.h>
#include <string.h>

#include "config/options.h"
#include "config/values.h"
#include "core/attr.h"
#include "core/jsonw.h"

/* The value as text, which the caller frees; NULL if there is none. */
static char *
text_of(const struct option *o, const void *field)
{
    struct strbuf text = {0};
    char word[64];

    switch (o->type) {
    case OPTION_WORD:
        strbuf_adds(&text, value_word(o->words, *(const int *) field, word, sizeof(word)));
        break;
    case OPTION_INTEGER:
        strbuf_addf(&text, "%d", *(const int *) field);
        break;
    case OPTION_DURATION:
        strbuf_adds(&text, value_duration_text(*(const int64_t *) field, word, sizeof(word)));
        break;
    case OPTION_NAME_OF:
        strbuf_adds(&text, element_name(*(const void *const *) field));
        break;
    case OPTION_DSN:
        return *(char *const *) field ? value_redact(*(char *const *) field) : NULL;
    case OPTION_LIST:
    case OPTION_SETTINGS:
    case OPTION_HANDLERS:
    case OPTION_RULES:
        return NULL;
    default:
        if (!*(char *const *) field)
            return NULL;
        strbuf_adds(&text, *(char *const *) field);
    }
    return strbuf_take(&text);
}

/* What belongs to an element of this section: options, one by one. */
static const struct option *
next_option(const struct section *section, const void *base, size_t *i)
{
    while (*i < option_count) {
        const struct option *o = &options[(*i)++];
        if (strcmp(o->section, section->name) == 0 && !option_is_foreign(o, base))
            return o;
    }
    return NULL;
}

/* The length of the name of the map an option lies in; 0: none. */
static size_t
map_length(const struct option *o)
{
    return o ? (size_t) (option_last_key(o) - o->key) : 0;
}

static bool
same_map(const struct option *a, const struct option *b)
{
    size_t length = map_length(a);

    return length == map_length(b) && (length == 0 || !b || strncmp(a->key, b->key, length) == 0);
}

/* ------------------------------------------------------------------ YAML */

/* In JSON's quotes, which YAML reads as well; a plain ${ must not be taken for a variable. */
static void
add_quoted(struct strbuf *out, const char *text)
{
    struct strbuf plain = {0};

    for (; *text; text++) {
        if (text[0] == '$' && text[1] == '{')
            strbuf_addc(&plain, '$');
        strbuf_addc(&plain, *text);
    }
    json_quote(out, strbuf_str(&plain), plain.len);
    strbuf_release(&plain);
}

static void
add_rules(struct strbuf *out, const struct error_rules *rules)
{
    strbuf_addc(out, '[');
    for (size_t i = 0; i < rules->count; i++) {
        const struct error_rule *rule = &rules->list[i];
        strbuf_adds(out, i ? ", {" : "{");
        if (rule->sqlstate) {
            strbuf_adds(out, "sqlstate: ");
            add_quoted(out, rule->sqlstate);
            strbuf_adds(out, ", ");
        }
        if (rule->message) {
            strbuf_adds(out, "message: ");
            add_quoted(out, rule->message);
            strbuf_adds(out, ", ");
        }
        strbuf_addf(out, "class: %s}", error_class_name(rule->cls));
    }
    strbuf_addc(out, ']');
}

static void
add_handlers(struct strbuf *out, const struct consumer_config *c)
{
    strbuf_adds(out, "    handlers:\n");
    for (size_t i = 0; i < c->handler_count; i++) {
        strbuf_adds(out, "      ");
        json_quote(out, c->handlers[i].event_type, strlen(c->handlers[i].event_type));
        strbuf_adds(out, ": {sql: ");
        add_quoted(out, c->handlers[i].sql);
        if (c->handlers[i].errors.count > 0) {
            strbuf_adds(out, ", errors: ");
            add_rules(out, &c->handlers[i].errors);
        }
        strbuf_adds(out, "}\n");
    }
}

/* The strings of an OPTION_LIST. */
static char *const *
list_of(const void *field, size_t *ret_count)
{
    *ret_count = *(const size_t *) (const void *) ((const char *) field + sizeof(char **));
    return *(char *const *const *) field;
}

static void
add_list(struct strbuf *out, const struct option *o, const void *field)
{
    size_t count;
    char *const *list = list_of(field, &count);

    strbuf_addf(out, "%s: [", option_last_key(o));
    for (size_t i = 0; i < count; i++) {
        strbuf_adds(out, i ? ", " : "");
        add_quoted(out, list[i]);
    }
    strbuf_adds(out, "]\n");
}

/* A secret is not shown: in what it is called, librdkafka's settings are of one mind. */
static const char *
shown_value(const struct setting_config *setting)
{
    static const char *const secret[] = {"password", "secret", "key.pem", "oauthbearer.config",
                                         "sasl.jaas"};

    for (size_t i = 0; i < PR_LENGTH(secret); i++)
        if (strstr(setting->name, secret[i]))
            return "***";
    return setting->value;
}

static void
add_settings(struct strbuf *out, const struct destination_config *d)
{
    strbuf_adds(out, "settings: {");
    for (size_t i = 0; i < d->setting_count; i++) {
        strbuf_adds(out, i ? ", " : "");
        add_quoted(out, d->settings[i].name);
        strbuf_adds(out, ": ");
        add_quoted(out, shown_value(&d->settings[i]));
    }
    strbuf_adds(out, "}\n");
}

static void
add_rules_line(struct strbuf *out, const struct error_rules *rules)
{
    strbuf_adds(out, "errors: ");
    add_rules(out, rules);
    strbuf_addc(out, '\n');
}

static void
add_option(struct strbuf *out, const struct option *o, const char *base)
{
    char *text = text_of(o, base + o->offset);
    bool bare = o->type == OPTION_WORD || o->type == OPTION_INTEGER || o->type == OPTION_DURATION ||
                o->type == OPTION_NAME_OF;

    if (!text)
        return;
    strbuf_addf(out, "%s: ", option_last_key(o));
    if (bare)
        strbuf_adds(out, text);
    else
        add_quoted(out, text);
    strbuf_addc(out, '\n');
    free(text);
}

static void
add_element(struct strbuf *out, const struct section *section, const char *base)
{
    const struct consumer_config *consumer = (const void *) base;
    const char *indent = section->named ? "    " : "  ";
    const struct option *o, *last = NULL;

    for (size_t i = 0; (o = next_option(section, base, &i));) {
        struct strbuf line = {0};
        size_t prefix = map_length(o);
        if (o->type == OPTION_HANDLERS)
            add_handlers(out, consumer);
        if (o->type == OPTION_LIST)
            add_list(&line, o, base + o->offset);
        else if (o->type == OPTION_SETTINGS)
            add_settings(&line, (const void *) base);
        else if (o->type == OPTION_RULES)
            add_rules_line(&line, &consumer->errors);
        else
            add_option(&line, o, base);
        if (line.len > 0 && prefix > 0 && !same_map(o, last))
            strbuf_addf(out, "%s%.*s:\n", indent, (int) prefix - 1, o->key);
        if (line.len > 0) {
            strbuf_addf(out, "%s%s%s", indent, prefix > 0 ? "  " : "", strbuf_str(&line));
            last = o;
        }
        strbuf_release(&line);
    }
}

void
options_write_config(const struct config *config, FILE *out)
{
    struct strbuf text = {0};

    for (size_t s = 0; s < section_count; s++) {
        const struct section *section = &sections[s];
        size_t count = section->named ? section_length(section, config) : 0;
        if (count > 0 || !section->named)
            strbuf_addf(&text, "%s:\n", section->name);
        for (size_t i = 0; i < count; i++) {
            const char *base = section_element(section, config, i);
            strbuf_addf(&text, "  %s:\n", element_name(base));
            add_element(&text, section, base);
        }
        if (!section->named)
            add_element(&text, section, (const char *) config);
    }
    fputs(strbuf_str(&text), out);
    strbuf_release(&text);
}

/* ------------------------------------------------------------------ JSON */

static void
json_list(struct jsonw *w, const struct option *o, const void *field)
{
    size_t count;
    char *const *list = list_of(field, &count);

    jsonw_array(w, option_last_key(o));
    for (size_t i = 0; i < count; i++)
        jsonw_str(w, NULL, list[i]);
    jsonw_end(w);
}

static void
json_settings(struct jsonw *w, const struct option *o, const struct destination_config *d)
{
    jsonw_object(w, o->key);
    for (size_t i = 0; i < d->setting_count; i++)
        jsonw_str(w, d->settings[i].name, shown_value(&d->settings[i]));
    jsonw_end(w);
}

static void
json_rules(struct jsonw *w, const struct error_rules *rules)
{
    jsonw_array(w, "errors");
    for (size_t i = 0; i < rules->count; i++) {
        const struct error_rule *rule = &rules->list[i];
        jsonw_object(w, NULL);
        if (rule->sqlstate)
            jsonw_str(w, "sqlstate", rule->sqlstate);
        if (rule->message)
            jsonw_str(w, "message", rule->message);
        jsonw_str(w, "class", error_class_name(rule->cls));
        jsonw_end(w);
    }
    jsonw_end(w);
}

static void
json_handlers(struct jsonw *w, const struct option *o, const struct consumer_config *c)
{
    jsonw_object(w, o->key);
    for (size_t i = 0; i < c->handler_count; i++) {
        jsonw_object(w, c->handlers[i].event_type);
        jsonw_str(w, "sql", c->handlers[i].sql);
        if (c->handlers[i].errors.count > 0)
            json_rules(w, &c->handlers[i].errors);
        jsonw_end(w);
    }
    jsonw_end(w);
}

/* The options of an element; those of an inner map lie side by side in the table. */
static void
json_element(struct jsonw *w, const struct section *section, const char *base)
{
    const struct option *o, *last = NULL;

    for (size_t i = 0; (o = next_option(section, base, &i)); last = o) {
        size_t prefix = map_length(o);
        char map[32];
        snprintf(map, sizeof(map), "%.*s", prefix ? (int) prefix - 1 : 0, o->key);
        if (map_length(last) > 0 && !same_map(o, last))
            jsonw_end(w);
        if (prefix > 0 && !same_map(o, last))
            jsonw_object(w, map);
        if (o->type == OPTION_LIST) {
            json_list(w, o, base + o->offset);
        } else if (o->type == OPTION_SETTINGS) {
            json_settings(w, o, (const void *) base);
        } else if (o->type == OPTION_HANDLERS) {
            json_handlers(w, o, (const void *) base);
        } else if (o->type == OPTION_RULES) {
            json_rules(w, (const void *) (base + o->offset));
        } else if (o->type == OPTION_INTEGER) {
            jsonw_i64(w, option_last_key(o), *(const int *) (const void *) (base + o->offset));
        } else {
            char *text = text_of(o, base + o->offset);
            jsonw_str(w, option_last_key(o), text);
            free(text);
        }
    }
    if (map_length(last) > 0)
        jsonw_end(w);
}

void
options_write_json(const struct config *config, FILE *out)
{
    struct strbuf text = {0};
    struct jsonw w = {.out = &text};

    jsonw_object(&w, NULL);
    for (size_t s = 0; s < section_count; s++) {
        const struct section *section = &sections[s];
        size_t count = section->named ? section_length(section, config) : 0;
        jsonw_object(&w, section->name);
        for (size_t i = 0; i < count; i++) {
            const char *base = section_element(section, config, i);
            jsonw_object(&w, element_name(base));
            json_element(&w, section, base);
            jsonw_end(&w);
        }
        if (!section->named)
            json_element(&w, section, (const char *) config);
        jsonw_end(&w);
    }
    jsonw_end(&w);
    fprintf(out, "%s\n", strbuf_str(&text));
    strbuf_release(&text);
}
