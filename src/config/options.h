/*
 * options.h — the one table of every option: the parser, the defaults, `config show`,
 * `config sample` and postrider.yaml(5) are all made from it.
 *
 * Threads: constant.
 */
#ifndef PR_OPTIONS_H
#define PR_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "config/config.h"

/* Of each: the field it fills. */
enum option_type {
    OPTION_TEXT,     /* char *, one of `words` if there are any */
    OPTION_SQL,      /* char *, a query, which may have several lines */
    OPTION_DSN,      /* char *, a connection string: never shown with its password */
    OPTION_TOPIC,    /* char *, a topic template */
    OPTION_LISTEN,   /* char *, address:port */
    OPTION_WORD,     /* an enum, int-sized, numbered as `words` */
    OPTION_INTEGER,  /* int, least to most */
    OPTION_DURATION, /* int64_t microseconds, least to most */
    OPTION_NAME_OF,  /* pointer to an element of the section named in `words` */
    OPTION_LIST,     /* char ** and size_t behind it */
    OPTION_SETTINGS, /* struct setting_config * and size_t behind it */
    OPTION_HANDLERS, /* struct handler_config * and size_t behind it */
    OPTION_RULES,    /* struct error_rules */
};

struct option {
    const char *section; /* "outboxes", … "log" */
    const char *key;     /* "database"; "from.topic" lies in a map of its own */
    enum option_type type;
    size_t offset; /* in the section's struct */
    bool required;
    const char *only;  /* the transports it belongs to, separated by '|', or NULL */
    const char *words; /* separated by '|' */
    int64_t least, most;
    const char *fallback; /* default as it would be written; NULL: none */
    const char *example;  /* for the sample, as written there; NULL: its default, commented out */
    const char *help;     /* one sentence or two */
    const char *more;     /* what the manual adds, or NULL */
};

/* Most options the table may ever have; the parser keeps a number for each. */
enum { OPTIONS_MOST = 96 };

extern const struct option options[];
extern const size_t option_count;

struct section {
    const char *name;
    bool named;         /* a map from names of the user's own to elements */
    size_t size;        /* of the element's struct, which begins with its name and its line */
    size_t list_offset; /* in struct config: array, then count */
    const char *sample; /* name of the element in the sample */
    const char *help;
};

extern const struct section sections[];
extern const size_t section_count;

/* NULL if there is none of that name. */
const struct section *section_find(const char *name);
const struct option *option_find(const char *section, const char *key);

/* The elements of a named section. */
size_t section_length(const struct section *section, const struct config *config);
void *section_element(const struct section *section, const struct config *config, size_t i);
const char *element_name(const void *element);

/* Does this option mean nothing to the element, a destination of another transport? */
bool option_is_foreign(const struct option *o, const void *element);

/* The key without the map it lies in: "topic" of "from.topic". */
const char *option_last_key(const struct option *o);

/* What a value must be: "a number from 1 to 1024".  Returns `text`. */
const char *option_expected(const struct option *o, char *text, size_t size);

/* Writes a commented file that is itself a good configuration. */
void options_write_sample(FILE *out);

/* Writes the manual page postrider.yaml(5) as scdoc source. */
void options_write_manual(FILE *out);

/* Writes text in which nothing is markup to scdoc. */
void scdoc_text(FILE *out, const char *text);

/* Writes the configuration as it is in force, defaults included, passwords not. */
void options_write_config(const struct config *config, FILE *out);
void options_write_json(const struct config *config, FILE *out);

#endif
