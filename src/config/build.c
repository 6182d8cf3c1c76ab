#include <stdlib.h>
#include <string.h>

#include "config/check.h"
#include "config/options.h"
#include "config/reading.h"
#include "config/rules.h"
#include "config/values.h"
#include "core/alloc.h"
#include "core/strbuf.h"

/* A name of another section's element, looked up when all have been read. */
struct reference {
    const struct option *option;
    size_t index; /* of the element that refers */
    char *name;
    char *shown; /* the name as it stands in the file */
    char *where;
    int line;
};

/* ------------------------------------------------------------------ values */

static const char *
topic_fault(const char *text)
{
    static const char field[] = "{aggregate_type}";

    for (; *text; text++) {
        if (strncmp(text, field, sizeof(field) - 1) == 0)
            text += sizeof(field) - 2;
        else if (strncmp(text, "{event_type}", 12) == 0)
            return " (with {event_type}, events of one stream would lie in several topics and "
                   "lose their order)";
        else if (*text == '{' || *text == '}')
            return "";
    }
    return NULL;
}

static bool
is_listen(const char *text)
{
    const char *colon = strrchr(text, ':');
    int64_t port;

    return colon && colon != text && value_integer(colon + 1, &port) && port >= 0 && port <= 65535;
}

/* Stores a value that is written as one text; true if `text` has an owner now. */
static bool
store_text(struct reading *r, const struct option *o, const struct pair *pair, void *field,
           char *text)
{
    char what[256];
    const char *fault = NULL;

    option_expected(o, what, sizeof(what));
    if (o->words && value_word_index(o->words, text) < 0) {
        pair_expected(r, pair, "%s", what);
        return false;
    }
    if (o->type == OPTION_DSN && !value_is_dsn(text)) {
        /* Neither the text nor libpq's own words: a password may be in them. */
        mistake_add(&r->mistakes, pair->line, pair->where,
                    "found text that libpq cannot read, expected %s (put a value with spaces in "
                    "'', write @ : / of a URI's password as %%40 %%3A %%2F)",
                    what);
        return false;
    }
    if (o->type == OPTION_TOPIC)
        fault = topic_fault(text);
    if (o->type == OPTION_LISTEN && !is_listen(text))
        fault = "";
    if (fault) {
        pair_expected(r, pair, "%s%s", what, fault);
        return false;
    }
    free(*(char **) field);
    *(char **) field = text;
    return true;
}

static void
store_number(struct reading *r, const struct option *o, const struct pair *pair, void *field,
             const char *text)
{
    bool duration = o->type == OPTION_DURATION;
    int64_t number;
    char what[128];

    option_expected(o, what, sizeof(what));
    if (!(duration ? value_duration(text, &number) : value_integer(text, &number)))
        pair_expected(r, pair, "%s%s", what, duration ? " (as 50ms, 10s, 5m, 12h or 7d)" : "");
    else if (number < o->least || number > o->most)
        pair_expected(r, pair, "%s", what);
    else if (duration)
        *(int64_t *) field = number;
    else
        *(int *) field = (int) number;
}

static void
refer(struct reading *r, const struct option *o, size_t index, const struct pair *pair, char *name)
{
    GROW(r->references, r->reference_count, r->reference_cap);
    r->references[r->reference_count++] = (struct reference){
        .option = o,
        .index = index,
        .name = name,
        .shown = xstrdup((const char *) pair->value->data.scalar.value),
        .where = xstrdup(pair->where),
        .line = pair->line,
    };
}

static void
read_list(struct reading *r, const struct option *o, const struct pair *pair, void *field)
{
    char ***list = field;
    size_t *count = (size_t *) (list + 1), cap = 0;
    char what[64];

    if (pair->value->type != YAML_SEQUENCE_NODE) {
        pair_expected(r, pair, "%s", option_expected(o, what, sizeof(what)));
        return;
    }
    const yaml_node_item_t *first = pair->value->data.sequence.items.start;
    for (const yaml_node_item_t *i = first; i < pair->value->data.sequence.items.top; i++) {
        if (!reading_count(r, pair, (size_t) (i - first)))
            return;
        const yaml_node_t *node = yaml_document_get_node(r->doc, *i);
        struct pair item = {"", node_line(node), node, pair->where};
        char *text = pair_text(r, &item, "text", false);
        if (!text)
            continue;
        GROW(*list, *count, cap);
        (*list)[(*count)++] = text;
    }
}

