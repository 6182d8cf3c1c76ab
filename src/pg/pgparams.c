#include "pg/pgparams.h"

#include <endian.h>
#include <string.h>

#include "core/error.h"

enum { PGARRAY_HEADER = 20 }; /* bytes kept free before the elements of an array */

struct binary {
    const char *data;
    size_t len;
};

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
    strbuf_extend(&a->data, PGARRAY_HEADER);
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

/*
 * The array's binary form where it lies: ndim, has-null flag and element type stand before
 * its elements, and its length and lower bound too unless it is empty.
 */
static struct binary
whole(const struct pgarray *a)
{
    const uint32_t fields[] = {a->count > 0, a->has_null, a->element, (uint32_t) a->count, 1};
    size_t header = a->count > 0 ? PGARRAY_HEADER : PGARRAY_HEADER - 8;
    char *at = a->data.data + PGARRAY_HEADER - header;

    PR_CHECK(a->data.len >= PGARRAY_HEADER);
    for (size_t i = 0; i < header / 4; i++) {
        uint32_t field = htobe32(fields[i]);
        memcpy(at + i * 4, &field, 4);
    }
    return (struct binary){at, a->data.len - PGARRAY_HEADER + header};
}

size_t
pgarray_size(const struct pgarray *a)
{
    return a->count > 0 ? a->data.len : PGARRAY_HEADER - 8;
}

void
pgarray_append_field(struct strbuf *out, const struct pgarray *a)
{
    struct binary binary = whole(a);

    strbuf_add_u32(out, (uint32_t) binary.len);
    strbuf_add(out, binary.data, binary.len);
}

void
pgparams_array(struct pgparams *p, const struct pgarray *a)
{
    struct binary binary = whole(a);

    add(p, arena_dup(p->arena, binary.data, binary.len), binary.len, 1);
}

void
pgparams_array_lent(struct pgparams *p, const struct pgarray *a)
{
    struct binary binary = whole(a);

    add(p, binary.data, binary.len, 1);
}
