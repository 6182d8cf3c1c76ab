/*
 * log.h — structured log lines on stderr: an event name and fields, as logfmt or
 * as one JSON object a line.
 *
 *     log_info("relay.claimed", F_STR("relay", name), F_I64("lanes", n));
 *
 * The event name is stable and listed in docs/guide/logs.md.  Never a payload, a
 * header's value, or a password.  The line carries time, level, and the context
 * bound to the thread (relay or consumer).
 *
 * Threads: any; a line is written whole.
 */
#ifndef PR_LOG_H
#define PR_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };
enum log_format { LOG_TEXT, LOG_JSON };

struct log_field {
    const char *key; /* NULL ends the list */
    const char *text;
    int64_t number;
    bool is_text;
};

#define F_STR(k, v) ((struct log_field){.key = (k), .text = (v), .is_text = true})
#define F_I64(k, v) ((struct log_field){.key = (k), .number = (v)})

/* For the whole process; call before threads start. */
void log_setup(enum log_level least, enum log_format format);

/* Binds key=value to every later line of this thread, e.g. relay=orders. */
void log_context(const char *key, const char *value);

void log_write(enum log_level level, const char *event, const struct log_field *fields);

/* An error with its code, class, text, hint and SQLSTATE as fields. */
void log_failure(enum log_level level, const char *event, const struct error *err);

/* The first element only lets the list be empty; it is not passed on. */
#define LOG_AT(level, event, ...)                                                                  \
    log_write(level, event,                                                                        \
              (const struct log_field[]){{.key = NULL}, ##__VA_ARGS__, {.key = NULL}} + 1)
#define log_debug(event, ...) LOG_AT(LOG_DEBUG, event, ##__VA_ARGS__)
#define log_info(event, ...) LOG_AT(LOG_INFO, event, ##__VA_ARGS__)
#define log_warn(event, ...) LOG_AT(LOG_WARN, event, ##__VA_ARGS__)
#define log_error(event, ...) LOG_AT(LOG_ERROR, event, ##__VA_ARGS__)

#endif
