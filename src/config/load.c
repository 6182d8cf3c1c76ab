#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "config/reading.h"
#include "config/rules.h"
#include "core/alloc.h"

enum {
    MOST_BYTES = 1024 * 1024,
    MOST_DEPTH = 32, /* the options need six */
};

/* ------------------------------------------------------------------ grammar */

/* libyaml knows the line of a mistake in grammar, but only the byte of one in encoding. */
static size_t
syntax_offset(const yaml_parser_t *parser, const char *text, size_t len, int *ret_line)
{
    size_t at = parser->problem_mark.index;

    *ret_line = (int) parser->problem_mark.line + 1;
    if (parser->error != YAML_READER_ERROR)
        return at < len ? at : len;
    at = parser->problem_offset < len ? parser->problem_offset : len;
    *ret_line = 1;
    for (size_t i = 0; i < at; i++)
        *ret_line += text[i] == '\n';
    return at;
}

/* What people get wrong most, told from the line that libyaml stopped in. */
static const char *
syntax_hint(const char *text, size_t len, size_t at)
{
    size_t start = at, end = at;

    while (start > 0 && text[start - 1] != '\n')
        start--;
    while (end < len && text[end] != '\n')
        end++;
    size_t blank = start;
    while (blank < end && (text[blank] == ' ' || text[blank] == '\t'))
        blank++;
    if (memchr(text + start, '\t', blank - start))
        return " (the line begins with a tab: indent with spaces)";
    if (memmem(text + start, end - start, "${", 2))
        return " (put a value with ${…} in double quotes)";
    return "";
}

static void
report_syntax(struct reading *r, const yaml_parser_t *parser, const char *text, size_t len)
{
    int line;
    size_t at = syntax_offset(parser, text, len, &line);

    if (parser->error == YAML_READER_ERROR)
        mistake_add(&r->mistakes, line, "", "found bytes that are no text (%s), expected UTF-8",
                    parser->problem);
    else
        mistake_add(&r->mistakes, line, "", "%s%s%s, expected YAML%s",
                    parser->problem ? parser->problem : "found something else",
                    parser->context ? " " : "", parser->context ? parser->context : "",
                    syntax_hint(text, len, at));
}

/* libyaml's loader keeps no limit, and its scanner looks at every open level per token. */
static bool
is_shallow(struct reading *r, const char *text, size_t len)
{
    yaml_parser_t parser;
    yaml_event_t event;
    int depth = 0;
    bool done = false, ok = true;

    PR_CHECK(yaml_parser_initialize(&parser));
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *) text, len);
    while (!done && ok && yaml_parser_parse(&parser, &event)) {
        if (event.type == YAML_MAPPING_START_EVENT || event.type == YAML_SEQUENCE_START_EVENT)
            depth++;
        if (event.type == YAML_MAPPING_END_EVENT || event.type == YAML_SEQUENCE_END_EVENT)
            depth--;
        done = event.type == YAML_STREAM_END_EVENT;
        if (depth > MOST_DEPTH) {
            mistake_add(&r->mistakes, (int) event.start_mark.line + 1, "",
                        "found more than %d levels, expected at most six", MOST_DEPTH);
            ok = false;
        }
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    return ok;
}

static void
read_text(struct reading *r, const char *text, size_t len)
{
    yaml_parser_t parser;
    yaml_document_t doc, next;

    if (!is_shallow(r, text, len))
        return;
    PR_CHECK(yaml_parser_initialize(&parser));
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *) text, len);
    if (!yaml_parser_load(&parser, &doc)) {
        report_syntax(r, &parser, text, len);
        goto out;
    }
    config_build(r, &doc);
    if (!yaml_parser_load(&parser, &next)) {
        report_syntax(r, &parser, text, len);
    } else {
        if (yaml_document_get_root_node(&next))
            mistake_add(&r->mistakes, (int) next.start_mark.line + 1, "",
                        "found a second document, expected one");
        yaml_document_delete(&next);
    }
    yaml_document_delete(&doc);
out:
    yaml_parser_delete(&parser);
}

bool
config_parse(const char *path, const char *text, size_t len, FILE *report, struct config **ret,
             struct error *err)
{
    struct config *config = xcalloc(1, sizeof(*config));
    struct reading r = {.config = config};

