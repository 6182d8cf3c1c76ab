/*
 * reading.h — the YAML document as maps of pairs, each with its line and its path.
 *
 * Threads: the owner's.
 * Memory:  nodes belong to libyaml's document; a pair is good within its callback.
 */
#ifndef PR_READING_H
#define PR_READING_H

#include <stdbool.h>
#include <stddef.h>
#include <yaml.h>

#include "config/config.h"
#include "config/mistakes.h"

enum {
    READING_MOST = 1000,        /* entries of one map or list: finding doubles is quadratic */
    READING_MOST_TOTAL = 20000, /* an alias counts each time, so that none can be a bomb */
};

/* One pass over a file. */
struct reading {
    struct mistakes mistakes;
    yaml_document_t *doc;
    struct config *config; /* what is being filled */
    size_t entries;        /* read so far */
    struct reference *references;
    size_t reference_count, reference_cap;
};

/* One pair of a map. */
struct pair {
    const char *key;
    int line; /* the key's: a value may begin lines later */
    const yaml_node_t *value;
    const char *where; /* "relays.x.lease" */
};

typedef void pair_fn(struct reading *r, const struct pair *pair, void *arg);

/* Calls `each` for every pair of what should be a map.  Nothing at all is an empty map. */
void pair_each(struct reading *r, const struct pair *map, const char *what, pair_fn *each,
               void *arg);

/* The mistake "found …, expected …"; quotes the value as it stands in the file. */
void pair_expected(struct reading *r, const struct pair *pair, const char *fmt, ...)
    PR_PRINTF(3, 4);

/*
 * The value's text with variables filled in, which the caller frees; NULL after a mistake
 * was reported.  `what` says what is expected.
 */
char *pair_text(struct reading *r, const struct pair *pair, const char *what, bool many_lines);

/* Counts an entry of a map or list, its `index`-th; false, and reported, if there are too many. */
bool reading_count(struct reading *r, const struct pair *of, size_t index) PR_MUSTCHECK;

bool text_has_control(const char *text);
int node_line(const yaml_node_t *node);

/* Nothing is written there, or "". */
bool node_is_empty(const yaml_node_t *node);

/* Fills r->config from the document and checks it (build.c). */
void config_build(struct reading *r, yaml_document_t *doc);
void config_build_release(struct reading *r);

#endif
