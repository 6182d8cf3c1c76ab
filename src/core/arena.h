/*
 * arena.h — memory of one batch: allocated piece by piece, given back all at once.
 *
 * Messages, headers and decoded rows of a batch come from an arena; what lives
 * longer is copied out with xmemdup() or xstrdup().
 *
 * Threads: one worker owns an arena.
 * Memory:  a pointer is good until arena_reset() or arena_release().
 */
#ifndef PR_ARENA_H
#define PR_ARENA_H

#include <stddef.h>

#include "core/attr.h"

struct arena_block;

struct arena {
    struct arena_block *first; /* the newest block; older ones hang behind it */
    size_t used;               /* bytes handed out since the last reset */
};

void *arena_alloc(struct arena *arena, size_t size); /* aligned for any type, not cleared */
void *arena_zalloc(struct arena *arena, size_t size);
void *arena_dup(struct arena *arena, const void *data, size_t size);
char *arena_strndup(struct arena *arena, const char *text, size_t len);
char *arena_strdup(struct arena *arena, const char *text);
char *arena_printf(struct arena *arena, const char *fmt, ...) PR_PRINTF(2, 3);

/* Forgets all allocations; keeps one block for the next batch. */
void arena_reset(struct arena *arena);

/* Gives everything back to the system; the arena may be used again. */
void arena_release(struct arena *arena);

#endif
