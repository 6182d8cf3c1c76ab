/*
 * alloc.h — allocation for the program: running out of memory ends the process
 * with a clear line, so no caller has a branch that is never tested.  Code that is
 * linked into a host's process must not use this.
 *
 * Threads: any.
 */
#ifndef PR_ALLOC_H
#define PR_ALLOC_H

#include <stddef.h>

#include "core/attr.h"

void *xmalloc(size_t size);
void *xcalloc(size_t count, size_t size);
void *xrealloc(void *old, size_t size);
void *xmemdup(const void *data, size_t size);
char *xstrdup(const char *text);
char *xasprintf(const char *fmt, ...) PR_PRINTF(1, 2);

/*
 * Makes room for one more element in a growing array; call before storing
 * element number *count.  *cap is in elements.
 */
#define GROW(array, count, cap)                                                                    \
    do {                                                                                           \
        if ((count) >= (cap)) {                                                                    \
            (cap) = (cap) ? (cap) *2 : 16;                                                         \
            (array) = xrealloc((array), (size_t) (cap) * sizeof(*(array)));                        \
        }                                                                                          \
    } while (0)

#endif
