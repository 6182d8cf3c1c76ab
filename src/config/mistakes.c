#include "config/mistakes.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/strbuf.h"

enum { MOST_TOLD = 100, MOST_PATH = 200, MOST_SENTENCE = 800 };

struct mistake {
    int line;
    char *text;
};

struct place {
    char *where;
    int line;
};

/* A mistake quotes the file, and the file may hold anything: bounded, and in one line. */
static void
add_printable(struct strbuf *out, const char *text, size_t most)
{
    size_t len = strlen(text);

    if (len > most) {
        len = most;
        while (len > 0 && ((unsigned char) text[len] & 0xc0) == 0x80)
            len--; /* not within a character */
    }
    for (size_t i = 0; i < len; i++)
        strbuf_addc(out, (unsigned char) text[i] < 0x20 || text[i] == 0x7f ? '?' : text[i]);
    if (text[len] != '\0')
        strbuf_adds(out, "...");
}

static void PR_PRINTF(4, 0)
    add(struct mistakes *m, int line, const char *where, const char *fmt, va_list ap)
{
    struct strbuf text = {0};
    char sentence[2 * MOST_SENTENCE];

    if (m->count == MOST_TOLD) {
        m->untold++;
        return;
    }
    vsnprintf(sentence, sizeof(sentence), fmt, ap);
    add_printable(&text, where, MOST_PATH);
    if (*where)
        strbuf_adds(&text, ": ");
    add_printable(&text, sentence, MOST_SENTENCE);
    GROW(m->list, m->count, m->cap);
    size_t at = m->count++;
    for (; at > 0 && m->list[at - 1].line > line; at--)
        m->list[at] = m->list[at - 1];
    m->list[at] = (struct mistake){line, strbuf_take(&text)};
}

void
mistake_add(struct mistakes *m, int line, const char *where, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    add(m, line, where, fmt, ap);
    va_end(ap);
}

/* Is `outer` the path itself or one above it? */
static bool
path_holds(const char *outer, const char *where)
{
    size_t len = strlen(outer);

    return strncmp(outer, where, len) == 0 && (where[len] == '\0' || where[len] == '.');
}

static int
line_of(const struct mistakes *m, const char *where)
{
    const struct place *best = NULL;

    for (size_t i = 0; i < m->place_count; i++)
        if (path_holds(m->places[i].where, where) &&
            (!best || strlen(m->places[i].where) > strlen(best->where)))
            best = &m->places[i];
    return best ? best->line : 1;
}

void
mistake_add_at(struct mistakes *m, const char *where, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    add(m, line_of(m, where), where, fmt, ap);
    va_end(ap);
}

void
mistakes_place(struct mistakes *m, const char *where, int line)
{
    GROW(m->places, m->place_count, m->place_cap);
    m->places[m->place_count++] = (struct place){xstrdup(where), line};
}

size_t
mistakes_total(const struct mistakes *m)
{
    return m->count + m->untold;
}

void
mistakes_write(const struct mistakes *m, const char *path, FILE *out)
{
    for (size_t i = 0; i < m->count; i++)
        fprintf(out, "%s:%d: %s\n", path, m->list[i].line, m->list[i].text);
    if (m->untold > 0)
        fprintf(out, "%s: and %zu more\n", path, m->untold);
}

void
mistakes_release(struct mistakes *m)
{
    for (size_t i = 0; i < m->count; i++)
        free(m->list[i].text);
    for (size_t i = 0; i < m->place_count; i++)
        free(m->places[i].where);
    free(m->list);
    free(m->places);
    *m = (struct mistakes){0};
}
