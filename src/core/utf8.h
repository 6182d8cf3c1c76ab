/*
 * utf8.h — text as PostgreSQL takes it: UTF-8 without NUL and surrogates (RFC 3629).
 * No state: any thread.
 */
#ifndef PR_UTF8_H
#define PR_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Whether all of the bytes are such text. */
bool utf8_is_text(const void *data, size_t len);

/*
 * Makes such text of what was cut to a buffer's length or came from anywhere: a character that
 * lost its end at the end of the text is dropped, each other byte that is none becomes '?'.
 * Never longer than before.
 */
void utf8_mend(char *text);

#endif
