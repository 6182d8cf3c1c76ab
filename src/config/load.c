#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "config/options.h"
#include "config/values.h"
#include "core/alloc.h"
#include "core/strbuf.h"

enum { MOST_BYTES = 1024 * 1024 };

/* One pass over the file: what has been built so far, and how many mistakes. */
struct reading {
    const char *path;
    FILE *report;
    int mistakes;
    yaml_document_t *doc;
    struct config *config;
    struct unresolved { /* a name of another section's element, looked up at the end */
        const struct option *option;
        size_t list_offset;
        size_t index;
        char *name;
        char *where;
        int line;
    } * unresolved;
    size_t unresolved_count, unresolved_cap;
};

static void PR_PRINTF(4, 5)
    mistake(struct reading *r, int line, const char *where, const char *fmt, ...)
{
    va_list ap;

    r->mistakes++;
    fprintf(r->report, "%s:%d: %s%s", r->path, line, where, *where ? ": " : "");
    va_start(ap, fmt);
    vfprintf(r->report, fmt, ap);
    va_end(ap);
    fputc('\n', r->report);
}

/* ------------------------------------------------------------------ nodes */

static int
line_of(const yaml_node_t *node)
{
    return (int) node->start_mark.line + 1;
}

static const char *
kind_of(const yaml_node_t *node)
{
    return node->type == YAML_SCALAR_NODE     ? "a value"
           : node->type == YAML_SEQUENCE_NODE ? "a list"
           : node->type == YAML_MAPPING_NODE  ? "a map"
                                              : "nothing";
}

static bool
is_empty(const yaml_node_t *node)
{
    return node->type == YAML_SCALAR_NODE && node->data.scalar.length == 0 &&
           node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

/* The text of a scalar with variables filled in; NULL after a mistake was reported. */
static char *
text_of(struct reading *r, const yaml_node_t *node, const char *where, const char *expected)
{
    char missing[64];

    if (node->type != YAML_SCALAR_NODE || is_empty(node)) {
        mistake(r, line_of(node), where, "found %s, expected %s",
                is_empty(node) ? "nothing" : kind_of(node), expected);
        return NULL;
    }
    const char *text = (const char *) node->data.scalar.value;
    if (strlen(text) != node->data.scalar.length) {
        mistake(r, line_of(node), where, "the text holds a NUL byte");
        return NULL;
    }
    char *expanded = value_expand(text, missing, sizeof(missing));
    if (!expanded)
        mistake(r, line_of(node), where,
                "the environment variable %s is not set (export %s=… before starting)", missing,
                missing);
    return expanded;
}

/* Calls `each` for every pair of a map; keys are checked to be text and to be there once. */
static void
each_pair(struct reading *r, const yaml_node_t *map, const char *where,
          void (*each)(struct reading *, const char *key, const yaml_node_t *value,
                       const char *where, void *arg),
          void *arg)
{
    for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
         p++) {
        const yaml_node_t *key = yaml_document_get_node(r->doc, p->key);
        const yaml_node_t *value = yaml_document_get_node(r->doc, p->value);
        if (key->type != YAML_SCALAR_NODE) {
            mistake(r, line_of(key), where, "found %s as a key, expected a name", kind_of(key));
            continue;
        }
        const char *name = (const char *) key->data.scalar.value;
        bool again = false;
        for (yaml_node_pair_t *q = map->data.mapping.pairs.start; q < p; q++) {
            const yaml_node_t *before = yaml_document_get_node(r->doc, q->key);
            again |= before->type == YAML_SCALAR_NODE &&
                     strcmp((const char *) before->data.scalar.value, name) == 0;
        }
        char *path = xasprintf("%s%s%s", where, *where ? "." : "", name);
        if (again)
            mistake(r, line_of(key), path, "is given twice");
        else
            each(r, name, value, path, arg);
        free(path);
    }
}

static bool
want_map(struct reading *r, const yaml_node_t *node, const char *where)
{
    if (node->type == YAML_MAPPING_NODE)
        return true;
    if (!is_empty(node))
        mistake(r, line_of(node), where, "found %s, expected a map", kind_of(node));
    return false;
}

/* ------------------------------------------------------------------ one option's value */

