#include "config/values.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
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

const char *
value_words_text(const char *words, char *text, size_t size)
{
    size_t used = 0;

    text[0] = '\0';
    while (used < size) {
        size_t len = strcspn(words, "|");
        const char *next = words + len + (words[len] == '|');
        const char *between = !*next ? "" : strchr(next, '|') ? ", " : " or ";
        used += (size_t) snprintf(text + used, size - used, "%.*s%s", (int) len, words, between);
        if (!*next)
            break;
        words = next;
    }
    return text;
}

/* ------------------------------------------------------------------ variables */

static bool
is_variable(const char *name)
{
    return *name && !isdigit((unsigned char) *name) &&
           name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")] ==
               '\0';
}

/* Appends the value of one variable; `len` is the length of its name. */
static bool
add_variable(struct strbuf *out, const char *start, size_t len, char *why, size_t size)
{
    char *name = xasprintf("%.*s", (int) len, start);
    const char *value = is_variable(name) ? getenv(name) : NULL;
    bool ok = value && *value;

    if (ok)
        strbuf_adds(out, value);
    else if (!is_variable(name))
        snprintf(why, size, "found ${%s}, expected the name of an environment variable in ${…}",
                 name);
    else
        snprintf(why, size, "the environment variable %s is %s (export %s=… first)", name,
                 value ? "empty" : "not set", name);
    free(name);
    return ok;
}

bool
value_expand(const char *text, char **ret, char *why, size_t size)
{
    struct strbuf out = {0};

    while (*text) {
        if (strncmp(text, "$${", 3) == 0) {
            strbuf_adds(&out, "${");
            text += 3;
        } else if (strncmp(text, "${", 2) == 0) {
            const char *name = text + 2, *end = strchr(name, '}');
            if (!end)
                snprintf(why, size, "found ${ without }, expected ${NAME} (or $${ for a plain ${)");
            if (!end || !add_variable(&out, name, (size_t) (end - name), why, size)) {
                strbuf_release(&out);
                return false;
            }
            text = end + 1;
        } else {
            strbuf_addc(&out, *text++);
        }
    }
    *ret = strbuf_take(&out);
    return true;
}

/* ------------------------------------------------------------------ connection strings */

/* libpq takes postgresql://u:p/w@h for host u, port p and database w@h: no one means that. */
static bool
has_stray_password(const char *dsn)
{
    const char *host = strstr(dsn, "://");

    if (!host || host > dsn + strcspn(dsn, "= '"))
        return false; /* no URI */
    const char *path = host + 3 + strcspn(host + 3, "/?");
    return *path == '/' && path[strcspn(path, "@?")] == '@';
}

/* libpq's reading of it, or NULL. */
static PQconninfoOption *
parse_dsn(const char *dsn)
{
    PQconninfoOption *options = PQconninfoParse(dsn, NULL);
    bool ok = options && !has_stray_password(dsn);

    for (const PQconninfoOption *o = options; ok && o->keyword; o++)
        if (o->val && strcmp(o->keyword, "port") == 0)
            ok = o->val[strspn(o->val, "0123456789,")] == '\0';
    if (ok)
        return options;
    PQconninfoFree(options);
    return NULL;
}

bool
value_is_dsn(const char *text)
{
    PQconninfoOption *options = parse_dsn(text);

    PQconninfoFree(options);
    return options != NULL;
}

static void
add_pair(struct strbuf *out, const char *keyword, const char *value)
{
    bool bare = *value && value[strcspn(value, " \t\r\n\f\v'\\")] == '\0';

    strbuf_addf(out, "%s%s=%s", out->len ? " " : "", keyword, bare ? "" : "'");
    for (; *value; value++) {
        if (*value == '\'' || *value == '\\')
            strbuf_addc(out, '\\');
        strbuf_addc(out, *value);
    }
    if (!bare)
        strbuf_addc(out, '\'');
}

char *
value_redact(const char *dsn)
{
    struct strbuf out = {0};
    PQconninfoOption *options = parse_dsn(dsn);

    if (!options)
        return xstrdup("***");
    /* libpq marks by '*' what a form should not show. */
    for (const PQconninfoOption *o = options; o->keyword; o++)
        if (o->val)
            add_pair(&out, o->keyword, o->dispchar[0] == '*' ? "***" : o->val);
    PQconninfoFree(options);
    return strbuf_take(&out);
}

/* ------------------------------------------------------------------ did you mean */

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
    size_t len = strlen(text);
    const char *best = NULL;
    int best_distance = (int) (len < 64 ? len : 64) / 3 + 2;

    for (size_t i = 0; i < count; i++) {
        bool begins = len > 3 && strncmp(words[i], text, len) == 0;
        int d = begins ? 1 : distance(text, words[i]);
        /* Nothing of a short word may be left: any two letters are two edits apart. */
        if (d < best_distance && d < (int) len && d < (int) strlen(words[i])) {
            best = words[i];
            best_distance = d;
        }
    }
    return best;
}
