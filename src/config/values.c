#include "config/values.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/strbuf.h"

static const struct {
    const char *unit;
    int64_t us;
} units[] = {{"ms", 1000}, {"s", 1000000}, {"m", 60000000}, {"h", 3600000000}, {"d", 86400000000}};

bool
value_integer(const char *text, int64_t *ret)
{
    char *end;

    errno = 0;
    *ret = strtoll(text, &end, 10);
    return errno == 0 && end != text && *end == '\0' && !isspace((unsigned char) *text);
}

bool
value_duration(const char *text, int64_t *ret_us)
{
    char number[20];
    size_t digits = strspn(text, "0123456789");

    if (digits == 0 || digits >= sizeof(number))
        return false;
    memcpy(number, text, digits);
    number[digits] = '\0';
    for (size_t i = 0; i < PR_LENGTH(units); i++)
        if (strcmp(text + digits, units[i].unit) == 0)
            return value_integer(number, ret_us) &&
                   !__builtin_mul_overflow(*ret_us, units[i].us, ret_us);
    return false;
}

const char *
value_duration_text(int64_t us, char *text, size_t size)
{
    size_t i = PR_LENGTH(units) - 1;

    while (i > 0 && us % units[i].us != 0)
        i--;
    snprintf(text, size, "%" PRId64 "%s", us / units[i].us, units[i].unit);
    return text;
}

int
value_word_index(const char *words, const char *text)
{
    size_t len = strlen(text);
    int index = 0;

    for (const char *at = words;; index++) {
        size_t word = strcspn(at, "|");
        if (word == len && memcmp(at, text, len) == 0)
            return index;
        if (at[word] == '\0')
            return -1;
        at += word + 1;
    }
}

const char *
value_word(const char *words, int index, char *text, size_t size)
{
    for (; index > 0; index--)
        words += strcspn(words, "|") + 1;
    snprintf(text, size, "%.*s", (int) strcspn(words, "|"), words);
    return text;
}

bool
value_is_name(const char *text)
{
    size_t len = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-_");

    return len > 0 && len <= 63 && text[len] == '\0' && *text != '-' && *text != '_';
}

char *
value_expand(const char *text, char *missing, size_t size)
{
    struct strbuf out = {0};

    while (*text) {
        const char *end;
        if (strncmp(text, "$${", 3) == 0) {
            strbuf_adds(&out, "${");
            text += 3;
        } else if (strncmp(text, "${", 2) == 0 && (end = strchr(text, '}'))) {
            snprintf(missing, size, "%.*s", (int) (end - text - 2), text + 2);
            const char *value = getenv(missing);
            if (!value || !*value) {
                strbuf_release(&out);
                return NULL;
            }
            strbuf_adds(&out, value);
            text = end + 1;
        } else {
            strbuf_addc(&out, *text++);
        }
    }
    return strbuf_take(&out);
}

/* postgresql://user:SECRET@host/…  The last '@' before the path ends it. */
static const char *
uri_password(const char *dsn, size_t *ret_len)
{
    const char *start = strstr(dsn, "://"), *colon, *at = NULL;

    if (!start)
        return NULL;
    start += 3;
    for (const char *c = start; *c && *c != '/' && *c != '?'; c++)
        if (*c == '@')
            at = c;
    colon = memchr(start, ':', at ? (size_t) (at - start) : 0);
    if (!at || !colon)
        return NULL;
    *ret_len = (size_t) (at - colon - 1);
    return colon + 1;
}

char *
value_redact(const char *dsn)
{
    struct strbuf out = {0};
    size_t len = 0;
    const char *secret = uri_password(dsn, &len);

    for (const char *at = dsn; *at;) {
        if (at == secret && len > 0) {
            strbuf_adds(&out, "***");
            at += len;
        } else if (strncasecmp(at, "password", 8) == 0 && strchr("= ", at[8]) && at[8]) {
            at += 8 + strspn(at + 8, " =");
            strbuf_adds(&out, "password=***");
            bool quoted = *at == '\'';
            at += quoted;
            for (; *at && (quoted ? *at != '\'' : !isspace((unsigned char) *at) && *at != '&');
                 at++)
                if (*at == '\\' && at[1])
                    at++;
            at += quoted && *at;
        } else {
            strbuf_addc(&out, *at++);
        }
    }
    return strbuf_take(&out);
}

/* Edits that turn one word into the other; words are short. */
static int
distance(const char *a, const char *b)
{
    int row[65];
    int n = (int) strlen(b);

    if (n > 64 || strlen(a) > 64)
        return 65;
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; *a; a++, i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int change = diagonal + (*a != b[j - 1]);
            diagonal = row[j];
            int best = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            row[j] = change < best ? change : best;
        }
    }
    return row[n];
}

const char *
value_nearest(const char *text, const char *const *words, size_t count)
{
    const char *best = NULL;
    int best_distance = (int) strlen(text) / 3 + 2;

    for (size_t i = 0; i < count; i++) {
        int d = distance(text, words[i]);
        if (d < best_distance || (strlen(text) > 3 && strncmp(words[i], text, strlen(text)) == 0)) {
            best = words[i];
            best_distance = d;
        }
    }
    return best;
}