static void
set_duration(struct reading *r, const struct option *o, const char *text, int line,
             const char *where, int64_t *ret)
{
    char low[32], high[32];

    if (!value_duration(text, ret))
        mistake(r, line, where,
                "found \"%s\", expected a duration such as 50ms, 10s, 5m, 12h or 7d", text);
    else if (*ret < o->least || *ret > o->most)
        mistake(r, line, where, "found %s, expected %s to %s", text,
                value_duration_text(o->least, low, sizeof(low)),
                value_duration_text(o->most, high, sizeof(high)));
}

static void
set_integer(struct reading *r, const struct option *o, const char *text, int line,
            const char *where, int *ret)
{
    int64_t number;

    if (!value_integer(text, &number) || number < o->least || number > o->most)
        mistake(r, line, where, "found \"%s\", expected a number from %lld to %lld", text,
                (long long) o->least, (long long) o->most);
    else
        *ret = (int) number;
}

static void
wrong_word(struct reading *r, const struct option *o, const char *text, int line, const char *where)
{
    mistake(r, line, where, "found \"%s\", expected one of %s", text, o->words);
}

static void
check_topic(struct reading *r, const char *text, int line, const char *where)
{
    for (const char *at = strchr(text, '{'); at; at = strchr(at + 1, '{')) {
        if (strncmp(at, "{aggregate_type}", 16) == 0)
            continue;
        if (strncmp(at, "{event_type}", 12) == 0)
            mistake(r, line, where,
                    "{event_type} would tear a stream apart: its events would lie in several "
                    "topics, without an order; use {aggregate_type}");
        else
            mistake(r, line, where, "found \"%s\", expected text and {aggregate_type} only", text);
        return;
    }
}

static void
check_listen(struct reading *r, const char *text, int line, const char *where)
{
    const char *colon = strrchr(text, ':');
    int64_t port;

    if (!colon || colon == text || !value_integer(colon + 1, &port) || port < 0 || port > 65535)
        mistake(r, line, where, "found \"%s\", expected address:port, e.g. 127.0.0.1:9187", text);
}

static void
remember_name(struct reading *r, const struct option *o, size_t list_offset, size_t index,
              char *name, const char *where, int line)
{
    GROW(r->unresolved, r->unresolved_count, r->unresolved_cap);
    r->unresolved[r->unresolved_count++] = (struct unresolved){
        .option = o,
        .list_offset = list_offset,
        .index = index,
        .name = name,
        .where = xstrdup(where),
        .line = line,
    };
}

static void
set_list(struct reading *r, const yaml_node_t *node, const char *where, char ***ret, size_t *count)
{
    if (node->type != YAML_SEQUENCE_NODE) {
        mistake(r, line_of(node), where, "found %s, expected a list: [A, B]", kind_of(node));
        return;
    }
    size_t cap = 0;
    for (yaml_node_item_t *i = node->data.sequence.items.start; i < node->data.sequence.items.top;
         i++) {
        char *text = text_of(r, yaml_document_get_node(r->doc, *i), where, "a name");
        if (!text)
            continue;
        GROW(*ret, *count, cap);
        (*ret)[(*count)++] = text;
    }
}

static void
set_handler_part(struct reading *r, const char *key, const yaml_node_t *value, const char *where,
                 void *arg)
{
    struct handler_config *handler = arg;
    static const char *const kinds[] = {"sql"};

    if (strcmp(key, "sql") == 0) {
        handler->sql = text_of(r, value, where, "an SQL statement");
        return;
    }
    const char *near = value_nearest(key, kinds, 1);
    mistake(r, line_of(value), where, "is no kind of handler, expected sql%s",
            near ? " (did you mean \"sql\"?)" : "");
}

static void
set_handler(struct reading *r, const char *key, const yaml_node_t *value, const char *where,
            void *arg)
{
    struct consumer_config *consumer = arg;
    struct handler_config handler = {.line = line_of(value)};
    int before = r->mistakes;

    if (value->type != YAML_MAPPING_NODE) {
        mistake(r, line_of(value), where, "found %s, expected {sql: \"…\"}", kind_of(value));
        return;
    }
    each_pair(r, value, where, set_handler_part, &handler);
    if (!handler.sql) {
        if (r->mistakes == before)
            mistake(r, line_of(value), where, "has no sql");
        return;
    }
    handler.event_type = xstrdup(key);
    consumer->handlers =
        xrealloc(consumer->handlers, sizeof(handler) * (consumer->handler_count + 1));
    consumer->handlers[consumer->handler_count++] = handler;
}

