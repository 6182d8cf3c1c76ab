/*
 * jsonpath.h — one value out of a JSON text, as text for a statement's parameter.
 *
 * A number keeps the digits it was written with: a library that turns it into a double
 * or a 64-bit integer would change 12345678901234567890.10.  So this scans the text
 * itself; it is a pure function over foreign bytes.
 *
 * Threads: any.
 * Memory:  results lie in the arena.
 */
#ifndef PR_JSONPATH_H
#define PR_JSONPATH_H

#include <stddef.h>

#include "core/arena.h"

enum jsonpath_answer {
    JSONPATH_FOUND,
    JSONPATH_NULL,    /* the value is null */
    JSONPATH_MISSING, /* no such member */
    JSONPATH_BROKEN,  /* the text is no JSON, is nested deeper than 500, or says \u0000 */
};

/*
 * Walks members by name: {"a", "b"} is 12 in {"a": {"b": 12}}.  Strings come without quotes
 * and escapes, numbers and booleans as they stand, objects and arrays without white space.
 * Of members with one name the last counts, as in jsonb.  *ret is NULL unless found.
 */
enum jsonpath_answer jsonpath_find(const void *text, size_t len, const char *const *path, int depth,
                                   struct arena *arena, const char **ret);

#endif
