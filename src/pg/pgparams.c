#include "pg/pgparams.h"

#include <string.h>

#include "core/error.h"

static void
add(struct pgparams *p, const char *value, size_t len, int format)
{
    PR_CHECK(p->count < PGPARAMS_MAX);
    p->values[p->count] = value;
    p->lengths[p->count] = (int) len;
    p->formats[p->count] = format;
    p->count++;
}

static void
add_copy(struct pgparams *p, const struct strbuf *bytes)
{
    add(p, arena_dup(p->arena, bytes->data, bytes->len), bytes->len, 1);
}

static void
add_integer(struct pgparams *p, uint64_t value, int bytes)
{
    char *at = arena_alloc(p->arena, 8);

    for (int i = 0; i < bytes; i++)
        at[i] = (char) (value >> (8 * (bytes - 1 - i)));
    add(p, at, (size_t) bytes, 1);
}

void
pgparams_binary(struct pgparams *p)
{
    p->binary_result = true;
}

void
pgparams_text(struct pgparams *p, const char *text)
{
    add(p, text, 0, 0);
}

void
pgparams_i64(struct pgparams *p, int64_t value)
{
    add_integer(p, (uint64_t) value, 8);
}

void
pgparams_i32(struct pgparams *p, int32_t value)
{
    add_integer(p, (uint64_t) value, 4);
}

void
pgparams_i16(struct pgparams *p, int16_t value)
{
    add_integer(p, (uint64_t) value, 2);
}

void
pgparams_uuid(struct pgparams *p, const struct uuid *id)
{
    add(p, arena_dup(p->arena, id->b, sizeof(id->b)), sizeof(id->b), 1);
}

void
pgparams_bytes(struct pgparams *p, const void *data, size_t len)
{
    add(p, data, len, 1);
}

void
pgarray_start(struct pgarray *a, unsigned element)
{
    a->element = element;
    a->count = 0;
    a->has_null = false;
    strbuf_reset(&a->data);
}

void
pgarray_i64(struct pgarray *a, int64_t value)
{
    strbuf_add_u32(&a->data, 8);
    strbuf_add_u64(&a->data, (uint64_t) value);
    a->count++;
}

void
pgarray_i32(struct pgarray *a, int32_t value)
{
    strbuf_add_u32(&a->data, 4);
    strbuf_add_u32(&a->data, (uint32_t) value);
    a->count++;
}

void
pgarray_i16(struct pgarray *a, int16_t value)
{
    strbuf_add_u32(&a->data, 2);
    strbuf_add_u16(&a->data, (uint16_t) value);
    a->count++;
}

void
pgarray_char(struct pgarray *a, char value)
{
    pgarray_bytes(a, &value, 1);
}

void
pgarray_text(struct pgarray *a, const char *text)
{
    if (text)
        pgarray_bytes(a, text, strlen(text));
    else
        pgarray_null(a);
}

void
pgarray_bytes(struct pgarray *a, const void *data, size_t len)
{
    strbuf_add_u32(&a->data, (uint32_t) len);
    strbuf_add(&a->data, data, len);
    a->count++;
}

void
pgarray_uuid(struct pgarray *a, const struct uuid *id)
{
    pgarray_bytes(a, id->b, sizeof(id->b));
}

void
pgarray_null(struct pgarray *a)
{
    strbuf_add_u32(&a->data, UINT32_MAX); /* length -1 */
    a->has_null = true;
    a->count++;
}

void
pgarray_release(struct pgarray *a)
{
    strbuf_release(&a->data);
}

/* ndim, has-null flag, element type, then per dimension its length and lower bound. */
static void
append_header(struct strbuf *out, const struct pgarray *a)
{
    strbuf_add_u32(out, a->count > 0 ? 1 : 0);
    strbuf_add_u32(out, a->has_null ? 1 : 0);
    strbuf_add_u32(out, a->element);
    if (a->count > 0) {
        strbuf_add_u32(out, (uint32_t) a->count);
        strbuf_add_u32(out, 1);
    }
}

void
pgarray_append_field(struct strbuf *out, const struct pgarray *a)
{
    strbuf_add_u32(out, (uint32_t) (a->data.len + (a->count > 0 ? 20 : 12)));
    append_header(out, a);
    strbuf_add(out, a->data.data, a->data.len);
}

void
pgparams_array(struct pgparams *p, const struct pgarray *a)
{
    struct strbuf whole = {0};

    append_header(&whole, a);
    strbuf_add(&whole, a->data.data, a->data.len);
    add_copy(p, &whole);
    strbuf_release(&whole);
}