struct element {
    const struct section *section;
    char *base;         /* its struct */
    size_t index;       /* in the section's list */
    const char *prefix; /* "from." inside that map */
    bool *given;        /* per option of the table */
};

static void
set_value(struct reading *r, const struct option *o, struct element *e, const yaml_node_t *node,
          const char *where)
{
    void *at = e->base + o->offset;
    int line = line_of(node);

    if (o->type == OPTION_LIST) {
        set_list(r, node, where, at, (size_t *) ((char *) at + sizeof(char **)));
        return;
    }
    if (o->type == OPTION_HANDLERS) {
        if (want_map(r, node, where))
            each_pair(r, node, where, set_handler, e->base);
        return;
    }
    char *text = text_of(r, node, where, o->words ? o->words : "a value");
    if (!text)
        return;
    switch (o->type) {
    case OPTION_DURATION:
        set_duration(r, o, text, line, where, at);
        break;
    case OPTION_INTEGER:
        set_integer(r, o, text, line, where, at);
        break;
    case OPTION_WORD:
        if (value_word_index(o->words, text) < 0)
            wrong_word(r, o, text, line, where);
        else
            *(int *) at = value_word_index(o->words, text);
        break;
    case OPTION_NAME_OF:
        remember_name(r, o, e->section->list_offset, e->index, text, where, line);
        return; /* it owns the text now */
    default:
        if (o->words && value_word_index(o->words, text) < 0)
            wrong_word(r, o, text, line, where);
        if (o->type == OPTION_TOPIC)
            check_topic(r, text, line, where);
        if (o->type == OPTION_LISTEN)
            check_listen(r, text, line, where);
        *(char **) at = text;
        return; /* the configuration owns it now */
    }
    free(text);
}

static void
unknown_option(struct reading *r, const struct element *e, const char *key, int line,
               const char *where)
{
    const char *keys[64];
    size_t count = 0, prefix = strlen(e->prefix);

    for (size_t i = 0; i < option_count && count < 64; i++)
        if (strcmp(options[i].section, e->section->name) == 0 &&
            strncmp(options[i].key, e->prefix, prefix) == 0)
            keys[count++] = options[i].key + prefix;
    const char *near = value_nearest(key, keys, count);
    if (near)
        mistake(r, line, where, "unknown option (did you mean \"%s\"?)", near);
    else
        mistake(r, line, where, "unknown option; postrider.yaml(5) lists them");
}

static void
set_option(struct reading *r, const char *key, const yaml_node_t *value, const char *where,
           void *arg)
{
    struct element *e = arg;
    char *full = xasprintf("%s%s", e->prefix, key);
    const struct option *o = option_find(e->section->name, full);

    if (o) {
        e->given[o - options] = true;
        set_value(r, o, e, value, where);
    } else if (strcmp(e->section->name, "consumers") == 0 && strcmp(full, "from") == 0) {
        struct element inner = *e;
        inner.prefix = "from.";
        if (want_map(r, value, where))
            each_pair(r, value, where, set_option, &inner);
    } else {
        unknown_option(r, e, key, line_of(value), where);
    }
    free(full);
}

/* ------------------------------------------------------------------ sections */

static void
set_default(struct reading *r, const struct option *o, char *base)
{
    void *at = base + o->offset;
    int64_t number = 0;

    if (!o->fallback)
        return;
    switch (o->type) {
    case OPTION_DURATION:
        PR_CHECK(value_duration(o->fallback, at));
        break;
    case OPTION_INTEGER:
        PR_CHECK(value_integer(o->fallback, &number));
        *(int *) at = (int) number;
        break;
    case OPTION_WORD:
        *(int *) at = value_word_index(o->words, o->fallback);
        break;
    default:
        *(char **) at = xstrdup(o->fallback);
    }
    (void) r;
}

/* Is this option of another transport than the destination's own? */
static bool
foreign(const struct option *o, const char *base)
{
    const struct destination_config *d = (const struct destination_config *) (const void *) base;

    return o->only && (!d->transport || strcmp(o->only, d->transport) != 0);
}

