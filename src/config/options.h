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

#include "config/config.h"

enum option_type {
    OPTION_TEXT,     /* char * */
    OPTION_DSN,      /* char *, a connection string: never shown with its password */
    OPTION_TOPIC,    /* char *, a topic template */
    OPTION_LISTEN,   /* char *, address:port */
    OPTION_WORD,     /* an enum, int-sized: one of `words`, separated by '|' */
    OPTION_INTEGER,  /* int, least to most */
    OPTION_DURATION, /* int64_t microseconds, least to most */
    OPTION_NAME_OF,  /* pointer to an element of the section named in `words` */
    OPTION_LIST,     /* char ** and size_t behind it */
    OPTION_HANDLERS, /* struct handler_config * and size_t behind it */
};

struct option {
    const char *section; /* "outboxes", … "log" */
    const char *key;     /* "database", "from.topic" */
    enum option_type type;
    size_t offset; /* in the section's struct */
    bool required;
    const char *only; /* destinations: the one transport it belongs to, or NULL */
    const char *words;
    int64_t least, most;
    const char *fallback; /* default as it would be written; NULL: none */
    const char *help;
};

extern const struct option options[];
extern const size_t option_count;

struct section {
    const char *name;
    bool named;         /* a map from names of the user's own to elements */
    size_t size;        /* of the element's struct */
    size_t list_offset; /* in struct config: array, then count; else of the struct itself */
    const char *help;
};

extern const struct section sections[];
extern const size_t section_count;

/* The option with this key in a section, or NULL. */
const struct option *option_find(const char *section, const char *key);

/* Writes a commented file that is itself a good configuration. */
void options_write_sample(FILE *out);

/* Writes the manual page postrider.yaml(5) as scdoc source. */
void options_write_manual(FILE *out);

/* Writes the configuration as it is in force, defaults included, passwords not. */
void options_write_config(const struct config *config, FILE *out);

#endif
