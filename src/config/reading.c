#include "config/reading.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "config/values.h"
#include "core/alloc.h"

int
node_line(const yaml_node_t *node)
{
    return (int) node->start_mark.line + 1;
}

bool
node_is_empty(const yaml_node_t *node)
{
    return node->type == YAML_SCALAR_NODE && node->data.scalar.length == 0;
}

static const char *
scalar_text(const yaml_node_t *node)
{
    return (const char *) node->data.scalar.value;
}

/* Values are quoted as they stand in the file, so what a variable holds stays hidden. */
void
pair_expected(struct reading *r, const struct pair *pair, const char *fmt, ...)
{
    const yaml_node_t *node = pair->value;
    char what[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    if (node->type == YAML_SCALAR_NODE && !node_is_empty(node))
        mistake_add(&r->mistakes, pair->line, pair->where, "found \"%.300s\", expected %s",
                    scalar_text(node), what);
    else
        mistake_add(&r->mistakes, pair->line, pair->where, "found %s, expected %s",
                    node->type == YAML_SEQUENCE_NODE  ? "a list"
                    : node->type == YAML_MAPPING_NODE ? "a map"
                                                      : "nothing",
                    what);
}

bool
text_has_control(const char *text)
{
    for (; *text; text++)
        if ((unsigned char) *text < 0x20 || *text == 0x7f)
            return true;
    return false;
}

char *
pair_text(struct reading *r, const struct pair *pair, const char *what, bool many_lines)
{
    const yaml_node_t *node = pair->value;
    char *text, why[512];

    if (node->type != YAML_SCALAR_NODE || node_is_empty(node)) {
        pair_expected(r, pair, "%s%s", what,
                      node->type == YAML_MAPPING_NODE ? " (put text with {…} in double quotes)"
                                                      : "");
        return NULL;
    }
    if (strlen(scalar_text(node)) != node->data.scalar.length) {
        mistake_add(&r->mistakes, pair->line, pair->where, "found a NUL byte, expected %s", what);
        return NULL;
    }
    if (!value_expand(scalar_text(node), &text, why, sizeof(why))) {
        mistake_add(&r->mistakes, pair->line, pair->where, "%s", why);
        return NULL;
    }
    if (!many_lines && text_has_control(text)) {
        mistake_add(&r->mistakes, pair->line, pair->where,
                    "found a line break or another control character, expected %s", what);
        free(text);
        return NULL;
    }
    return text;
}

bool
reading_count(struct reading *r, const struct pair *of, size_t index)
{
    if (index >= READING_MOST)
        mistake_add(&r->mistakes, of->line, of->where, "found more than %d entries, expected fewer",
                    READING_MOST);
    else if (++r->entries == READING_MOST_TOTAL)
        mistake_add(&r->mistakes, of->line, of->where,
                    "found more than %d entries in all, expected fewer", READING_MOST_TOTAL);
    return index < READING_MOST && r->entries < READING_MOST_TOTAL;
}

/* Is this node good for a key, and there for the first time? */
static bool
check_key(struct reading *r, const yaml_node_t *map, const yaml_node_pair_t *pair,
          const char *where)
{
    const yaml_node_t *key = yaml_document_get_node(r->doc, pair->key);

    if (key->type != YAML_SCALAR_NODE || node_is_empty(key) ||
        strlen(scalar_text(key)) != key->data.scalar.length) {
        mistake_add(&r->mistakes, node_line(key), where,
                    "found a key that is no text, expected a "
                    "name");
        return false;
    }
    if (strcmp(scalar_text(key), "<<") == 0) {
        mistake_add(&r->mistakes, node_line(key), where,
                    "found the merge key <<, expected an option (repeat the options; anchors of "
                    "single values work)");
        return false;
    }
    for (const yaml_node_pair_t *p = map->data.mapping.pairs.start; p < pair; p++) {
        const yaml_node_t *before = yaml_document_get_node(r->doc, p->key);
        if (before->type != YAML_SCALAR_NODE || strcmp(scalar_text(before), scalar_text(key)) != 0)
            continue;
        mistake_add(&r->mistakes, node_line(key), where,
                    "found \"%s\" again, expected it once (it stands in line %d already)",
                    scalar_text(key), node_line(before));
        return false;
    }
    return true;
}

void
pair_each(struct reading *r, const struct pair *map, const char *what, pair_fn *each, void *arg)
{
    if (node_is_empty(map->value))
        return;
    if (map->value->type != YAML_MAPPING_NODE) {
        pair_expected(r, map, "%s", what);
        return;
    }
    const yaml_node_pair_t *first = map->value->data.mapping.pairs.start;
    const yaml_node_pair_t *end = map->value->data.mapping.pairs.top;
    for (const yaml_node_pair_t *p = first; p < end; p++) {
        if (!reading_count(r, map, (size_t) (p - first)))
            return;
        if (!check_key(r, map->value, p, map->where))
            continue;
        const yaml_node_t *key = yaml_document_get_node(r->doc, p->key);
        char *where = xasprintf("%s%s%s", map->where, *map->where ? "." : "", scalar_text(key));
        struct pair pair = {scalar_text(key), node_line(key),
                            yaml_document_get_node(r->doc, p->value), where};
        mistakes_place(&r->mistakes, where, pair.line);
        each(r, &pair, arg);
        free(where);
    }
}