static void
read_setting(struct reading *r, const struct pair *pair, void *arg)
{
    struct destination_config *d = arg;
    char *value = pair_text(r, pair, "text", false);
    const char *why = setting_refusal(pair->key);

    if (!value)
        return;
    if (why) {
        mistake_add(&r->mistakes, pair->line, pair->where,
                    "found %s, expected no such setting (%s)", pair->key, why);
        free(value);
        return;
    }
    d->settings = xrealloc(d->settings, sizeof(*d->settings) * (d->setting_count + 1));
    d->settings[d->setting_count++] = (struct setting_config){xstrdup(pair->key), value};
}

static void
read_handler_part(struct reading *r, const struct pair *pair, void *arg)
{
    struct handler_config *handler = arg;

    if (strcmp(pair->key, "sql") == 0)
        handler->sql = pair_text(r, pair, "an SQL statement", true);
    else if (strcmp(pair->key, "errors") == 0)
        rules_read(r, pair, &handler->errors);
    else
        mistake_add(&r->mistakes, pair->line, pair->where,
                    "found an unknown kind of handler, expected sql or errors");
}

static void
read_handler(struct reading *r, const struct pair *pair, void *arg)
{
    struct consumer_config *consumer = arg;
    struct handler_config handler = {.line = pair->line};
    size_t before = mistakes_total(&r->mistakes);

    if (text_has_control(pair->key))
        mistake_add(&r->mistakes, pair->line, pair->where,
                    "found a control character, expected an event type");
    pair_each(r, pair, "{sql: \"…\"}", read_handler_part, &handler);
    if (!handler.sql) {
        if (mistakes_total(&r->mistakes) == before)
            mistake_add(&r->mistakes, pair->line, pair->where,
                        "found no statement, expected {sql: \"…\"}");
        rules_release(&handler.errors);
        return;
    }
    handler.event_type = xstrdup(pair->key);
    consumer->handlers =
        xrealloc(consumer->handlers, sizeof(handler) * (consumer->handler_count + 1));
    consumer->handlers[consumer->handler_count++] = handler;
}

/* ------------------------------------------------------------------ options */

/* What a map of options fills. */
struct element {
    const struct section *section;
    char *base;              /* its struct */
    size_t index;            /* among those of its section */
    const char *prefix;      /* "from." inside that map */
    int given[OPTIONS_MOST]; /* line of each option of the table; 0: not given */
};

static void
read_value(struct reading *r, struct element *e, const struct option *o, const struct pair *pair)
{
    void *field = e->base + o->offset;
    char what[256];

    if (o->type == OPTION_LIST) {
        read_list(r, o, pair, field);
        return;
    }
    if (o->type == OPTION_RULES) {
        rules_read(r, pair, field);
        return;
    }
    option_expected(o, what, sizeof(what));
    if (o->type == OPTION_HANDLERS) {
        pair_each(r, pair, what, read_handler, e->base);
        return;
    }
    if (o->type == OPTION_SETTINGS) {
        pair_each(r, pair, what, read_setting, e->base);
        return;
    }
    char *text = pair_text(r, pair, what, o->type == OPTION_SQL);
    if (!text)
        return;
    switch (o->type) {
    case OPTION_INTEGER:
    case OPTION_DURATION:
        store_number(r, o, pair, field, text);
        break;
    case OPTION_WORD:
        if (value_word_index(o->words, text) < 0)
            pair_expected(r, pair, "%s", value_words_text(o->words, what, sizeof(what)));
        else
            *(int *) field = value_word_index(o->words, text);
        break;
    case OPTION_NAME_OF:
        refer(r, o, e->index, pair, text);
        text = NULL; /* the reference owns it now */
        break;
    default:
        if (store_text(r, o, pair, field, text))
            text = NULL;
    }
    free(text);
}

/* Does a map of this name hold options of the section? */
static bool
is_inner_map(const struct element *e, const char *name)
{
    size_t len = strlen(name);

    for (size_t i = 0; i < option_count && !*e->prefix; i++)
        if (strcmp(options[i].section, e->section->name) == 0 &&
            strncmp(options[i].key, name, len) == 0 && options[i].key[len] == '.')
            return true;
    return false;
}