static void
complete(struct reading *r, struct element *e, const char *where, int line)
{
    for (size_t i = 0; i < option_count; i++) {
        const struct option *o = &options[i];
        if (strcmp(o->section, e->section->name) != 0)
            continue;
        if (e->given[i] && foreign(o, e->base) &&
            ((struct destination_config *) (void *) e->base)->transport)
            mistake(r, line, where, "%s belongs to transport %s only", o->key, o->only);
        if (e->given[i])
            continue;
        if (o->required && !foreign(o, e->base))
            mistake(r, line, where, "%s is missing: %s", o->key, o->help);
        set_default(r, o, e->base);
    }
}

static void
read_element(struct reading *r, const char *name, const yaml_node_t *node, const char *where,
             void *arg)
{
    const struct section *section = arg;
    char **list = (char **) (void *) ((char *) r->config + section->list_offset);
    size_t *count =
        (size_t *) (void *) ((char *) r->config + section->list_offset + sizeof(void *));
    bool given[64] = {false};

    if (!value_is_name(name))
        mistake(r, line_of(node), where, "a name is made of a-z, 0-9, - and _ (at most 63)");
    *list = xrealloc(*list, section->size * (*count + 1));
    char *base = *list + section->size * *count;
    memset(base, 0, section->size);
    *(char **) (void *) base = xstrdup(name);
    /* Every named element begins with its name and its line (config.h). */
    *(int *) (void *) (base + sizeof(char *)) = line_of(node);
    struct element e = {section, base, *count, "", given};
    (*count)++;
    if (node->type != YAML_MAPPING_NODE && !is_empty(node))
        mistake(r, line_of(node), where, "found %s, expected a map of options", kind_of(node));
    else if (node->type == YAML_MAPPING_NODE)
        each_pair(r, node, where, set_option, &e);
    complete(r, &e, where, line_of(node));
}

static void
read_section(struct reading *r, const char *name, const yaml_node_t *node, const char *where,
             void *arg)
{
    const char *names[16];
    size_t i;

    (void) arg;
    for (i = 0; i < section_count; i++) {
        names[i] = sections[i].name;
        if (strcmp(sections[i].name, name) == 0)
            break;
    }
    if (i == section_count) {
        const char *near = value_nearest(name, names, section_count);
        mistake(r, line_of(node), where,
                near ? "unknown section (did you mean \"%s\"?)"
                     : "unknown section%s; there are outboxes, destinations, relays, consumers, "
                       "http, log",
                near ? near : "");
    } else if (want_map(r, node, where) && sections[i].named) {
        union {
            const struct section *in;
            void *out;
        } u = {&sections[i]};
        each_pair(r, node, where, read_element, u.out);
    }
}

/* http and log are options of the whole; their defaults hold without a section, too. */
static void
read_plain_sections(struct reading *r, const yaml_node_t *root)
{
    for (size_t s = 0; s < section_count; s++) {
        bool given[64] = {false};
        struct element e = {&sections[s], (char *) r->config, 0, "", given};
        if (sections[s].named)
            continue;
        for (yaml_node_pair_t *p = root->data.mapping.pairs.start; p < root->data.mapping.pairs.top;
             p++) {
            const yaml_node_t *key = yaml_document_get_node(r->doc, p->key);
            const yaml_node_t *value = yaml_document_get_node(r->doc, p->value);
            if (key->type == YAML_SCALAR_NODE && value->type == YAML_MAPPING_NODE &&
                strcmp((const char *) key->data.scalar.value, sections[s].name) == 0)
                each_pair(r, value, sections[s].name, set_option, &e);
        }
        complete(r, &e, sections[s].name, 1);
    }
}

/* ------------------------------------------------------------------ what goes together */

static const void *
find_element(const struct config *config, const char *section, const char *name, const char **names,
             size_t *name_count)
{
    for (size_t s = 0; s < section_count; s++) {
        if (strcmp(sections[s].name, section) != 0)
            continue;
        const char *list =
            *(char *const *) (const void *) ((const char *) config + sections[s].list_offset);
        size_t count = *(const size_t *) (const void *) ((const char *) config +
                                                         sections[s].list_offset + sizeof(void *));
        for (size_t i = 0; i < count; i++) {
            const char *base = list + i * sections[s].size;
            const char *own = *(char *const *) (const void *) base;
            if (strcmp(own, name) == 0)
                return base;
            if (*name_count < 64)
                names[(*name_count)++] = own;
        }
    }
    return NULL;
}

