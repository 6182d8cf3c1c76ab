/*
 * mistakes.h — what is wrong with a configuration file, gathered and told in one go.
 *
 * Each mistake has a line, the path of the option ("relays.x.lease") and one sentence.
 *
 * Threads: the owner's.
 * Memory:  mistakes_release() frees.
 */
#ifndef PR_MISTAKES_H
#define PR_MISTAKES_H

#include <stdio.h>

#include "core/attr.h"

struct mistakes {
    struct mistake *list; /* by line */
    size_t count, cap;    /* of the list, which has an end: a file of rubbish has thousands */
    size_t untold;        /* found after the list was full */
    struct place *places;
    size_t place_count, place_cap;
};

/* `where` may be "": the file as a whole. */
void mistake_add(struct mistakes *m, int line, const char *where, const char *fmt, ...)
    PR_PRINTF(4, 5);

/* The same where only the path is known: the line is that of the nearest noted one. */
void mistake_add_at(struct mistakes *m, const char *where, const char *fmt, ...) PR_PRINTF(3, 4);

/* Notes in which line the option or element with this path stands. */
void mistakes_place(struct mistakes *m, const char *where, int line);

size_t mistakes_total(const struct mistakes *m);

/* Writes "path:line: where: sentence" each, without control characters. */
void mistakes_write(const struct mistakes *m, const char *path, FILE *out);

void mistakes_release(struct mistakes *m);

#endif
