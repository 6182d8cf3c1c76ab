#include "consume/incoming.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/timetext.h"
#include "core/utf8.h"

/* Two of them, and a number, fit into one entry of an index. */
enum { MOST_NAME_BYTES = 1000 };

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
    if (!time_parse(in->occurred_at, &in->occurred_at_pg))
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
