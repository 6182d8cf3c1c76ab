#include "relay/encoder.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"

enum { OUR_HEADERS = 12 };

char *
encode_time(int64_t us, struct arena *arena)
{
    char *text;

    if (us == INT64_MAX || us == INT64_MIN)
        return arena_strdup(arena, us == INT64_MAX ? "infinity" : "-infinity");
    text = arena_alloc(arena, 40);
    clock_format(us, text, 40);
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

void
encode_message(const struct outbox_row *row, const char *relay, int64_t epoch, int64_t prev,
               struct arena *arena, struct message *ret)
{
    json_t *own = row->headers ? json_loads(row->headers, JSON_DECODE_ANY, NULL) : NULL;
    size_t own_count = json_is_object(own) ? json_object_size(own) : 0;
    struct header *list = arena_alloc(arena, sizeof(*list) * (OUR_HEADERS + own_count));
    char *id = arena_alloc(arena, UUID_TEXT);

    uuid_format(&row->event_id, id);
    *ret = (struct message){
        .event_id = row->event_id,
        .key = {row->aggregate_id, strlen(row->aggregate_id)},
        .body = {row->body, row->body_len},
        .headers = list,
        .lane = row->lane,
        .epoch = epoch,
    };
    add_header(ret, list, "postrider-id", id);
    add_header(ret, list, "postrider-type", row->event_type);
    add_header(ret, list, "postrider-aggregate-type", row->aggregate_type);
    add_header(ret, list, "postrider-aggregate-id", row->aggregate_id);
    add_number(ret, list, "postrider-version", row->version, 1, arena);
    if (prev >= 0)
        add_number(ret, list, "postrider-prev", prev, 1, arena);
    add_header(ret, list, "postrider-occurred-at", encode_time(row->occurred_at_us, arena));
    add_header(ret, list, "postrider-relay", relay);
    add_number(ret, list, "postrider-lane", row->lane, 1, arena);
    add_number(ret, list, "postrider-epoch", epoch, 1, arena);
    add_number(ret, list, "postrider-sequence", row->id, 20, arena);
    add_header(ret, list, "content-type", row->content_type);
    if (own_count > 0)
        add_own_headers(ret, list, own, arena);
    json_decref(own);
}
