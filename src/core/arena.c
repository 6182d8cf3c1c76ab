#include "core/arena.h"

#include <stdalign.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"

enum { BLOCK_BYTES = 256 * 1024 };

struct arena_block {
    struct arena_block *next;
    size_t size;
    size_t used;
    alignas(max_align_t) char data[];
};

static struct arena_block *
block_new(size_t size, struct arena_block *next)
{
    struct arena_block *block = xmalloc(sizeof(*block) + size);

    block->next = next;
    block->size = size;
    block->used = 0;
    return block;
}

void *
arena_alloc(struct arena *arena, size_t size)
{
    size_t need = (size + alignof(max_align_t) - 1) & ~(alignof(max_align_t) - 1);
    struct arena_block *block = arena->first;

    if (!block || block->size - block->used < need) {
        block = block_new(need > BLOCK_BYTES ? need : BLOCK_BYTES, block);
        arena->first = block;
    }
    void *memory = block->data + block->used;
    block->used += need;
    arena->used += need;
    return memory;
}

void *
arena_zalloc(struct arena *arena, size_t size)
{
    return memset(arena_alloc(arena, size), 0, size);
}

void *
arena_dup(struct arena *arena, const void *data, size_t size)
{
    void *copy = arena_alloc(arena, size);

    if (size > 0)
        memcpy(copy, data, size);
    return copy;
}

char *
arena_strndup(struct arena *arena, const char *text, size_t len)
{
    char *copy = arena_alloc(arena, len + 1);

    memcpy(copy, text, len);
    copy[len] = '\0';
    return copy;
}

char *
arena_strdup(struct arena *arena, const char *text)
{
    return arena_strndup(arena, text, strlen(text));
}

char *
arena_printf(struct arena *arena, const char *fmt, ...)
{
    va_list ap, again;

    va_start(ap, fmt);
    va_copy(again, ap);
    int len = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *text = arena_alloc(arena, (size_t) len + 1);
    vsnprintf(text, (size_t) len + 1, fmt, again);
    va_end(again);
    return text;
}

void
arena_reset(struct arena *arena)
{
    struct arena_block *keep = NULL;

    for (struct arena_block *block = arena->first, *next; block; block = next) {
        next = block->next;
        if (!keep && block->size == BLOCK_BYTES) {
            keep = block;
            keep->next = NULL;
            keep->used = 0;
        } else {
            free(block);
        }
    }
    arena->first = keep;
    arena->used = 0;
}

void
arena_release(struct arena *arena)
{
    for (struct arena_block *block = arena->first, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    arena->first = NULL;
    arena->used = 0;
}
