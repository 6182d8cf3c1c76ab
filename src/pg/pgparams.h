/*
 * pgparams.h — parameters of a statement, and arrays in PostgreSQL's binary format: a
 * whole batch travels as a handful of parameters.  Types are told in the SQL: every
 * parameter stands with a cast there (`$1::bigint`), so that what we send in binary
 * cannot be taken for something else.
 *
 * Threads: the owner's.
 * Memory:  values are copied into the arena given, or lent where a function says so.
 */
#ifndef PR_PGPARAMS_H
#define PR_PGPARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/strbuf.h"
#include "core/uuid.h"

/* Type numbers of pg_type, for elements of arrays and fields of composites; fixed since these types
 * exist. */
enum pg_type {
    PG_BYTEA = 17,
    PG_CHAR = 18,
    PG_INT8 = 20,
    PG_INT2 = 21,
    PG_INT4 = 23,
    PG_TEXT = 25,
    PG_BYTEA_ARRAY = 1001,
    PG_TEXT_ARRAY = 1009,
    PG_TIMESTAMPTZ = 1184,
    PG_UUID = 2950,
};

enum { PGPARAMS_MAX = 32 };

struct pgparams {
    struct arena *arena;
    bool binary_result;
    int count;
    const char *values[PGPARAMS_MAX];
    int lengths[PGPARAMS_MAX];
    int formats[PGPARAMS_MAX];
};

void pgparams_binary(struct pgparams *p);                 /* results in binary format */
void pgparams_text(struct pgparams *p, const char *text); /* lent; NULL is null */
void pgparams_i64(struct pgparams *p, int64_t value);
void pgparams_i32(struct pgparams *p, int32_t value);
void pgparams_i16(struct pgparams *p, int16_t value);
void pgparams_uuid(struct pgparams *p, const struct uuid *id);
void pgparams_bytes(struct pgparams *p, const void *data, size_t len); /* lent; bytea */

/* A one-dimensional array under construction; pgarray_start() comes first. */
struct pgarray {
    unsigned element; /* enum pg_type, or a composite's own number */
    int count;
    bool has_null;
    struct strbuf data;
};

void pgarray_start(struct pgarray *a, unsigned element); /* keeps memory of an earlier use */
void pgarray_i64(struct pgarray *a, int64_t value);
void pgarray_i32(struct pgarray *a, int32_t value);
void pgarray_i16(struct pgarray *a, int16_t value);
void pgarray_char(struct pgarray *a, char value);
void pgarray_text(struct pgarray *a, const char *text);              /* NULL is null */
void pgarray_bytes(struct pgarray *a, const void *data, size_t len); /* text, bytea */
void pgarray_uuid(struct pgarray *a, const struct uuid *id);
void pgarray_null(struct pgarray *a);
void pgarray_release(struct pgarray *a);

/* The array as a parameter; the bytes are copied into the arena. */
void pgparams_array(struct pgparams *p, const struct pgarray *a);
/* The same, lent: it must not change until the statement has been sent. */
void pgparams_array_lent(struct pgparams *p, const struct pgarray *a);

/* Bytes of the array's binary form. */
size_t pgarray_size(const struct pgarray *a);

/* Appends the array's binary form with its length in front: a field of a composite. */
void pgarray_append_field(struct strbuf *out, const struct pgarray *a);

#endif
