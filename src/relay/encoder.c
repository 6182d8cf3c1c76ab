#include "relay/encoder.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/clock.h"
#include "core/timetext.h"

enum { OUR_HEADERS = 12 };

/* Of microseconds since 2000. */
static char *
encode_time(int64_t pg_us, struct arena *arena)
{
    char *text;

    if (pg_us == INT64_MAX || pg_us == INT64_MIN)
        return arena_strdup(arena, pg_us == INT64_MAX ? "infinity" : "-infinity");
    text = arena_alloc(arena, CLOCK_TEXT);
    clock_format_since(EPOCH_2000_US / 1000000, pg_us, text);
    return text;
}

static void
add_header(struct message *m, struct header *list, const char *name, const char *value)
{
    list[m->header_count++] = (struct header){name, {value, strlen(value)}};
}

/* Every message has five numbers, and printf() would be a third of the work of making it. */
static void
add_number(struct message *m, struct header *list, const char *name, int64_t value, int width,
           struct arena *arena)
{
    enum { MOST = 24 };
    char *end = (char *) arena_alloc(arena, MOST) + MOST, *at = end;
    uint64_t rest = value < 0 ? -(uint64_t) value : (uint64_t) value;

    do
        *--at = (char) ('0' + rest % 10);
    while ((rest /= 10) > 0);
    while (end - at < width)
        *--at = '0';
    if (value < 0)
        *--at = '-';
    list[m->header_count++] = (struct header){name, {at, (size_t) (end - at)}};
}

/* What is no string travels as its JSON text, so that nothing is lost on the way. */
static struct slice
header_value(const json_t *value, struct arena *arena)
{
    if (json_is_string(value)) {
        size_t len = json_string_length(value);
        return (struct slice){arena_dup(arena, json_string_value(value), len), len};
    }
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    size_t len = strlen(text);
    struct slice slice = {arena_dup(arena, text, len), len};
    free(text);
    return slice;
}

/* ------------------------------------------------------------------ what cannot be sent */

static bool
refuse(struct error *err, const char *code, const char *what, const char *name)
{
    error_set_exit(err, ERR_PERMANENT, EXIT_REFUSED, code, "%s%.100s", what, name);
    err->proven = true;
    return error_hint(err, "correct the row, then `postrider dlq replay`; or discard it");
}

static bool
has_control(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if ((unsigned char) text[i] < 0x20 || text[i] == 0x7f)
            return true;
    return false;
}

/* A name of ours would forge what consumers trust; a line break splits a message elsewhere. */
static bool
check_headers(const struct message *m, int ours, struct error *err)
{
    for (int i = ours; i < m->header_count; i++) {
        const struct header *h = &m->headers[i];
        if (strncasecmp(h->name, "postrider-", 10) == 0 || strcasecmp(h->name, "content-type") == 0)
            return refuse(err, "event.headers", "it has a header under a name of ours: ", h->name);
        if (!*h->name || has_control(h->name, strlen(h->name)) ||
            has_control(h->value.data, h->value.len))
            return refuse(err, "event.headers",
                          "a header is without a name or has a control character: ", h->name);
    }
    return true;
}

static bool
check_row(const struct outbox_row *row, json_t *own, struct error *err)
{
    if (row->version < 1)
        return refuse(err, "event.version", "its version is below 1", "");
    if (!*row->aggregate_type || !*row->aggregate_id || !*row->event_type)
        return refuse(err, "event.name", "its aggregate type, aggregate id or event type is empty",
                      "");
    if (row->headers && !json_is_object(own) && !json_is_null(own))
        return refuse(err, "event.headers", "its headers are no JSON object", "");
    return true;
}

/* ------------------------------------------------------------------ messages */

static void
add_own_headers(struct message *m, struct header *list, json_t *own, struct arena *arena)
{
    const char *name;
    json_t *value;

    json_object_foreach(own, name, value)
    {
        list[m->header_count].name = arena_strdup(arena, name);
        list[m->header_count].value = header_value(value, arena);
        m->header_count++;
    }
}

static void
add_our_headers(const struct outbox_row *row, const char *relay, int64_t epoch, int64_t prev,
                struct arena *arena, struct header *list, struct message *ret)
{
    char *id = arena_alloc(arena, UUID_TEXT);

    uuid_format(&row->event_id, id);
    add_header(ret, list, "postrider-id", id);
    add_header(ret, list, "postrider-type", row->event_type);
    add_header(ret, list, "postrider-aggregate-type", row->aggregate_type);
    add_header(ret, list, "postrider-aggregate-id", row->aggregate_id);
    add_number(ret, list, "postrider-version", row->version, 1, arena);
    if (prev >= 0)
        add_number(ret, list, "postrider-prev", prev, 1, arena);
    add_header(ret, list, "postrider-occurred-at", encode_time(row->occurred_at_pg, arena));
    add_header(ret, list, "postrider-relay", relay);
    add_number(ret, list, "postrider-lane", row->lane, 1, arena);
    add_number(ret, list, "postrider-epoch", epoch, 1, arena);
    add_number(ret, list, "postrider-sequence", row->id, 20, arena);
    add_header(ret, list, "content-type", row->content_type);
}

bool
encode_message(const struct outbox_row *row, const char *relay, int64_t epoch, int64_t prev,
               struct arena *arena, struct message *ret, struct error *err)
{
    json_t *own = row->headers ? json_loads(row->headers, JSON_DECODE_ANY, NULL) : NULL;
    size_t own_count = json_is_object(own) ? json_object_size(own) : 0;
    struct header *list = arena_alloc(arena, sizeof(*list) * (OUR_HEADERS + own_count));

    *ret = (struct message){
        .event_id = row->event_id,
        .key = {row->aggregate_id, strlen(row->aggregate_id)},
        .body = {row->body, row->body_len},
        .headers = list,
        .lane = row->lane,
        .epoch = epoch,
    };
    add_our_headers(row, relay, epoch, prev, arena, list, ret);
    int ours = ret->header_count;
    if (own_count > 0)
        add_own_headers(ret, list, own, arena);
    bool ok = check_row(row, own, err) && check_headers(ret, ours, err);
    json_decref(own);
    return ok;
}