static void
resolve_names(struct reading *r)
{
    for (size_t i = 0; i < r->unresolved_count; i++) {
        struct unresolved *u = &r->unresolved[i];
        const char *names[64];
        size_t count = 0, size = 0;
        const void *found = find_element(r->config, u->option->words, u->name, names, &count);
        const char *near = found ? NULL : value_nearest(u->name, names, count);
        if (!found)
            mistake(r, u->line, u->where, "%s has no \"%s\"%s%s%s", u->option->words, u->name,
                    near ? " (did you mean \"" : "", near ? near : "", near ? "\"?)" : "");
        for (size_t s = 0; s < section_count; s++)
            if (sections[s].named && sections[s].list_offset == u->list_offset)
                size = sections[s].size;
        char *list = *(char **) (void *) ((char *) r->config + u->list_offset);
        *(const void **) (void *) (list + u->index * size + u->option->offset) = found;
        free(u->name);
        free(u->where);
    }
    free(r->unresolved);
}

static void
check_relays(struct reading *r)
{
    const struct config *c = r->config;

    for (size_t i = 0; i < c->relay_count; i++) {
        const struct relay_config *a = &c->relays[i];
        for (size_t j = 0; j < i; j++) {
            const struct relay_config *b = &c->relays[j];
            if (a->outbox && a->destination && a->outbox == b->outbox &&
                a->destination == b->destination)
                mistake(r, a->line, "relays",
                        "%s and %s both publish outbox %s to destination %s: "
                        "every event would be there twice",
                        b->name, a->name, a->outbox->name, a->destination->name);
        }
    }
}

static void
check_handlers(struct reading *r, const struct consumer_config *c)
{
    for (size_t i = 0; i < c->handler_count; i++)
        for (size_t j = 0; j < c->ignore_count; j++)
            if (strcmp(c->handlers[i].event_type, c->ignore[j]) == 0)
                mistake(r, c->handlers[i].line, "consumers",
                        "%s: %s has a handler and stands under ignore; it can be only one", c->name,
                        c->ignore[j]);
}

static void
check_consumers(struct reading *r)
{
    for (size_t i = 0; i < r->config->consumer_count; i++) {
        struct consumer_config *c = &r->config->consumers[i];
        const struct destination_config *d = c->destination;
        char have[32], need[32];
        check_handlers(r, c);
        if (!c->owner)
            c->owner = xstrdup(c->name);
        if (!d || !d->transport)
            continue;
        if (strcmp(d->transport, "postgres") != 0)
            mistake(r, c->line, "consumers",
                    "%s: from.destination %s has transport %s; a consumer "
                    "reads from a postgres destination",
                    c->name, d->name, d->transport);
        else if (c->retention_us < d->retention_us)
            mistake(r, c->line, "consumers",
                    "%s: retention %s is shorter than the %s for which "
                    "destination %s keeps messages: one could come back after its dedupe record "
                    "is gone (set retention to %s or more)",
                    c->name, value_duration_text(c->retention_us, have, sizeof(have)),
                    value_duration_text(d->retention_us, need, sizeof(need)), d->name, need);
    }
}

/* ------------------------------------------------------------------ the file */

static void
read_document(struct reading *r, yaml_document_t *doc)
{
    const yaml_node_t *root = yaml_document_get_root_node(doc);

    r->doc = doc;
    if (!root || is_empty(root)) {
        mistake(r, 1, "", "the file is empty; `postrider config sample` writes one to begin with");
        return;
    }
    if (root->type != YAML_MAPPING_NODE) {
        mistake(r, line_of(root), "", "found %s, expected the sections outboxes, destinations, …",
                kind_of(root));
        return;
    }
    each_pair(r, root, "", read_section, NULL);
    read_plain_sections(r, root);
    resolve_names(r);
    check_relays(r);
    check_consumers(r);
}

