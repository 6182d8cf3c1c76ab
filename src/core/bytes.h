/*
 * bytes.h — a cursor over foreign bytes that cannot run over the end.
 *
 * The first read past the end sets `bad` and every later read gives zero or "",
 * so a decoder reads a whole structure and checks once.
 *
 * Threads: the owner's.
 * Memory:  lends; what it returns points into the bytes it was given.
 */
#ifndef PR_BYTES_H
#define PR_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bytes {
    const void *at;
    size_t left;
    bool bad;
};

uint8_t bytes_u8(struct bytes *in);
uint16_t bytes_u16(struct bytes *in); /* big-endian, as all below */
uint32_t bytes_u32(struct bytes *in);
uint64_t bytes_u64(struct bytes *in);

/* `len` bytes, or NULL when fewer are left (or len is 0 and nothing is). */
const void *bytes_take(struct bytes *in, size_t len);

/* A NUL-terminated string, "" when there is no NUL. */
const char *bytes_cstr(struct bytes *in);

#endif
