/*
 * jsonw.h — writes JSON into a strbuf, commas and escapes included.
 *
 *     struct jsonw w = {.out = &buf};
 *     jsonw_object(&w, NULL);
 *     jsonw_str(&w, "relay", name);
 *     jsonw_end(&w);
 *
 * The key is NULL inside an array and for the outermost value.
 *
 * Threads: the owner's.  Memory: owns nothing.
 */
#ifndef PR_JSONW_H
#define PR_JSONW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/strbuf.h"

struct jsonw {
    struct strbuf *out;
    int depth;
    bool comma;     /* the next value of this level needs one in front */
    char close[16]; /* what ends each open level */
};

void jsonw_object(struct jsonw *w, const char *key);
void jsonw_array(struct jsonw *w, const char *key);
void jsonw_end(struct jsonw *w); /* ends the innermost object or array */

void jsonw_str(struct jsonw *w, const char *key, const char *text); /* NULL: null */
void jsonw_strn(struct jsonw *w, const char *key, const char *text, size_t len);
void jsonw_i64(struct jsonw *w, const char *key, int64_t value);
void jsonw_f64(struct jsonw *w, const char *key, double value);
void jsonw_bool(struct jsonw *w, const char *key, bool value);
void jsonw_null(struct jsonw *w, const char *key);
void jsonw_raw(struct jsonw *w, const char *key, const char *json); /* JSON as it stands */

/* Appends `text` as a JSON string with its quotes. */
void json_quote(struct strbuf *out, const char *text, size_t len);

#endif