static void
report_syntax(struct reading *r, const yaml_parser_t *parser)
{
    int line =
        (int) (parser->problem_mark.line ? parser->problem_mark.line : parser->problem_offset);

    mistake(r, parser->problem_mark.line ? line + 1 : 1, "", "this is no YAML: %s%s%s%s",
            parser->problem ? parser->problem : "unreadable", parser->context ? " (" : "",
            parser->context ? parser->context : "", parser->context ? ")" : "");
}

static void
read_text(struct reading *r, const char *text, size_t len)
{
    yaml_parser_t parser;
    yaml_document_t doc, next;

    PR_CHECK(yaml_parser_initialize(&parser));
    yaml_parser_set_input_string(&parser, (const unsigned char *) text, len);
    if (!yaml_parser_load(&parser, &doc)) {
        report_syntax(r, &parser);
        yaml_parser_delete(&parser);
        return;
    }
    read_document(r, &doc);
    if (!yaml_parser_load(&parser, &next)) {
        report_syntax(r, &parser);
    } else {
        if (yaml_document_get_root_node(&next))
            mistake(r, (int) next.start_mark.line + 1, "", "a second document begins; one is read");
        yaml_document_delete(&next);
    }
    yaml_document_delete(&doc);
    yaml_parser_delete(&parser);
}

bool
config_parse(const char *path, const char *text, size_t len, FILE *report, struct config **ret,
             struct error *err)
{
    struct config *config = xcalloc(1, sizeof(*config));
    struct reading r = {.path = path, .report = report, .config = config};

    config->path = xstrdup(path);
    read_text(&r, text, len);
    if (r.mistakes > 0) {
        config_free(config);
        *ret = NULL;
        error_set_exit(err, ERR_STOP, EXIT_CONFIG, "config.invalid", "%s has %d mistake%s", path,
                       r.mistakes, r.mistakes == 1 ? "" : "s");
        return error_hint(err, "mend the lines above; `postrider config check` reads it again");
    }
    *ret = config;
    return true;
}

bool
config_load(const char *path, FILE *report, struct config **ret, struct error *err)
{
    FILE *file = fopen(path, "re");
    char *text = NULL;
    bool ok = false;

    *ret = NULL;
    if (!file) {
        error_set_exit(err, ERR_STOP, EXIT_CONFIG, "config.unreadable", "cannot read %s: %s", path,
                       strerror(errno));
        return error_hint(err,
                          "name the file with --config, or make one: postrider config sample > "
                          "postrider.yaml");
    }
    text = xmalloc(MOST_BYTES + 1);
    size_t len = fread(text, 1, MOST_BYTES + 1, file);
    if (ferror(file) || len > MOST_BYTES)
        error_set_exit(err, ERR_STOP, EXIT_CONFIG, "config.unreadable", "cannot read %s: %s", path,
                       len > MOST_BYTES ? "it is larger than 1 MB" : strerror(errno));
    else
        ok = config_parse(path, text, len, report, ret, err);
    free(text);
    fclose(file);
    return ok;
}

/* ------------------------------------------------------------------ freeing */

static void
free_consumer(struct consumer_config *c)
{
    for (size_t i = 0; i < c->handler_count; i++) {
        free(c->handlers[i].event_type);
        free(c->handlers[i].sql);
    }
    for (size_t i = 0; i < c->ignore_count; i++)
        free(c->ignore[i]);
    free(c->handlers);
    free(c->ignore);
    free(c->name);
    free(c->database);
    free(c->topic);
    free(c->owner);
}

void
config_free(struct config *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->outbox_count; i++) {
        free(c->outboxes[i].name);
        free(c->outboxes[i].database);
    }
    for (size_t i = 0; i < c->destination_count; i++) {
        free(c->destinations[i].name);
        free(c->destinations[i].transport);
        free(c->destinations[i].database);
        free(c->destinations[i].topic);
        free(c->destinations[i].path);
    }
    for (size_t i = 0; i < c->relay_count; i++)
        free(c->relays[i].name);
    for (size_t i = 0; i < c->consumer_count; i++)
        free_consumer(&c->consumers[i]);
    free(c->outboxes);
    free(c->destinations);
    free(c->relays);
    free(c->consumers);
    free(c->http_listen);
    free(c->path);
    free(c);
}
