/*
 * values.h — single values of the configuration: reading and writing them.
 *
 * Threads: any.  Memory: as said at each.
 */
#ifndef PR_VALUES_H
#define PR_VALUES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/attr.h"

/* "50ms", "10s", "5m", "12h", "7d" to microseconds. */
bool value_duration(const char *text, int64_t *ret_us) PR_MUSTCHECK;
const char *value_duration_text(int64_t us, char *text, size_t size);

bool value_integer(const char *text, int64_t *ret) PR_MUSTCHECK;

/* Position of `text` among words separated by '|'; -1 if it is none of them. */
int value_word_index(const char *words, const char *text);
const char *value_word(const char *words, int index, char *text, size_t size);

/* a-z, 0-9, '-' and '_', at most 63, first a letter or digit. */
bool value_is_name(const char *text);

/*
 * Fills in ${NAME} from the environment; $${ stands for ${.  The caller frees *ret.
 * On failure `why` says what was found and what was expected.
 */
bool value_expand(const char *text, char **ret, char *why, size_t size) PR_MUSTCHECK;

/* Is this something libpq would connect with? */
bool value_is_dsn(const char *text);

/*
 * A connection string as pairs, every secret in it replaced by ***.  The caller frees.
 * One that libpq cannot read may hold its password anywhere: it becomes *** as a whole.
 */
char *value_redact(const char *dsn);

/* "postgres, file or null" of "postgres|file|null".  Returns `text`. */
const char *value_words_text(const char *words, char *text, size_t size);

/* The one of the words that is likely to be meant by `text`, or NULL. */
const char *value_nearest(const char *text, const char *const *words, size_t count);

#endif