/* What may stand in a map: "database or retention", and the one likely to be meant. */
static void
unknown(struct reading *r, const struct pair *pair, const char *kind, const char *const *known,
        size_t count)
{
    struct strbuf list = {0};
    const char *near = value_nearest(pair->key, known, count);

    for (size_t i = 0; i < count; i++)
        strbuf_addf(&list, "%s%s", i == 0 ? "" : i + 1 < count ? ", " : " or ", known[i]);
    if (near)
        mistake_add(&r->mistakes, pair->line, pair->where,
                    "found an unknown %s, expected %s (did you mean \"%s\"?)", kind,
                    strbuf_str(&list), near);
    else
        mistake_add(&r->mistakes, pair->line, pair->where, "found an unknown %s, expected %s", kind,
                    strbuf_str(&list));
    strbuf_release(&list);
}

static void
unknown_option(struct reading *r, const struct element *e, const struct pair *pair)
{
    char names[OPTIONS_MOST][32];
    const char *known[OPTIONS_MOST];
    size_t count = 0, prefix = strlen(e->prefix);

    for (size_t i = 0; i < option_count; i++) {
        if (strcmp(options[i].section, e->section->name) != 0 ||
            strncmp(options[i].key, e->prefix, prefix) != 0)
            continue;
        const char *key = options[i].key + prefix;
        snprintf(names[count], sizeof(names[count]), "%.*s", (int) strcspn(key, "."), key);
        if (count > 0 && strcmp(names[count], names[count - 1]) == 0)
            continue; /* one more option of the same map */
        known[count] = names[count];
        count++;
    }
    unknown(r, pair, "option", known, count);
}

static void
read_option(struct reading *r, const struct pair *pair, void *arg)
{
    struct element *e = arg;
    char *key = xasprintf("%s%s", e->prefix, pair->key);
    const struct option *o = strchr(pair->key, '.') ? NULL : option_find(e->section->name, key);

    if (o) {
        e->given[o - options] = pair->line;
        read_value(r, e, o, pair);
    } else if (is_inner_map(e, key)) {
        char *prefix = xasprintf("%s.", key);
        e->prefix = prefix;
        pair_each(r, pair, "a map of options", read_option, e);
        e->prefix = "";
        free(prefix);
    } else {
        unknown_option(r, e, pair);
    }
    free(key);
}

/* ------------------------------------------------------------------ sections */

static void
set_defaults(const struct section *section, char *base)
{
    for (size_t i = 0; i < option_count; i++) {
        const struct option *o = &options[i];
        void *field = base + o->offset;
        int64_t number = 0;
        if (strcmp(o->section, section->name) != 0 || !o->fallback)
            continue;
        switch (o->type) {
        case OPTION_DURATION:
            PR_CHECK(value_duration(o->fallback, field));
            break;
        case OPTION_INTEGER:
            PR_CHECK(value_integer(o->fallback, &number));
            *(int *) field = (int) number;
            break;
        case OPTION_WORD:
            *(int *) field = value_word_index(o->words, o->fallback);
            break;
        default:
            *(char **) field = xstrdup(o->fallback);
        }
    }
}

/* What is missing, and what is there but of another transport. */
static void
check_given(struct reading *r, const struct element *e, const struct pair *pair)
{
    for (size_t i = 0; i < option_count; i++) {
        const struct option *o = &options[i];
        char what[256];
        if (strcmp(o->section, e->section->name) != 0)
            continue;
        bool foreign = option_is_foreign(o, e->base);
        char *where = xasprintf("%s.%s", pair->where, o->key);
        if (!e->given[i] && o->required && !foreign)
            mistake_add_at(&r->mistakes, where, "found nothing, expected %s",
                           option_expected(o, what, sizeof(what)));
        const struct destination_config *d = (const void *) e->base;
        if (e->given[i] && foreign && d->transport)
            mistake_add(&r->mistakes, e->given[i], where,
                        "found with transport %s, expected with transport %s only (remove it)",
                        d->transport, value_words_text(o->only, what, sizeof(what)));
        free(where);
    }
}

static void
read_element(struct reading *r, const struct pair *pair, void *arg)
{
    const struct section *section = section_find(arg);
    char *list_field = (char *) r->config + section->list_offset;
    void **list = (void *) list_field;
    size_t *count = (size_t *) (list + 1);
    struct element e = {.section = section, .index = *count, .prefix = ""};

    if (!value_is_name(pair->key))
        mistake_add(&r->mistakes, pair->line, pair->where,
                    "found a name with other characters, expected a-z, 0-9, - and _, at most 63, "
                    "the first a letter or digit");
    *list = xrealloc(*list, section->size * (*count + 1));
    e.base = (char *) *list + section->size * (*count)++;
    memset(e.base, 0, section->size);
    *(char **) (void *) e.base = xstrdup(pair->key);
    *(int *) (void *) (e.base + sizeof(char *)) = pair->line;
    set_defaults(section, e.base);
    pair_each(r, pair, "a map of options", read_option, &e);
    check_given(r, &e, pair);
}

