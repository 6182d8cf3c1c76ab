/*
 * uuid.h — UUIDs, and version 7 (RFC 9562 §5.7) in particular: its first 48 bits
 * are milliseconds, which is what puts an event into its day's partition.
 *
 * Threads: any.
 */
#ifndef PR_UUID_H
#define PR_UUID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/attr.h"

enum { UUID_TEXT = 37 }; /* bytes of the text form with its NUL */

struct uuid {
    unsigned char b[16];
};

struct uuid uuid_v7(void); /* of now */
void uuid_format(const struct uuid *id, char text[UUID_TEXT]);

/* Takes the 36-character form, either case. */
bool uuid_parse(const char *text, size_t len, struct uuid *ret) PR_MUSTCHECK;

int uuid_version(const struct uuid *id);
int64_t uuid_v7_ms(const struct uuid *id); /* since 1970-01-01 UTC */
bool uuid_equal(const struct uuid *a, const struct uuid *b);

#endif
