#include "config/check.h"

#include <stdlib.h>
#include <string.h>

#include "config/values.h"
#include "core/alloc.h"
#include "core/timetext.h"

#define TYPE_FIELD "{aggregate_type}"

static void
check_relays(const struct config *config, struct mistakes *m)
{
    for (size_t i = 0; i < config->relay_count; i++) {
        const struct relay_config *a = &config->relays[i];
        for (size_t j = 0; j < i; j++) {
            const struct relay_config *b = &config->relays[j];
            if (!a->outbox || !a->destination || a->outbox != b->outbox ||
                a->destination != b->destination)
                continue;
            char *where = xasprintf("relays.%s", a->name);
            mistake_add_at(m, where,
                           "found outbox %s and destination %s, which relay %s has already, "
                           "expected another pair (every event would be published twice)",
                           a->outbox->name, a->destination->name, b->name);
            free(where);
        }
    }
}

static void
refuse_for_table(struct mistakes *m, const struct relay_config *r, const char *key,
                 const char *found, const char *expected)
{
    char *where = xasprintf("relays.%s.%s", r->name, key);

    mistake_add_at(m, where, "found %s for outbox %s, which is a table of your own, expected %s",
                   found, r->outbox->name, expected);
    free(where);
}

/* A state column says of an event that it was published, not by whom. */
static void
check_table_relays(const struct config *config, struct mistakes *m)
{
    for (size_t i = 0; i < config->relay_count; i++) {
        const struct relay_config *a = &config->relays[i];
        if (!a->outbox || !a->outbox->table)
            continue;
        if (a->filter.aggregate_type_count > 0 || a->filter.event_type_count > 0)
            refuse_for_table(m, a, "filter", "a filter", "none (its rows would stay pending)");
        if (a->start == START_NOW)
            refuse_for_table(m, a, "start", "now", "earliest (every pending row is published)");
        for (size_t j = 0; j < i; j++)
            if (config->relays[j].outbox == a->outbox)
                refuse_for_table(m, a, "outbox", "a second relay",
                                 "one relay (the state column can serve one only)");
    }
}

static void
check_handled_or_ignored(const struct consumer_config *c, struct mistakes *m)
{
    for (size_t i = 0; i < c->handler_count; i++) {
        for (size_t j = 0; j < c->ignore_count; j++) {
            if (strcmp(c->handlers[i].event_type, c->ignore[j]) != 0)
                continue;
            char *where = xasprintf("consumers.%s.ignore", c->name);
            mistake_add_at(m, where,
                           "found %s, which has a handler in line %d, expected it in one of the "
                           "two (an event cannot be both handled and ignored)",
                           c->ignore[j], c->handlers[i].line);
            free(where);
        }
    }
}

static void
check_first(const struct consumer_config *c, struct mistakes *m)
{
    if (c->first != FIRST_ONE || c->order == ORDER_STREAM)
        return;
    char *where = xasprintf("consumers.%s.first", c->name);
    mistake_add_at(
        m, where,
        "found 1, expected it with order stream only (no other order knows which version "
        "opens a stream)");
    free(where);
}

static void
check_retention(const struct consumer_config *c, struct mistakes *m)
{
    const struct destination_config *d = c->destination;
    char have[32], need[32], missing[32];

    if (c->retention_us >= d->retention_us)
        return;
    char *where = xasprintf("consumers.%s.retention", c->name);
    value_duration_text(c->retention_us, have, sizeof(have));
    value_duration_text(d->retention_us, need, sizeof(need));
    value_duration_text(d->retention_us - c->retention_us, missing, sizeof(missing));
    mistake_add_at(m, where,
                   "found %s, expected at least %s, the retention of destination %s (%s - %s = %s "
                   "in which a message can come back after its record is gone, and be applied "
                   "again)",
                   have, need, d->name, need, have, missing);
    free(where);
}

/* Can a topic have been made by the template?  {aggregate_type} is any text but none. */
static bool
topic_fits(const char *template, const char *topic)
{
    const char *field = strstr(template, TYPE_FIELD);
    size_t topic_len = strlen(topic);

    if (!field)
        return strcmp(template, topic) == 0;
    const char *rest = field + strlen(TYPE_FIELD);
    if (strstr(rest, TYPE_FIELD))
        return true; /* the type twice: not worth a parser */
    size_t before = (size_t) (field - template), after = strlen(rest);
    return topic_len > before + after && strncmp(template, topic, before) == 0 &&
           strcmp(rest, topic + topic_len - after) == 0;
}

static void
check_topic(const struct consumer_config *c, struct mistakes *m)
{
    if (!c->topic || !c->destination->topic || topic_fits(c->destination->topic, c->topic))
        return;
    char *where = xasprintf("consumers.%s.from.topic", c->name);
    mistake_add_at(m, where,
                   "found \"%s\", expected a topic as destination %s has them, \"%s\" (nothing "
                   "would ever arrive)",
                   c->topic, c->destination->name, c->destination->topic);
    free(where);
}

bool
start_parse(const char *text, enum start_at *ret, int64_t *ret_us)
{
    *ret_us = 0;
    *ret = START_EARLIEST;
    if (!text || strcmp(text, "earliest") == 0)
        return true;
    *ret = START_NOW;
    if (strcmp(text, "latest") == 0 || strcmp(text, "now") == 0)
        return true;
    *ret = START_TIME;
    if (!time_parse(text, ret_us) || *ret_us < -EPOCH_2000_US ||
        *ret_us > INT64_MAX - EPOCH_2000_US)
        return false;
    *ret_us += EPOCH_2000_US;
    return true;
}

/* A first start that nobody thought about either loses the backlog or repeats a topic's life. */
static void
check_start(const struct consumer_config *c, struct mistakes *m)
{
    const struct destination_config *d = c->destination;
    enum start_at start;
    int64_t us;
    char *where = xasprintf("consumers.%s.from.start", c->name);

    if (!start_parse(c->start, &start, &us))
        mistake_add_at(m, where,
                       "found \"%s\", expected earliest, latest or a time like "
                       "2026-12-01T05:00:00Z",
                       c->start);
    else if (!c->start && d && d->transport && strcmp(d->transport, "kafka") == 0)
        mistake_add_at(m, where,
                       "missing, expected earliest, latest or a time like 2026-12-01T05:00:00Z (a "
                       "topic in Kafka may hold what was never meant for this consumer)");
    free(where);
}

static void
check_consumers(const struct config *config, struct mistakes *m)
{
    for (size_t i = 0; i < config->consumer_count; i++) {
        const struct consumer_config *c = &config->consumers[i];
        const struct destination_config *d = c->destination;
        check_handled_or_ignored(c, m);
        check_first(c, m);
        check_start(c, m);
        if (!d || !d->transport)
            continue;
        if (strcmp(d->transport, "postgres") == 0)
            check_retention(c, m);
        if (strcmp(d->transport, "postgres") == 0 || strcmp(d->transport, "kafka") == 0) {
            check_topic(c, m);
            continue;
        }
        char *where = xasprintf("consumers.%s.from.destination", c->name);
        mistake_add_at(
            m, where,
            "found %s, whose transport is %s, expected one of transport postgres or kafka "
            "(there is nothing to read from the others)",
            d->name, d->transport);
        free(where);
    }
}

void
config_check_together(const struct config *config, struct mistakes *m)
{
    check_relays(config, m);
    check_table_relays(config, m);
    check_consumers(config, m);
}
