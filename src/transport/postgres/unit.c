#include "transport/postgres/unit.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"

enum {
    LANES = 16,
    SLOTS = 4096,     /* more than two for each message */
    RECENT_NAMES = 4, /* lists of header names to compare a message's with */
};

/* A partition some messages of the unit go to. */
struct head {
    const char *topic;
    int part;
    uint32_t count;
    uint32_t next; /* place of its next message, while they are put in order */
};

enum column { TOPICS, PARTS, COUNTS, KEYS, EVENT_IDS, NAMES, NAMES_OF, VALUES, BODIES, COLUMNS };

struct unit {
    unsigned names_type, values_type;
    struct arena arena;

    const struct message *messages[UNIT_MESSAGES]; /* as they were added */
    uint16_t head_of[UNIT_MESSAGES];
    size_t count, bytes;
    int64_t epochs[LANES]; /* -1: no message of that lane */

    struct head heads[UNIT_MESSAGES];
    size_t head_count;
    uint16_t slots[SLOTS]; /* by topic and partition: index into heads, plus 1 */

    struct pgarray columns[COLUMNS];
    struct pgarray list;                       /* of one message, on its way into a column */
    const struct message *named[RECENT_NAMES]; /* the bearer of names list n is at n modulo this */
};

struct unit *
unit_new(unsigned names_type, unsigned values_type)
{
    struct unit *unit = xcalloc(1, sizeof(*unit));

    unit->names_type = names_type;
    unit->values_type = values_type;
    unit_start(unit);
    return unit;
}

void
unit_free(struct unit *unit)
{
    if (!unit)
        return;
    arena_release(&unit->arena);
    for (int i = 0; i < COLUMNS; i++)
        pgarray_release(&unit->columns[i]);
    pgarray_release(&unit->list);
    free(unit);
}

void
unit_start(struct unit *unit)
{
    arena_reset(&unit->arena);
    unit->count = unit->bytes = unit->head_count = 0;
    memset(unit->epochs, -1, sizeof(unit->epochs));
    memset(unit->slots, 0, sizeof(unit->slots));
}

size_t
unit_count(const struct unit *unit)
{
    return unit->count;
}

/* ------------------------------------------------------------------ taking messages */

static uint32_t
hash(const char *topic, int part)
{
    uint32_t h = 2166136261U ^ (uint32_t) part;

    for (; *topic; topic++)
        h = (h ^ (unsigned char) *topic) * 16777619U;
    return h ^ h >> 15;
}

static uint16_t
find_head(struct unit *unit, const char *topic, int part)
{
    uint32_t slot = hash(topic, part) % SLOTS;

    for (; unit->slots[slot]; slot = (slot + 1) % SLOTS) {
        const struct head *head = &unit->heads[unit->slots[slot] - 1];
        if (head->part == part && (head->topic == topic || strcmp(head->topic, topic) == 0))
            return (uint16_t) (unit->slots[slot] - 1);
    }
    unit->heads[unit->head_count] = (struct head){.topic = topic, .part = part};
    unit->slots[slot] = (uint16_t) ++unit->head_count;
    return (uint16_t) (unit->head_count - 1);
}

static size_t
message_bytes(const struct message *m)
{
    size_t bytes = m->key.len + m->body.len;

    for (int i = 0; i < m->header_count; i++)
        bytes += m->headers[i].value.len;
    return bytes;
}

bool
unit_add(struct unit *unit, const struct message *message)
{
    if (unit->count == UNIT_MESSAGES || unit->bytes >= UNIT_BYTES)
        return false;
    uint16_t head = find_head(unit, message->topic, message->part);
    unit->heads[head].count++;
    unit->head_of[unit->count] = head;
    unit->messages[unit->count++] = message;
    unit->bytes += message_bytes(message);
    unit->epochs[message->lane] = message->epoch;
    return true;
}

/* ------------------------------------------------------------------ making parameters */

/* By partition, and within one as they were added. */
static void
put_in_order(struct unit *unit, const struct message **ordered)
{
    uint32_t next = 0;

    for (size_t i = 0; i < unit->head_count; i++) {
        unit->heads[i].next = next;
        next += unit->heads[i].count;
    }
    for (size_t i = 0; i < unit->count; i++)
        ordered[unit->heads[unit->head_of[i]].next++] = unit->messages[i];
}

