#include "core/log.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/jsonw.h"
#include "core/strbuf.h"

static enum log_level least_level = LOG_INFO;
static enum log_format line_format = LOG_TEXT;

static _Thread_local struct {
    char key[16];
    char value[128];
} context;

static const char *const level_names[] = {"debug", "info", "warn", "error"};

void
log_setup(enum log_level least, enum log_format format)
{
    least_level = least;
    line_format = format;
}

void
log_context(const char *key, const char *value)
{
    strncpy(context.key, key, sizeof(context.key) - 1);
    strncpy(context.value, value, sizeof(context.value) - 1);
}

static bool
is_bare(const char *text)
{
    if (!*text)
        return false;
    for (; *text; text++)
        if (*text <= ' ' || *text == '"' || *text == '=' || *text == '\\' || *text == 0x7f)
            return false;
    return true;
}

static void
add_text(struct strbuf *line, const char *key, const char *value)
{
    strbuf_addf(line, " %s=", key);
    if (is_bare(value))
        strbuf_adds(line, value);
    else
        json_quote(line, value, strlen(value));
}

static void
format_text(struct strbuf *line, const char *when, enum log_level level, const char *event,
            const struct log_field *fields)
{
    strbuf_addf(line, "ts=%s level=%s event=%s", when, level_names[level], event);
    if (context.key[0])
        add_text(line, context.key, context.value);
    for (; fields->key; fields++) {
        if (fields->is_text)
            add_text(line, fields->key, fields->text ? fields->text : "");
        else
            strbuf_addf(line, " %s=%lld", fields->key, (long long) fields->number);
    }
}

static void
format_json(struct strbuf *line, const char *when, enum log_level level, const char *event,
            const struct log_field *fields)
{
    struct jsonw w = {.out = line};

    jsonw_object(&w, NULL);
    jsonw_str(&w, "ts", when);
    jsonw_str(&w, "level", level_names[level]);
    jsonw_str(&w, "event", event);
    if (context.key[0])
        jsonw_str(&w, context.key, context.value);
    for (; fields->key; fields++) {
        if (fields->is_text)
            jsonw_str(&w, fields->key, fields->text);
        else
            jsonw_i64(&w, fields->key, fields->number);
    }
    jsonw_end(&w);
}

static void
write_all(const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = write(STDERR_FILENO, data, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return; /* nowhere left to complain */
        data += n;
        len -= (size_t) n;
    }
}

void
log_write(enum log_level level, const char *event, const struct log_field *fields)
{
    struct strbuf line = {0};
    char when[CLOCK_TEXT];

    if (level < least_level)
        return;
    clock_format(clock_wall_us(), when);
    if (line_format == LOG_JSON)
        format_json(&line, when, level, event, fields);
    else
        format_text(&line, when, level, event, fields);
    strbuf_addc(&line, '\n');
    write_all(line.data, line.len);
    strbuf_release(&line);
}

void
log_failure(enum log_level level, const char *event, const struct error *err)
{
    struct log_field fields[6] = {
        F_STR("code", err->code),
        F_STR("class", error_class_name(err->cls)),
        F_STR("error", err->text),
    };
    int n = 3;

    if (err->sqlstate[0])
        fields[n++] = F_STR("sqlstate", err->sqlstate);
    if (err->hint[0])
        fields[n++] = F_STR("hint", err->hint);
    log_write(level, event, fields);
}
