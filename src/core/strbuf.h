/*
 * strbuf.h — a growing byte string, always NUL-terminated behind its length.
 *
 * Threads: the owner's.
 * Memory:  strbuf_release() frees; strbuf_take() hands the bytes to the caller.
 */
#ifndef PR_STRBUF_H
#define PR_STRBUF_H

#include <stddef.h>
#include <stdint.h>

#include "core/attr.h"

struct strbuf {
    char *data; /* NULL until the first byte */
    size_t len;
    size_t cap;
};

/* The content as a C string, "" when empty. */
const char *strbuf_str(const struct strbuf *buf);

void strbuf_add(struct strbuf *buf, const void *data, size_t len);
void strbuf_adds(struct strbuf *buf, const char *text);
void strbuf_addc(struct strbuf *buf, char c);
void strbuf_addf(struct strbuf *buf, const char *fmt, ...) PR_PRINTF(2, 3);

/* Big-endian integers, for PostgreSQL's binary formats. */
void strbuf_add_u16(struct strbuf *buf, uint16_t value);
void strbuf_add_u32(struct strbuf *buf, uint32_t value);
void strbuf_add_u64(struct strbuf *buf, uint64_t value);

/* Appends `len` bytes to be filled by the caller; good until the next append. */
char *strbuf_extend(struct strbuf *buf, size_t len);

void strbuf_reset(struct strbuf *buf);   /* empty, memory kept */
void strbuf_release(struct strbuf *buf); /* empty, memory freed */
char *strbuf_take(struct strbuf *buf);   /* caller frees; the buffer is empty after */

#endif