    config->path = xstrdup(path);
    read_text(&r, text, len);
    size_t count = mistakes_total(&r.mistakes);
    if (count > 0) {
        mistakes_write(&r.mistakes, path, report);
        config_free(config);
        config = NULL;
        error_set_exit(err, ERR_STOP, EXIT_CONFIG, "config.invalid", "%s has %zu mistake%s", path,
                       count, count == 1 ? "" : "s");
        error_hint(err, "mend these lines, then `postrider config check`");
    }
    config_build_release(&r);
    mistakes_release(&r.mistakes);
    *ret = config;
    return config != NULL;
}

static bool
unreadable(const char *path, const char *why, const char *hint, struct error *err)
{
    error_set_exit(err, ERR_STOP, EXIT_CONFIG, "config.unreadable", "cannot read %s: %s", path,
                   why);
    return error_hint(err, "%s", hint);
}

bool
config_load(const char *path, FILE *report, struct config **ret, struct error *err)
{
    FILE *file = fopen(path, "re");
    bool ok = false;

    *ret = NULL;
    if (!file)
        return unreadable(path, strerror(errno),
                          errno == ENOENT ? "name the file with --config, or make one: "
                                            "postrider config sample > postrider.yaml"
                                          : "name a file you may read with --config",
                          err);
    char *text = xmalloc(MOST_BYTES + 1);
    size_t len = fread(text, 1, MOST_BYTES + 1, file);
    if (ferror(file))
        unreadable(path, strerror(errno), "name a regular file with --config", err);
    else if (len > MOST_BYTES)
        unreadable(path, "it is larger than 1 MB", "is it the right file?", err);
    else
        ok = config_parse(path, text, len, report, ret, err);
    free(text);
    fclose(file);
    return ok;
}

/* ------------------------------------------------------------------ freeing */

static void
free_list(char **list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(list[i]);
    free(list);
}

static void
free_outbox(struct outbox_config *o)
{
    struct columns_config *c = &o->columns;
    char *all[] = {o->name,          o->database,       o->table,        o->aggregate_type,
                   c->event_id,      c->aggregate_type, c->aggregate_id, c->aggregate_version,
                   c->event_type,    c->payload,        c->headers,      c->content_type,
                   c->occurred_at,   o->mark.column,    o->mark.pending, o->mark.published,
                   o->mark.discarded};

    for (size_t i = 0; i < PR_LENGTH(all); i++)
        free(all[i]);
}

static void
free_destination(struct destination_config *d)
{
    char *all[] = {d->name, d->transport, d->bootstrap, d->database, d->topic, d->path};

    for (size_t i = 0; i < PR_LENGTH(all); i++)
        free(all[i]);
    for (size_t i = 0; i < d->setting_count; i++) {
        free(d->settings[i].name);
        free(d->settings[i].value);
    }
    free(d->settings);
}

static void
free_relay(struct relay_config *r)
{
    free_list(r->filter.aggregate_types, r->filter.aggregate_type_count);
    free_list(r->filter.event_types, r->filter.event_type_count);
    free(r->owner);
    free(r->name);
}

static void
free_consumer(struct consumer_config *c)
{
    for (size_t i = 0; i < c->handler_count; i++) {
        free(c->handlers[i].event_type);
        free(c->handlers[i].sql);
        rules_release(&c->handlers[i].errors);
    }
    rules_release(&c->errors);
    free_list(c->ignore, c->ignore_count);
    free(c->handlers);
    free(c->name);
    free(c->database);
    free(c->start);
    free(c->topic);
    free(c->owner);
}

static void
free_check(struct check_config *c)
{
    free(c->name);
    free(c->left.database);
    free(c->left.sql);
    free(c->right.database);
    free(c->right.sql);
}

void
config_free(struct config *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->outbox_count; i++)
        free_outbox(&c->outboxes[i]);
    for (size_t i = 0; i < c->destination_count; i++)
        free_destination(&c->destinations[i]);
    for (size_t i = 0; i < c->relay_count; i++)
        free_relay(&c->relays[i]);
    for (size_t i = 0; i < c->consumer_count; i++)
        free_consumer(&c->consumers[i]);
    for (size_t i = 0; i < c->check_count; i++)
        free_check(&c->checks[i]);
    free(c->outboxes);
    free(c->destinations);
    free(c->relays);
    free(c->consumers);
    free(c->checks);
    free(c->http_listen);
    free(c->path);
    free(c);
}
