#include "consume/jsonpath.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { MOST_LEVELS = 500 };
enum { OFF_PATH = -1 };

struct scan {
    const char *at, *end;
    const char *const *path;
    int depth;
    int level;
    const char *found, *found_end; /* the value, as it stands in the text */
};

static bool scan_value(struct scan *s, int matched);

static void
skip_space(struct scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r'))
        s->at++;
}

static bool
take(struct scan *s, char c)
{
    if (s->at == s->end || *s->at != c)
        return false;
    s->at++;
    return true;
}

static bool
take_word(struct scan *s, const char *word)
{
    size_t len = strlen(word);

    if ((size_t) (s->end - s->at) < len || memcmp(s->at, word, len) != 0)
        return false;
    s->at += len;
    return true;
}

static int
hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Past the closing quote; escapes are only checked for their form. */
static bool
scan_string(struct scan *s)
{
    if (!take(s, '"'))
        return false;
    while (s->at < s->end) {
        unsigned char c = (unsigned char) *s->at++;
        if (c == '"')
            return true;
        if (c < 0x20)
            return false;
        if (c != '\\')
            continue;
        if (s->at == s->end || !strchr("\"\\/bfnrtu", *s->at) || !*s->at)
            return false;
        if (*s->at++ != 'u')
            continue;
        for (int i = 0; i < 4; i++, s->at++)
            if (s->at == s->end || hex_value(*s->at) < 0)
                return false;
    }
    return false;
}

static bool
scan_digits(struct scan *s)
{
    const char *start = s->at;

    while (s->at < s->end && *s->at >= '0' && *s->at <= '9')
        s->at++;
    return s->at > start;
}

static bool
scan_number(struct scan *s)
{
    take(s, '-');
    if (!take(s, '0') && !scan_digits(s))
        return false;
    if (take(s, '.') && !scan_digits(s))
        return false;
    if (take(s, 'e') || take(s, 'E')) {
        if (!take(s, '+'))
            take(s, '-');
        return scan_digits(s);
    }
    return true;
}

static char *
put_utf8(char *out, uint32_t c)
{
    int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = {0, 0xc0, 0xe0, 0xf0};

    *out++ = (char) (lead[more] | c >> (6 * more));
    while (more-- > 0)
        *out++ = (char) (0x80 | (c >> (6 * more) & 0x3f));
    return out;
}

static uint32_t
hex_unit(const char *at)
{
    uint32_t unit = 0;

    for (int i = 0; i < 4; i++)
        unit = unit << 4 | (uint32_t) hex_value(at[i]);
    return unit;
}

/* The character behind a backslash and a `u`; 0 if it is half of one, or a NUL. */
static uint32_t
escaped_char(const char **at, const char *end)
{
    uint32_t unit = hex_unit(*at + 2);

    *at += 6;
    if (unit < 0xd800 || unit >= 0xe000)
        return unit;
    if (unit >= 0xdc00 || end - *at < 6 || (*at)[0] != '\\' || (*at)[1] != 'u')
        return 0;
    uint32_t low = hex_unit(*at + 2);
    *at += 6;
    return low >= 0xdc00 && low < 0xe000 ? 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00) : 0;
}

/* The string between `from` and `to`, quotes included, without its escapes; NULL if it cannot be.
 */
static char *
unescape(const char *from, const char *to, struct arena *arena)
{
    static const char plain[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    char *text = arena_alloc(arena, (size_t) (to - from)), *out = text;
    const char *at = from + 1;

    while (at < to - 1) {
        if (*at != '\\') {
            *out++ = *at++;
        } else if (at[1] != 'u') {
            *out++ = meant[strchr(plain, at[1]) - plain];
            at += 2;
        } else {
            uint32_t c = escaped_char(&at, to - 1);
            if (c == 0)
                return NULL;
            out = put_utf8(out, c);
        }
    }
    *out = '\0';
    return text;
}

/* Names with escapes are rare, and a name of ours holds none: compared as they stand. */
static bool
is_member(const struct scan *s, int matched, const char *name, const char *end)
{
    const char *wanted;
    size_t len;
    struct arena arena = {0};

    if (matched == OFF_PATH || matched >= s->depth)
        return false;
    wanted = s->path[matched];
    len = strlen(wanted);
    if (!memchr(name, '\\', (size_t) (end - name)))
        return (size_t) (end - name) == len + 2 && memcmp(name + 1, wanted, len) == 0;
    char *plain = unescape(name, end, &arena);
    bool same = plain && strcmp(plain, wanted) == 0;
    arena_release(&arena);
    return same;
}

static bool
scan_object(struct scan *s, int matched)
{
    skip_space(s);
    if (take(s, '}'))
        return true;
    do {
        skip_space(s);
        const char *name = s->at;
        if (!scan_string(s))
            return false;
        int next = OFF_PATH;
        if (is_member(s, matched, name, s->at)) {
            next = matched + 1;
            s->found = NULL; /* an earlier member of this name does not count any more */
        }
        skip_space(s);
        if (!take(s, ':') || !scan_value(s, next))
            return false;
        skip_space(s);
    } while (take(s, ','));
    return take(s, '}');
}

static bool
scan_array(struct scan *s)
{
    skip_space(s);
    if (take(s, ']'))
        return true;
    do {
        if (!scan_value(s, OFF_PATH))
            return false;
        skip_space(s);
    } while (take(s, ','));
    return take(s, ']');
}

static bool
scan_plain(struct scan *s)
{
    switch (*s->at) {
    case '"':
        return scan_string(s);
    case 't':
        return take_word(s, "true");
    case 'f':
        return take_word(s, "false");
    case 'n':
        return take_word(s, "null");
    default:
        return scan_number(s);
    }
}

static bool
scan_value(struct scan *s, int matched)
{
    bool ok;

    skip_space(s);
    if (s->at == s->end || ++s->level > MOST_LEVELS)
        return false;
    const char *start = s->at;
    if (take(s, '{'))
        ok = scan_object(s, matched);
    else if (take(s, '['))
        ok = scan_array(s);
    else
        ok = scan_plain(s);
    s->level--;
    if (ok && matched == s->depth) {
        s->found = start;
        s->found_end = s->at;
    }
    return ok;
}

/* The text without the white space between its tokens. */
static char *
compact(const char *from, const char *to, struct arena *arena)
{
    char *text = arena_alloc(arena, (size_t) (to - from) + 1), *out = text;
    bool quoted = false;

    for (const char *at = from; at < to; at++) {
        if (quoted && *at == '\\') {
            *out++ = *at++;
        } else if (*at == '"') {
            quoted = !quoted;
        } else if (!quoted && (unsigned char) *at <= ' ') {
            continue;
        }
        *out++ = *at;
    }
    *out = '\0';
    return text;
}

enum jsonpath_answer
jsonpath_find(const void *text, size_t len, const char *const *path, int depth, struct arena *arena,
              const char **ret)
{
    struct scan s = {.at = text, .path = path, .depth = depth};

    *ret = NULL;
    if (!text)
        return JSONPATH_BROKEN;
    s.end = s.at + len;
    if (!scan_value(&s, 0))
        return JSONPATH_BROKEN;
    skip_space(&s);
    if (s.at != s.end)
        return JSONPATH_BROKEN;
    if (!s.found)
        return JSONPATH_MISSING;
    if (*s.found == 'n')
        return JSONPATH_NULL;
    *ret = *s.found == '"' ? unescape(s.found, s.found_end, arena)
                           : compact(s.found, s.found_end, arena);
    return *ret ? JSONPATH_FOUND : JSONPATH_BROKEN;
}
