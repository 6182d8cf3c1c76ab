/*
 * config.h — what the YAML file says, checked and complete.
 *
 * The file is read once, every mistake is reported in one go with line, finding,
 * expectation and hint, and only a file without mistakes becomes a struct config.
 * The table in options.c is the one description of every option: parser, defaults,
 * `config check`, `config sample`, `--help` and postrider.yaml(5) are made from it.
 *
 * Threads: read-only after config_load(), so any thread may read it.
 * Memory:  the config owns everything it points to, until config_free().
 */
#ifndef PR_CONFIG_H
#define PR_CONFIG_H

#include <regex.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "core/error.h"
#include "core/log.h"
#include "core/strbuf.h"

enum versions { VERSIONS_DENSE, VERSIONS_SPARSE };

/* A table of the user's own: which of its columns is what.  NULL: as the pattern names it. */
struct columns_config {
    char *event_id;
    char *aggregate_type;
    char *aggregate_id;
    char *aggregate_version;
    char *event_type;
    char *payload;
    char *headers;
    char *content_type;
    char *occurred_at;
};

/* Its state column, and what stands in it. */
struct mark_config {
    char *column;
    char *pending;
    char *published;
    char *discarded;
};

struct outbox_config {
    char *name;
    int line;
    char *database;       /* connection string of the database that holds the outbox */
    char *table;          /* NULL: postrider.outbox; else the fields below tell how to read it */
    char *aggregate_type; /* of a table that has no such column */
    struct columns_config columns;
    struct mark_config mark;
    enum versions versions;
    int64_t retention_us;
};

/* One setting that is handed to a client library as it is. */
struct setting_config {
    char *name;
    char *value;
};

struct destination_config {
    char *name;
    int line;
    char *transport;                 /* "postgres", "kafka", "file" or "null" */
    char *bootstrap;                 /* kafka: "host:port,…" */
    struct setting_config *settings; /* kafka: librdkafka's own */
    size_t setting_count;
    char *database;       /* postgres */
    char *topic;          /* template: literal text and {aggregate_type} */
    char *path;           /* file; "-" is stdout */
    int partitions;       /* kafka: 0 is as many as the topic has */
    int64_t retention_us; /* postgres: how long the log keeps messages */
};

enum start_at { START_EARLIEST, START_NOW, START_TIME };

/* Which events a relay publishes; an empty list lets all through. */
struct filter_config {
    char **aggregate_types;
    size_t aggregate_type_count;
    char **event_types;
    size_t event_type_count;
};

struct relay_config {
    char *name;
    int line;
    const struct outbox_config *outbox;
    const struct destination_config *destination;
    enum start_at start;
    struct filter_config filter;
    char *owner; /* who is asked about its dead letters */
    int64_t lease_us;
    int64_t poll_cap_us; /* longest wait between two looks at a quiet outbox */
};

enum consume_order { ORDER_STREAM, ORDER_LATEST, ORDER_NONE };
enum first_rule { FIRST_ANY, FIRST_ONE };

/* What an error of a handler means, where that is not as the SQLSTATE suggests (rules.h). */
struct error_rule {
    int line;
    char *sqlstate; /* a whole code, or its first two characters; NULL: any */
    char *message;  /* POSIX extended regular expression, found anywhere; NULL: any */
    regex_t *pattern;
    enum error_class cls;
};

struct error_rules {
    struct error_rule *list;
    size_t count;
};

struct handler_config {
    char *event_type;
    int line;
    char *sql;
    struct error_rules errors; /* asked before the consumer's */
};

struct consumer_config {
    char *name;
    int line;
    char *database;
    const struct destination_config *destination; /* from.destination */
    char *topic;                                  /* from.topic */
    char *start; /* from.start, of a consumer without positions; NULL: earliest */
    enum consume_order order;
    enum first_rule first;
    struct handler_config *handlers;
    size_t handler_count;
    struct error_rules errors;
    char **ignore; /* event types that advance the stream without a handler */
    size_t ignore_count;
    int batch;         /* messages in one transaction at most */
    int parked_stream; /* parked_limit.stream: so many of one stream, and its partition rests */
    int parked_total;  /* parked_limit.total: so many, and nothing more is read */
    char *owner;       /* who is asked about its dead letters */
    int64_t lease_us;
    int64_t retention_us; /* of dedupe records */
};

/* One query of a check of the user's own: rows of a key and a value. */
struct check_side {
    char *database;
    char *sql;
};

struct check_config {
    char *name;
    int line;
    struct check_side left, right;
    int64_t settle_us; /* a difference is looked at again after this */
};

struct config {
    char *path;
    struct outbox_config *outboxes;
    size_t outbox_count;
    struct destination_config *destinations;
    size_t destination_count;
    struct relay_config *relays;
    size_t relay_count;
    struct consumer_config *consumers;
    size_t consumer_count;
    struct check_config *checks;
    size_t check_count;
    int64_t reconcile_every_us; /* 0: never by itself */
    int64_t reconcile_window_us;
    char *http_listen; /* "127.0.0.1:9187"; NULL: no HTTP server */
    enum log_level log_level;
    enum log_format log_format;
};

/*
 * Reads and checks the file.  On failure every mistake has been written to
 * `report`, one line each and in the order of the lines, as
 *     postrider.yaml:12: relays.x.outbox: found "regs", expected a name from outboxes (did you
 *     mean "registrations"?)
 * and err (code config.invalid, exit 78) counts them.
 */
bool config_load(const char *path, FILE *report, struct config **ret,
                 struct error *err) PR_MUSTCHECK;
/* The same from memory; `path` is what the report calls it. */
bool config_parse(const char *path, const char *text, size_t len, FILE *report, struct config **ret,
                  struct error *err) PR_MUSTCHECK;
void config_free(struct config *config); /* NULL is fine */

/* What from.start says; *ret_us is the moment of START_TIME.  False: nothing known. */
bool start_parse(const char *text, enum start_at *ret, int64_t *ret_us) PR_MUSTCHECK;

/* The table an outbox is read from, as postrider.relay keeps it. */
const char *outbox_table(const struct outbox_config *outbox);

/* The filter as postrider.relay keeps it, in `out`; NULL if it lets everything through. */
const char *filter_json(const struct filter_config *filter, struct strbuf *out);

#endif
