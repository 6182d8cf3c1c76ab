#include "consume/incoming.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Two of them, and a number, fit into one entry of an index. */
enum { MOST_NAME_BYTES = 1000 };

bool
utf8_is_text(const void *data, size_t len)
{
    const unsigned char *at = data, *end = at + len;

    while (at < end) {
        unsigned char c = *at++;
        if (c == 0)
            return false;
        if (c < 0x80)
            continue;
        int more = c >= 0xc2 && c <= 0xdf   ? 1
                   : (c & 0xf0) == 0xe0     ? 2
                   : c >= 0xf0 && c <= 0xf4 ? 3
                                            : 0;
        if (more == 0 || end - at < more)
            return false;
        /* The second byte alone tells overlong forms, surrogates and what lies beyond U+10FFFF. */
        unsigned char least = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
        unsigned char most = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
        if (*at < least || *at > most)
            return false;
        for (at++; --more > 0; at++)
            if ((*at & 0xc0) != 0x80)
                return false;
    }
    return true;
}

const struct slice *
incoming_header(const struct incoming *in, const char *name)
{
    for (int i = 0; i < in->header_count; i++)
        if (strcmp(in->headers[i].name, name) == 0)
            return &in->headers[i].value;
    return NULL;
}

/* The value as a text of 1 to MOST_NAME_BYTES bytes; NULL if it is missing or no such text. */
static const char *
text_header(const struct incoming *in, const char *name, struct arena *arena)
{
    const struct slice *value = incoming_header(in, name);

    if (!value || value->len == 0 || value->len > MOST_NAME_BYTES ||
        !utf8_is_text(value->data, value->len))
        return NULL;
    return arena_strndup(arena, value->data, value->len);
}

/* Decimal digits and nothing else, in the range of a bigint. */
static bool
number_from(const char *text, int64_t *ret)
{
    if (!text || *text < '0' || *text > '9')
        return false;
    char *end;
    errno = 0;
    *ret = strtoll(text, &end, 10);
    return errno == 0 && *end == '\0';
}

/* ------------------------------------------------------------------ time */

/* `count` digits as a number; -1 if they are not there. */
static int
digits(const char **at, int count)
{
    int value = 0;

    for (int i = 0; i < count; i++, (*at)++) {
        if (**at < '0' || **at > '9')
            return -1;
        value = value * 10 + (**at - '0');
    }
    return value;
}

static bool
skip(const char **at, char c)
{
    if (**at != c)
        return false;
    (*at)++;
    return true;
}

/* "Z" or "+02:00", in seconds east of UTC. */
static bool
zone_from(const char **at, int *ret)
{
    int sign = **at == '-' ? -1 : 1;

    *ret = 0;
    if (skip(at, 'Z'))
        return true;
    if (!skip(at, '+') && !skip(at, '-'))
        return false;
    int hours = digits(at, 2);
    if (hours < 0 || hours > 15 || !skip(at, ':'))
        return false;
    int minutes = digits(at, 2);
    *ret = sign * (hours * 3600 + minutes * 60);
    return minutes >= 0 && minutes < 60;
}

static int
fraction_us(const char **at)
{
    int us = 0, scale = 100000;

    for (; **at >= '0' && **at <= '9'; (*at)++, scale /= 10)
        us += (**at - '0') * scale; /* digits beyond the sixth count as nothing */
    return us;
}

/* RFC 3339, and PostgreSQL's two infinities. */
static bool
time_from(const char *text, int64_t *ret_us)
{
    const char *at = text;
    struct tm tm = {0}, back;
    int zone;

    if (!text)
        return false;
    if (strcmp(text, "infinity") == 0 || strcmp(text, "-infinity") == 0) {
        *ret_us = *text == '-' ? INT64_MIN : INT64_MAX;
        return true;
    }
    int year = digits(&at, 4);
    tm.tm_year = year - 1900;
    bool ok = year >= 0 && skip(&at, '-') && (tm.tm_mon = digits(&at, 2) - 1) >= 0 &&
              skip(&at, '-') && (tm.tm_mday = digits(&at, 2)) > 0 &&
              (skip(&at, 'T') || skip(&at, ' ')) && (tm.tm_hour = digits(&at, 2)) >= 0 &&
              skip(&at, ':') && (tm.tm_min = digits(&at, 2)) >= 0 && skip(&at, ':') &&
              (tm.tm_sec = digits(&at, 2)) >= 0;
    if (!ok || tm.tm_hour > 23 || tm.tm_min > 59 || tm.tm_sec > 60)
        return false;
    int us = skip(&at, '.') ? fraction_us(&at) : 0;
    if (!zone_from(&at, &zone) || *at)
        return false;
    back = tm;
    time_t seconds = timegm(&back);
    if (back.tm_mon != tm.tm_mon && tm.tm_sec < 60)
        return false; /* 31 February */
    *ret_us = ((int64_t) seconds - zone) * 1000000 + us;
    return true;
}

/* ------------------------------------------------------------------ the message */

static const char *
why_foreign(struct incoming *in, struct arena *arena)
{
    const struct slice *id = incoming_header(in, "postrider-id");
    const struct slice *prev = incoming_header(in, "postrider-prev");

    if (!id)
        return "it has no header postrider-id";
    if (!uuid_parse(id->data, id->len, &in->event_id))
        return "postrider-id is no UUID";
    if (!(in->event_type = text_header(in, "postrider-type", arena)))
        return "postrider-type is missing, or no text of 1 to 1000 bytes";
    if (!(in->aggregate_type = text_header(in, "postrider-aggregate-type", arena)))
        return "postrider-aggregate-type is missing, or no text of 1 to 1000 bytes";
    if (!(in->aggregate_id = text_header(in, "postrider-aggregate-id", arena)))
        return "postrider-aggregate-id is missing, or no text of 1 to 1000 bytes";
    if (!number_from(text_header(in, "postrider-version", arena), &in->version) || in->version < 1)
        return "postrider-version is missing, or no number from 1 to 9223372036854775807";
    in->prev = -1;
    if (prev && (!number_from(text_header(in, "postrider-prev", arena), &in->prev) ||
                 in->prev >= in->version))
        return "postrider-prev is no number below the version";
    in->occurred_at = text_header(in, "postrider-occurred-at", arena);
    if (!time_from(in->occurred_at, &in->occurred_at_us))
        return "postrider-occurred-at is missing, or no time like 2026-12-01T05:34:30.123456Z";
    return NULL;
}

void
incoming_decode(struct incoming *in, struct arena *arena)
{
    in->foreign = why_foreign(in, arena);
    in->content_type = text_header(in, "content-type", arena);
    if (!in->foreign)
        event_digest(in->aggregate_type, in->aggregate_id, in->version, in->event_type,
                     in->body.data, in->body.len, in->digest);
}
