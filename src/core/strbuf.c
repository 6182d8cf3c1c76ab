#include "core/strbuf.h"

#include <endian.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"

static void
reserve(struct strbuf *buf, size_t more)
{
    size_t need = buf->len + more + 1;

    if (need <= buf->cap)
        return;
    size_t cap = buf->cap ? buf->cap * 2 : 64;
    while (cap < need)
        cap *= 2;
    buf->data = xrealloc(buf->data, cap);
    buf->cap = cap;
}

const char *
strbuf_str(const struct strbuf *buf)
{
    return buf->data ? buf->data : "";
}

char *
strbuf_extend(struct strbuf *buf, size_t len)
{
    reserve(buf, len);
    char *at = buf->data + buf->len;
    buf->len += len;
    buf->data[buf->len] = '\0';
    return at;
}

void
strbuf_add(struct strbuf *buf, const void *data, size_t len)
{
    char *at = strbuf_extend(buf, len);

    if (len > 0)
        memcpy(at, data, len);
}

void
strbuf_adds(struct strbuf *buf, const char *text)
{
    strbuf_add(buf, text, strlen(text));
}

void
strbuf_addc(struct strbuf *buf, char c)
{
    *strbuf_extend(buf, 1) = c;
}

void
strbuf_addf(struct strbuf *buf, const char *fmt, ...)
{
    va_list ap, again;

    va_start(ap, fmt);
    va_copy(again, ap);
    int len = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (len > 0) {
        char *at = strbuf_extend(buf, (size_t) len);
        vsnprintf(at, (size_t) len + 1, fmt, again);
    }
    va_end(again);
}

void
strbuf_add_u16(struct strbuf *buf, uint16_t value)
{
    value = htobe16(value);
    memcpy(strbuf_extend(buf, sizeof(value)), &value, sizeof(value));
}

void
strbuf_add_u32(struct strbuf *buf, uint32_t value)
{
    value = htobe32(value);
    memcpy(strbuf_extend(buf, sizeof(value)), &value, sizeof(value));
}

void
strbuf_add_u64(struct strbuf *buf, uint64_t value)
{
    value = htobe64(value);
    memcpy(strbuf_extend(buf, sizeof(value)), &value, sizeof(value));
}

void
strbuf_reset(struct strbuf *buf)
{
    buf->len = 0;
    if (buf->data)
        buf->data[0] = '\0';
}

void
strbuf_release(struct strbuf *buf)
{
    free(buf->data);
    *buf = (struct strbuf){0};
}

char *
strbuf_take(struct strbuf *buf)
{
    char *data = buf->data ? buf->data : xstrdup("");

    *buf = (struct strbuf){0};
    return data;
}