static void
read_section(struct reading *r, const struct pair *pair, void *arg)
{
    const struct section *section = section_find(pair->key);
    const char *names[16];

    (void) arg;
    if (!section) {
        for (size_t i = 0; i < section_count; i++)
            names[i] = sections[i].name;
        unknown(r, pair, "section", names, section_count);
    } else if (section->named) {
        char *name = xstrdup(section->name);
        pair_each(r, pair, "a map from names to options", read_element, name);
        free(name);
    } else {
        struct element e = {.section = section, .base = (char *) r->config, .prefix = ""};
        pair_each(r, pair, "a map of options", read_option, &e);
    }
}

/* ------------------------------------------------------------------ references */

static void
not_found(struct reading *r, const struct reference *ref, const struct section *section)
{
    size_t count = section_length(section, r->config);
    const char **names = xcalloc(count + 1, sizeof(*names));

    for (size_t i = 0; i < count; i++)
        names[i] = element_name(section_element(section, r->config, i));
    const char *near = value_nearest(ref->name, names, count);
    if (near)
        mistake_add(&r->mistakes, ref->line, ref->where,
                    "found \"%s\", expected a name from %s (did you mean \"%s\"?)", ref->shown,
                    section->name, near);
    else
        mistake_add(&r->mistakes, ref->line, ref->where,
                    "found \"%s\", expected a name from %s (%s%s)", ref->shown, section->name,
                    count ? "the first is " : "there are none", count ? names[0] : "");
    free(names);
}

static void
resolve_references(struct reading *r)
{
    for (size_t i = 0; i < r->reference_count; i++) {
        const struct reference *ref = &r->references[i];
        const struct section *from = section_find(ref->option->section);
        const struct section *to = section_find(ref->option->words);
        size_t count = section_length(to, r->config);
        void *found = NULL;
        for (size_t j = 0; j < count && !found; j++) {
            void *element = section_element(to, r->config, j);
            if (strcmp(element_name(element), ref->name) == 0)
                found = element;
        }
        if (!found)
            not_found(r, ref, to);
        char *base = section_element(from, r->config, ref->index);
        *(const void **) (void *) (base + ref->option->offset) = found;
    }
}

void
config_build_release(struct reading *r)
{
    for (size_t i = 0; i < r->reference_count; i++) {
        free(r->references[i].name);
        free(r->references[i].shown);
        free(r->references[i].where);
    }
    free(r->references);
}

/* ------------------------------------------------------------------ the whole */

/* A topic of Kafka has what it has; elsewhere it is we who make it. */
static void
set_partitions(struct destination_config *d)
{
    if (d->partitions == 0 && d->transport && strcmp(d->transport, "kafka") != 0)
        d->partitions = 16;
}

void
config_build(struct reading *r, yaml_document_t *doc)
{
    const yaml_node_t *root = yaml_document_get_root_node(doc);
    struct pair all = {.key = "", .line = 1, .value = root, .where = ""};

    r->doc = doc;
    if (!root || node_is_empty(root)) {
        mistake_add(&r->mistakes, 1, "",
                    "found an empty file, expected sections as outboxes and relays "
                    "(`postrider config sample` writes a file to begin with)");
        return;
    }
    all.line = node_line(root);
    for (size_t i = 0; i < section_count; i++)
        if (!sections[i].named)
            set_defaults(&sections[i], (char *) r->config);
    pair_each(r, &all, "a map of sections", read_section, NULL);
    resolve_references(r);
    config_check_tables(r->config, &r->mistakes);
    for (size_t i = 0; i < r->config->destination_count; i++)
        set_partitions(&r->config->destinations[i]);
    for (size_t i = 0; i < r->config->consumer_count; i++)
        if (!r->config->consumers[i].owner)
            r->config->consumers[i].owner = xstrdup(r->config->consumers[i].name);
    for (size_t i = 0; i < r->config->relay_count; i++)
        if (!r->config->relays[i].owner)
            r->config->relays[i].owner = xstrdup(r->config->relays[i].name);
    config_check_together(r->config, &r->mistakes);
}
