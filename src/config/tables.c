#include <stdlib.h>
#include <string.h>

#include "config/check.h"
#include "core/alloc.h"

/* What a column or state is called when the file does not say. */
struct named {
    char **field;
    const char *fallback;
    const char *key;
};

enum { NAMED = 13 };

static void
list_named(struct outbox_config *o, struct named ret[NAMED])
{
    struct columns_config *c = &o->columns;
    struct named all[NAMED] = {
        {&c->event_id, "event_id", "columns.event_id"},
        {&c->aggregate_type, "aggregate_type", "columns.aggregate_type"},
        {&c->aggregate_id, "aggregate_id", "columns.aggregate_id"},
        {&c->aggregate_version, "aggregate_version", "columns.aggregate_version"},
        {&c->event_type, "event_type", "columns.event_type"},
        {&c->payload, "payload", "columns.payload"},
        {&c->headers, "headers", "columns.headers"},
        {&c->content_type, "content_type", "columns.content_type"},
        {&c->occurred_at, "occurred_at", "columns.occurred_at"},
        {&o->mark.column, "publish_state", "mark.column"},
        {&o->mark.pending, "PENDING", "mark.pending"},
        {&o->mark.published, "PUBLISHED", "mark.published"},
        {&o->mark.discarded, "DISCARDED", "mark.discarded"},
    };

    memcpy(ret, all, sizeof(all));
}

/* Options that say how to read a table which is not named. */
static void
check_stray(struct outbox_config *o, const struct named named[NAMED], struct mistakes *m)
{
    for (int i = 0; i < NAMED; i++) {
        if (!*named[i].field)
            continue;
        char *where = xasprintf("outboxes.%s.%s", o->name, named[i].key);
        mistake_add_at(m, where,
                       "found without table, expected table: schema.name with it (the "
                       "built-in outbox has columns of its own)");
        free(where);
    }
    if (!o->aggregate_type)
        return;
    char *where = xasprintf("outboxes.%s.aggregate_type", o->name);
    mistake_add_at(m, where,
                   "found without table, expected table: schema.name with it (the "
                   "built-in outbox has a column for it)");
    free(where);
}

static void
check_states(const struct outbox_config *o, struct mistakes *m)
{
    if (strcmp(o->mark.pending, o->mark.published) != 0 &&
        strcmp(o->mark.pending, o->mark.discarded) != 0)
        return;
    char *where = xasprintf("outboxes.%s.mark", o->name);
    mistake_add_at(m, where,
                   "found the state \"%s\" twice, expected pending to differ from published and "
                   "discarded (an event would be published for ever)",
                   o->mark.pending);
    free(where);
}

void
config_check_tables(struct config *config, struct mistakes *m)
{
    for (size_t i = 0; i < config->outbox_count; i++) {
        struct outbox_config *o = &config->outboxes[i];
        struct named named[NAMED];
        list_named(o, named);
        if (!o->table) {
            check_stray(o, named, m);
            continue;
        }
        for (int n = 0; n < NAMED; n++)
            if (!*named[n].field)
                *named[n].field = xstrdup(named[n].fallback);
        check_states(o, m);
    }
}

const char *
outbox_table(const struct outbox_config *outbox)
{
    return outbox->table ? outbox->table : "postrider.outbox";
}
