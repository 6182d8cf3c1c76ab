#include "core/alloc.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"

static void *
must(void *memory, size_t size)
{
    if (!memory && size > 0) {
        fprintf(stderr, "postrider: out of memory (%zu bytes wanted)\n", size);
        _exit(EXIT_FAULT);
    }
    return memory;
}

void *
xmalloc(size_t size)
{
    return must(malloc(size), size);
}

void *
xcalloc(size_t count, size_t size)
{
    return must(calloc(count, size), count && size ? size : 0);
}

void *
xrealloc(void *old, size_t size)
{
    return must(realloc(old, size), size);
}

void *
xmemdup(const void *data, size_t size)
{
    void *copy = xmalloc(size);

    if (size > 0)
        memcpy(copy, data, size);
    return copy;
}

char *
xstrdup(const char *text)
{
    return xmemdup(text, strlen(text) + 1);
}

char *
xasprintf(const char *fmt, ...)
{
    va_list ap;
    char *text = NULL;

    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0)
        text = NULL;
    va_end(ap);
    return must(text, strlen(fmt));
}