static void
start_columns(struct unit *unit)
{
    const unsigned types[COLUMNS] = {
        [TOPICS] = PG_TEXT,   [PARTS] = PG_INT4,     [COUNTS] = PG_INT4,
        [KEYS] = PG_BYTEA,    [EVENT_IDS] = PG_UUID, [NAMES] = unit->names_type,
        [NAMES_OF] = PG_INT2, [BODIES] = PG_BYTEA,   [VALUES] = unit->values_type,
    };

    for (int i = 0; i < COLUMNS; i++)
        pgarray_start(&unit->columns[i], types[i]);
}

/* One more element for a column of composites that have one field: the list just made. */
static void
add_list(struct unit *unit, enum column column, unsigned type)
{
    struct pgarray *a = &unit->columns[column];

    strbuf_add_u32(&a->data, (uint32_t) (8 + 4 + pgarray_size(&unit->list)));
    strbuf_add_u32(&a->data, 1); /* field */
    strbuf_add_u32(&a->data, type);
    pgarray_append_field(&a->data, &unit->list);
    a->count++;
}

static bool
same_names(const struct message *a, const struct message *b)
{
    if (a->header_count != b->header_count)
        return false;
    for (int i = 0; i < a->header_count; i++)
        if (a->headers[i].name != b->headers[i].name &&
            strcmp(a->headers[i].name, b->headers[i].name) != 0)
            return false;
    return true;
}

/* The number of the list with this message's header names, counted from 1. */
static int
names_number(struct unit *unit, const struct message *m)
{
    int count = unit->columns[NAMES].count;

    for (int n = count - 1; n >= 0 && n >= count - RECENT_NAMES; n--)
        if (same_names(unit->named[n % RECENT_NAMES], m))
            return n + 1;
    pgarray_start(&unit->list, PG_TEXT);
    for (int i = 0; i < m->header_count; i++)
        pgarray_text(&unit->list, m->headers[i].name);
    add_list(unit, NAMES, PG_TEXT_ARRAY);
    unit->named[count % RECENT_NAMES] = m;
    return count + 1;
}

static void
add_message(struct unit *unit, const struct message *m)
{
    pgarray_bytes(&unit->columns[KEYS], m->key.data, m->key.len);
    pgarray_uuid(&unit->columns[EVENT_IDS], &m->event_id);
    pgarray_i16(&unit->columns[NAMES_OF], (int16_t) names_number(unit, m));
    pgarray_start(&unit->list, PG_BYTEA);
    for (int i = 0; i < m->header_count; i++)
        pgarray_bytes(&unit->list, m->headers[i].value.data, m->headers[i].value.len);
    add_list(unit, VALUES, PG_BYTEA_ARRAY);
    pgarray_bytes(&unit->columns[BODIES], m->body.data, m->body.len);
}

static void
add_lanes(const struct unit *unit, struct pgparams *p)
{
    struct pgarray lanes = {0}, epochs = {0};

    pgarray_start(&lanes, PG_INT2);
    pgarray_start(&epochs, PG_INT8);
    for (int lane = 0; lane < LANES; lane++) {
        if (unit->epochs[lane] < 0)
            continue;
        pgarray_i16(&lanes, (int16_t) lane);
        pgarray_i64(&epochs, unit->epochs[lane]);
    }
    pgparams_array(p, &lanes);
    pgparams_array(p, &epochs);
    pgarray_release(&lanes);
    pgarray_release(&epochs);
}

void
unit_params(struct unit *unit, const struct uuid *writer, struct pgparams *p)
{
    const struct message **ordered =
        arena_alloc(&unit->arena, sizeof(struct message *) * (unit->count + 1));

    p->arena = &unit->arena;
    put_in_order(unit, ordered);
    start_columns(unit);
    for (size_t i = 0; i < unit->head_count; i++) {
        pgarray_text(&unit->columns[TOPICS], unit->heads[i].topic);
        pgarray_i32(&unit->columns[PARTS], unit->heads[i].part);
        pgarray_i32(&unit->columns[COUNTS], (int32_t) unit->heads[i].count);
    }
    for (size_t i = 0; i < unit->count; i++)
        add_message(unit, ordered[i]);
    pgparams_uuid(p, writer);
    add_lanes(unit, p);
    for (int i = 0; i < COLUMNS; i++)
        pgparams_array_lent(p, &unit->columns[i]);
}
