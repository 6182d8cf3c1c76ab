#include "core/error.h"

#include <execinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/utf8.h"

/* For a line of the log and a column of the database, wherever its end was cut off. */
static void
one_line(char *text)
{
    utf8_mend(text);
    for (char *at = text; *at; at++)
        if (*at == '\n' || *at == '\r' || *at == '\t')
            *at = ' ';
    for (size_t len = strlen(text); len > 0 && text[len - 1] == ' '; len--)
        text[len - 1] = '\0';
}

static void PR_PRINTF(5, 0) set(struct error *err, enum error_class cls, enum exit_code exit,
                                const char *code, const char *fmt, va_list ap)
{
    memset(err, 0, sizeof(*err));
    err->cls = cls;
    err->exit = exit;
    snprintf(err->code, sizeof(err->code), "%s", code);
    vsnprintf(err->text, sizeof(err->text), fmt, ap);
    one_line(err->text);
}

bool
error_set(struct error *err, enum error_class cls, const char *code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    set(err, cls, EXIT_FAULT, code, fmt, ap);
    va_end(ap);
    return false;
}

bool
error_set_exit(struct error *err, enum error_class cls, enum exit_code exit, const char *code,
               const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    set(err, cls, exit, code, fmt, ap);
    va_end(ap);
    return false;
}

bool
error_hint(struct error *err, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(err->hint, sizeof(err->hint), fmt, ap);
    va_end(ap);
    one_line(err->hint);
    return false;
}

bool
error_wrap(struct error *err, const char *fmt, ...)
{
    char front[256], whole[sizeof(err->text) + sizeof(front) + 2];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(front, sizeof(front), fmt, ap);
    va_end(ap);
    snprintf(whole, sizeof(whole), "%s: %s", front, err->text);
    /* A text too long loses its end, never its beginning: that says where we were. */
    memcpy(err->text, whole, sizeof(err->text) - 1);
    err->text[sizeof(err->text) - 1] = '\0';
    utf8_mend(err->text);
    return false;
}

const char *
error_class_name(enum error_class cls)
{
    static const char *const names[] = {
        [ERR_NONE] = "none",           [ERR_DESTINATION] = "destination",
        [ERR_TRANSIENT] = "transient", [ERR_PERMANENT] = "permanent",
        [ERR_UNKNOWN] = "unknown",     [ERR_REJECTED] = "rejected",
        [ERR_STOP] = "stop",
    };
    return names[cls];
}

const char *
error_scope_name(enum error_scope scope)
{
    static const char *const names[] = {
        [SCOPE_EVENT] = "event",
        [SCOPE_HANDLER] = "handler",
        [SCOPE_SERVER] = "server",
    };
    return names[scope];
}

void
check_failed(const char *file, int line, const char *cond)
{
    void *frames[64];

    fprintf(stderr, "postrider: broken invariant at %s:%d: %s\n", file, line, cond);
    backtrace_symbols_fd(frames, backtrace(frames, (int) PR_LENGTH(frames)), STDERR_FILENO);
    abort();
}
