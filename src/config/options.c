#include "config/options.h"

#include <inttypes.h>
#include <string.h>

#include "config/values.h"
#include "core/attr.h"

#define OUTBOX(field) offsetof(struct outbox_config, field)
#define DESTINATION(field) offsetof(struct destination_config, field)
#define RELAY(field) offsetof(struct relay_config, field)
#define CONSUMER(field) offsetof(struct consumer_config, field)
#define CHECK(field) offsetof(struct check_config, field)
#define TOP(field) offsetof(struct config, field)

#define SECONDS 1000000LL
#define DAYS (86400 * SECONDS)

const struct section sections[] = {
    {"outboxes", true, sizeof(struct outbox_config), TOP(outboxes), "registrations",
     "Databases whose applications write events to the table postrider.outbox."},
    {"destinations", true, sizeof(struct destination_config), TOP(destinations), "events",
     "Where events go, and where consumers take them from."},
    {"relays", true, sizeof(struct relay_config), TOP(relays), "registrations-to-events",
     "Each publishes one outbox to one destination and keeps its own position."},
    {"consumers", true, sizeof(struct consumer_config), TOP(consumers), "rewards",
     "Each applies the events of one topic in its own database, once, in order."},
    {"checks", true, sizeof(struct check_config), TOP(checks), "points",
     "What must agree by the business's own account: two queries, one key."},
    {"reconcile", false, 0, 0, NULL, "How often the running program compares by itself."},
    {"http", false, 0, 0, NULL, "The HTTP server for /metrics, /healthz and /readyz."},
    {"log", false, 0, 0, NULL, "Log lines, on standard error."},
};
const size_t section_count = PR_LENGTH(sections);

const struct option options[] = {
    {.section = "outboxes",
     .key = "database",
     .type = OPTION_DSN,
     .offset = OUTBOX(database),
     .required = true,
     .example = "\"${SHOP_DSN}\"",
     .help = "Connection string of the database that holds the outbox.",
     .more = "A URI, postgresql://user@host/name, or pairs, host=h dbname=name. Keep the password "
             "in the environment (${NAME}), in a pgpass file or out of use (peer, certificates)."},
    {.section = "outboxes",
     .key = "table",
     .type = OPTION_TEXT,
     .offset = OUTBOX(table),
     .help = "A table of your own with a state column, as schema.table, instead of "
             "postrider.outbox.",
     .more = "It is read by state, in version order within an aggregate, by one process at a "
             "time; a row's state is set when the destination has confirmed the event. It needs "
             "an index that `postrider doctor` names."},
    {.section = "outboxes",
     .key = "aggregate_type",
     .type = OPTION_TEXT,
     .offset = OUTBOX(aggregate_type),
     .help = "The aggregate type of all events of such a table, if it has no column for it."},
    {.section = "outboxes",
     .key = "columns.event_id",
     .type = OPTION_TEXT,
     .offset = OUTBOX(columns.event_id),
     .help = "Column with a unique id of any type; one that is no UUID makes a UUID of its own "
             "(default event_id)."},
    {.section = "outboxes",
     .key = "columns.aggregate_type",
     .type = OPTION_TEXT,
     .offset = OUTBOX(columns.aggregate_type),
     .help = "Column with the aggregate's type, if the table has such a column (default "
             "aggregate_type)."},
    {.section = "outboxes",
     .key = "columns.aggregate_id",
     .type = OPTION_TEXT,
     .offset = OUTBOX(columns.aggregate_id),
     .help = "Column with the aggregate's id, of any type (default aggregate_id)."},
    {.section = "outboxes",
     .key = "columns.aggregate_version",
     .type = OPTION_TEXT,
     .offset = OUTBOX(columns.aggregate_version),
     .help = "Column with the aggregate's version, NOT NULL, rising within an aggregate (default "
             "aggregate_version)."},
    {.section = "outboxes",
     .key = "columns.event_type",
     .type = OPTION_TEXT,
     .offset = OUTBOX(columns.event_type),
     .help = "Column with the event's type (default event_type)."},
    {.section = "outboxes",
     .key = "columns.payload",
     .type = OPTION_TEXT,
     .offset = OUTBOX(columns.payload),
     .help = "Column with what happened: jsonb, json, text or bytea (default payload)."},
    {.section = "outboxes",
     .key = "columns.headers",
     .type = OPTION_TEXT,
     .offset = OUTBOX(columns.headers),
     .help =
         "Column with a JSON object of headers, if the table has such a column (default headers)."},
    {.section = "outboxes",
     .key = "columns.content_type",
     .type = OPTION_TEXT,
     .offset = OUTBOX(columns.content_type),
     .help = "Column with the payload's media type, if the table has such a column (default "
             "content_type)."},
    {.section = "outboxes",
     .key = "columns.occurred_at",
     .type = OPTION_TEXT,
     .offset = OUTBOX(columns.occurred_at),
     .help = "Column with when it happened, if the table has such a column (default occurred_at)."},
    {.section = "outboxes",
     .key = "mark.column",
     .type = OPTION_TEXT,
     .offset = OUTBOX(mark.column),
     .help = "Column that holds the state of an event (default publish_state)."},
    {.section = "outboxes",
     .key = "mark.pending",
     .type = OPTION_TEXT,
     .offset = OUTBOX(mark.pending),
     .help = "State of an event that is to be published (default PENDING)."},
    {.section = "outboxes",
     .key = "mark.published",
     .type = OPTION_TEXT,
     .offset = OUTBOX(mark.published),
     .help = "State of one that was published (default PUBLISHED)."},
    {.section = "outboxes",
     .key = "mark.discarded",
     .type = OPTION_TEXT,
     .offset = OUTBOX(mark.discarded),
     .help = "State of one that an operator gave up (default DISCARDED)."},
    {.section = "outboxes",
     .key = "versions",
     .type = OPTION_WORD,
     .offset = OUTBOX(versions),
     .words = "dense|sparse",
     .fallback = "dense",
     .help = "dense: each event of an aggregate has the version after the one before. sparse: "
             "versions may skip, where an update writes no event.",
     .more = "With sparse, and with a filter on event types, each message carries the version "
             "before it in the header postrider-prev, so that a consumer can tell a jump from a "
             "missing event. Dense streams carry none and cost nothing."},
    {.section = "outboxes",
     .key = "retention",
     .type = OPTION_DURATION,
     .offset = OUTBOX(retention_us),
     .least = 1 * DAYS,
     .most = 3650 * DAYS,
     .fallback = "7d",
     .help = "How long published events are kept for replay; then whole days are dropped."},

    {.section = "destinations",
     .key = "transport",
     .type = OPTION_TEXT,
     .offset = DESTINATION(transport),
     .required = true,
     .words = "postgres|kafka|file|null",
     .example = "postgres",
     .help = "postgres: a log in a database. kafka: Apache Kafka. file: JSON lines. null: nowhere, "
             "to measure."},
    {.section = "destinations",
     .key = "database",
     .type = OPTION_DSN,
     .offset = DESTINATION(database),
     .required = true,
     .only = "postgres",
     .example = "\"${BUS_DSN}\"",
     .help = "Connection string of the database that holds the log."},
    {.section = "destinations",
     .key = "bootstrap",
     .type = OPTION_TEXT,
     .offset = DESTINATION(bootstrap),
     .required = true,
     .only = "kafka",
     .example = "\"localhost:9092\"",
     .help = "Brokers to begin with, host:port,host:port."},
    {.section = "destinations",
     .key = "settings",
     .type = OPTION_SETTINGS,
     .offset = DESTINATION(settings),
     .only = "kafka",
     .example = "{security.protocol: sasl_ssl, sasl.mechanism: SCRAM-SHA-512, sasl.username: "
                "postrider, sasl.password: \"${KAFKA_PASSWORD}\"}",
     .help = "Settings of librdkafka, for security and tuning.",
     .more = "Those on which order and confirmation rest (acks, idempotence, timeouts, retries, "
             "partitioner, queue sizes) are refused."},
    {.section = "destinations",
     .key = "topic",
     .type = OPTION_TOPIC,
     .offset = DESTINATION(topic),
     .only = "postgres|kafka",
     .fallback = "{aggregate_type}",
     .example = "\"{aggregate_type}\"",
     .help = "Topic of an event.",
     .more = "Other parts of an event are refused: with {event_type}, events of one stream would "
             "lie in several topics, without an order."},
    {.section = "destinations",
     .key = "partitions",
     .type = OPTION_INTEGER,
     .offset = DESTINATION(partitions),
     .least = 1,
     .most = 1024,
     .only = "postgres|kafka",
     .help =
         "Partitions of each topic, fixed at the topic's first use (default: 16; with kafka, as "
         "many as the topic has)."},
    {.section = "destinations",
     .key = "retention",
     .type = OPTION_DURATION,
     .offset = DESTINATION(retention_us),
     .least = 1 * DAYS,
     .most = 3650 * DAYS,
     .only = "postgres",
     .fallback = "7d",
     .help = "How long the log keeps messages; a consumer away for longer stops loudly.",
     .more = "At most the retention of every consumer that reads the destination."},
    {.section = "destinations",
     .key = "path",
     .type = OPTION_TEXT,
     .offset = DESTINATION(path),
     .required = true,
     .only = "file",
     .example = "\"events.jsonl\"",
     .help = "File to append to; \"-\" is standard output."},

    {.section = "relays",
     .key = "outbox",
     .type = OPTION_NAME_OF,
     .offset = RELAY(outbox),
     .required = true,
     .words = "outboxes",
     .example = "registrations",
     .help = "The outbox it reads."},
    {.section = "relays",
     .key = "destination",
     .type = OPTION_NAME_OF,
     .offset = RELAY(destination),
     .required = true,
     .words = "destinations",
     .example = "events",
     .help = "The destination it publishes to."},
    {.section = "relays",
     .key = "start",
     .type = OPTION_WORD,
     .offset = RELAY(start),
     .words = "earliest|now",
     .fallback = "earliest",
     .help = "Where a relay made by `postrider init` begins: with every event still in the "
             "outbox, or with those committed from then on."},
    {.section = "relays",
     .key = "filter.aggregate_types",
     .type = OPTION_LIST,
     .offset = RELAY(filter.aggregate_types),
     .example = "[]",
     .help = "Aggregate types whose events it publishes; all of them if the list is empty.",
     .more = "A changed filter is put in force by `postrider init`; events that the relay has "
             "passed already stay unpublished."},
    {.section = "relays",
     .key = "filter.event_types",
     .type = OPTION_LIST,
     .offset = RELAY(filter.event_types),
     .example = "[]",
     .help = "Event types it publishes; all of them if the list is empty.",
     .more = "Its messages then carry postrider-prev, as those of an outbox with sparse "
             "versions."},
    {.section = "relays",
     .key = "owner",
     .type = OPTION_TEXT,
     .offset = RELAY(owner),
     .help = "Who is asked about its dead letters; the relay's name if not given."},
    {.section = "relays",
     .key = "lease",
     .type = OPTION_DURATION,
     .offset = RELAY(lease_us),
     .least = SECONDS * 3 / 10,
     .most = 300 * SECONDS,
     .fallback = "10s",
     .help = "How long a lane stays with a process that gives no sign; another takes it then.",
     .more = "A shorter lease means a faster take-over after a crash and more writes."},
    {.section = "relays",
     .key = "poll_cap",
     .type = OPTION_DURATION,
     .offset = RELAY(poll_cap_us),
     .least = SECONDS / 1000,
     .most = SECONDS,
     .fallback = "50ms",
     .help = "Longest wait between two looks at a quiet outbox.",
     .more =
         "An outbox that has events is looked at again at once; a quiet one less and less often, "
         "down to this."},

    {.section = "consumers",
     .key = "database",
     .type = OPTION_DSN,
     .offset = CONSUMER(database),
     .required = true,
     .example = "\"${REWARDS_DSN}\"",
     .help = "Connection string of the database in which effects and progress are written."},
    {.section = "consumers",
     .key = "from.destination",
     .type = OPTION_NAME_OF,
     .offset = CONSUMER(destination),
     .required = true,
     .words = "destinations",
     .example = "events",
     .help = "The destination it reads; its transport must be postgres or kafka."},
    {.section = "consumers",
     .key = "from.topic",
     .type = OPTION_TEXT,
     .offset = CONSUMER(topic),
     .required = true,
     .example = "registration",
     .help = "The topic it reads."},
    {.section = "consumers",
     .key = "from.start",
     .type = OPTION_TEXT,
     .offset = CONSUMER(start),
     .help = "Where it begins in a partition that it has no position for: earliest, latest (now is "
             "the same), or a time as 2026-12-01T05:00:00Z.",
     .more = "From Kafka it must be said, from PostgreSQL it is earliest if not given. A position "
             "that retention has overtaken is never replaced by it: the consumer stops."},
    {.section = "consumers",
     .key = "order",
     .type = OPTION_WORD,
     .offset = CONSUMER(order),
     .words = "stream|latest|none",
     .fallback = "stream",
     .help = "stream: versions of an aggregate follow each other. latest: an event sets a state, "
             "older ones are stale. none: events are independent.",
     .more = "With stream, an event whose predecessor is missing waits in the database until the "
             "predecessor has come, and so do those behind it; other streams go on."},
    {.section = "consumers",
     .key = "first",
     .type = OPTION_WORD,
     .offset = CONSUMER(first),
     .words = "any|1",
     .fallback = "any",
     .help = "Which version opens a stream that is not known yet (order stream)."},
    {.section = "consumers",
     .key = "handlers",
     .type = OPTION_HANDLERS,
     .offset = CONSUMER(handlers),
     .required = true,
     .example = "\n      RegistrationConfirmed: {sql: \"SELECT apply_reward_event(:consumer, "
                ":event_id, :payload.playerId, :payload.points)\"}",
     .help = "What is done with each type of event: {sql: \"statement\"}, with the parameters "
             ":consumer, :event_id, :aggregate_type, :aggregate_id, :version, :event_type, "
             ":occurred_at, :payload, :payload.a.b and :header.name.",
     .more =
         "Each parameter is bound, never spliced into the text. A path that the payload does not "
         "have makes the event a dead letter that names the path; JSON null is NULL. A "
         "statement that returns a single false says that the effect was there already."},
    {.section = "consumers",
     .key = "errors",
     .type = OPTION_RULES,
     .offset = CONSUMER(errors),
     .example = "[]",
     .help = "What an error of a handler means, where the built-in table is not right: "
             "[{sqlstate: \"P0001\", message: \"regular expression\", class: "
             "rejected|permanent|transient|unknown}]. First match wins.",
     .more =
         "sqlstate is a code, or a class of codes as \"23\" or \"23***\"; message a POSIX "
         "extended regular expression that is looked for in the server's message; a rule has "
         "one of them or both. rejected: the business said no, an outcome and no failure: the "
         "stream goes on. A handler may have rules of its own, {sql: \"…\", errors: […]}, which "
         "are asked first. What no event can be at fault for (lost connections, full disks, "
         "missing tables, deadlocks) is left to the built-in table."},
    {.section = "consumers",
     .key = "ignore",
     .type = OPTION_LIST,
     .offset = CONSUMER(ignore),
     .example = "[]",
     .help = "Event types that need no effect; one that is neither handled nor ignored is a dead "
             "letter."},
    {.section = "consumers",
     .key = "batch",
     .type = OPTION_INTEGER,
     .offset = CONSUMER(batch),
     .least = 1,
     .most = 1000,
     .fallback = "100",
     .help = "Messages in one transaction at most."},
    {.section = "consumers",
     .key = "parked_limit.stream",
     .type = OPTION_INTEGER,
     .offset = CONSUMER(parked_stream),
     .least = 1,
     .most = 1000000,
     .fallback = "10000",
     .help = "Events of one stream kept back in the database; from so many on its partition is not "
             "read until some have left.",
     .more = "The other partitions go on. The consumer says so in its log, in /readyz, in "
             "`postrider status` and in its metrics, and goes on by itself."},
    {.section = "consumers",
     .key = "parked_limit.total",
     .type = OPTION_INTEGER,
     .offset = CONSUMER(parked_total),
     .least = 1,
     .most = 10000000,
     .fallback = "100000",
     .help = "Events of all streams kept back in the database, dead ones among them; from so many "
             "on nothing is read until some have left.",
     .more = "What is parked is worked on all the same. A batch under way may exceed it."},
    {.section = "consumers",
     .key = "owner",
     .type = OPTION_TEXT,
     .offset = CONSUMER(owner),
     .help = "Who is asked about its dead letters; the consumer's name if not given."},
    {.section = "consumers",
     .key = "lease",
     .type = OPTION_DURATION,
     .offset = CONSUMER(lease_us),
     .least = SECONDS * 3 / 10,
     .most = 300 * SECONDS,
     .fallback = "10s",
     .help = "How long a partition stays with a process that gives no sign."},
    {.section = "consumers",
     .key = "retention",
     .type = OPTION_DURATION,
     .offset = CONSUMER(retention_us),
     .least = 1 * DAYS,
     .most = 3650 * DAYS,
     .fallback = "14d",
     .help = "How long dedupe records are kept; longer than a message can come back.",
     .more =
         "At least the retention of the destination: a message that comes back after its record "
         "is gone would be applied again."},

    {.section = "checks",
     .key = "left.database",
     .type = OPTION_DSN,
     .offset = CHECK(left.database),
     .required = true,
     .example = "\"${SHOP_DSN}\"",
     .help = "Connection string of the database that the first query runs in; reading is enough."},
    {.section = "checks",
     .key = "left.sql",
     .type = OPTION_SQL,
     .offset = CHECK(left.sql),
     .required = true,
     .example = "\"SELECT player_id, sum(points) FROM registration GROUP BY player_id\"",
     .help = "The first query: rows of a key, each once, and a value.",
     .more = "Both are compared as text, so both queries should give one type: cast where they "
             "do not. It runs in a transaction that only reads."},
    {.section = "checks",
     .key = "right.database",
     .type = OPTION_DSN,
     .offset = CHECK(right.database),
     .required = true,
     .example = "\"${REWARDS_DSN}\"",
     .help = "Connection string of the database that the second query runs in."},
    {.section = "checks",
     .key = "right.sql",
     .type = OPTION_SQL,
     .offset = CHECK(right.sql),
     .required = true,
     .example = "\"SELECT player_id, balance FROM reward_account WHERE balance <> 0\"",
     .help = "The second query; a key that only one of them has is a difference."},
    {.section = "checks",
     .key = "settle",
     .type = OPTION_DURATION,
     .offset = CHECK(settle_us),
     .least = SECONDS / 10,
     .most = 600 * SECONDS,
     .fallback = "5s",
     .help = "What differs is looked at again after this, and counts if it is still the same.",
     .more = "Two databases are not read at one instant, and events are on their way: longer "
             "than they usually take."},

    {.section = "reconcile",
     .key = "every",
     .type = OPTION_DURATION,
     .offset = TOP(reconcile_every_us),
     .least = 0,
     .most = 30 * DAYS,
     .fallback = "0s",
     .help = "How often a running process compares every consumer and check; 0s: never.",
     .more = "On connections of its own. One process is enough: give it to one."},
    {.section = "reconcile",
     .key = "window",
     .type = OPTION_DURATION,
     .offset = TOP(reconcile_window_us),
     .least = 60 * SECONDS,
     .most = 3650 * DAYS,
     .fallback = "1d",
     .help = "How far back the running process looks at events; the command looks at all."},

    {.section = "http",
     .key = "listen",
     .type = OPTION_LISTEN,
     .offset = TOP(http_listen),
     .example = "\"127.0.0.1:9187\"",
     .help = "Address and port, e.g. 127.0.0.1:9187. Without it no server is started."},
    {.section = "log",
     .key = "level",
     .type = OPTION_WORD,
     .offset = TOP(log_level),
     .words = "debug|info|warn|error",
     .fallback = "info",
     .help = "Least level shown."},
    {.section = "log",
     .key = "format",
     .type = OPTION_WORD,
     .offset = TOP(log_format),
     .words = "text|json",
     .fallback = "text",
     .help = "logfmt, or one JSON object a line."},
};
const size_t option_count = PR_LENGTH(options);
_Static_assert(PR_LENGTH(options) <= OPTIONS_MOST, "the parser keeps a number for each");

const struct section *
section_find(const char *name)
{
    for (size_t i = 0; i < section_count; i++)
        if (strcmp(sections[i].name, name) == 0)
            return &sections[i];
    return NULL;
}

const struct option *
option_find(const char *section, const char *key)
{
    for (size_t i = 0; i < option_count; i++)
        if (strcmp(options[i].section, section) == 0 && strcmp(options[i].key, key) == 0)
            return &options[i];
    return NULL;
}

size_t
section_length(const struct section *section, const struct config *config)
{
    const char *list = (const char *) config + section->list_offset;

    return *(const size_t *) (const void *) (list + sizeof(void *));
}

void *
section_element(const struct section *section, const struct config *config, size_t i)
{
    const void *list = (const char *) config + section->list_offset;

    return *(char *const *) list + i * section->size;
}

const char *
element_name(const void *element)
{
    return *(char *const *) element;
}

bool
option_is_foreign(const struct option *o, const void *element)
{
    if (!o->only)
        return false;
    const struct destination_config *d = element; /* no other section has such options */
    return !d->transport || value_word_index(o->only, d->transport) < 0;
}

const char *
option_last_key(const struct option *o)
{
    const char *dot = strrchr(o->key, '.');

    return dot ? dot + 1 : o->key;
}

const char *
option_expected(const struct option *o, char *text, size_t size)
{
    char low[32], high[32];

    switch (o->type) {
    case OPTION_DSN:
        snprintf(text, size, "a connection string, host=… dbname=… or postgresql://…");
        break;
    case OPTION_SQL:
        snprintf(text, size, "a query");
        break;
    case OPTION_TOPIC:
        snprintf(text, size, "fixed text, {aggregate_type}, or both");
        break;
    case OPTION_LISTEN:
        snprintf(text, size, "address:port, e.g. 127.0.0.1:9187");
        break;
    case OPTION_INTEGER:
        snprintf(text, size, "a number from %" PRId64 " to %" PRId64, o->least, o->most);
        break;
    case OPTION_DURATION:
        snprintf(text, size, "a duration from %s to %s",
                 value_duration_text(o->least, low, sizeof(low)),
                 value_duration_text(o->most, high, sizeof(high)));
        break;
    case OPTION_NAME_OF:
        snprintf(text, size, "a name from %s", o->words);
        break;
    case OPTION_LIST:
        snprintf(text, size, "a list, [A, B]");
        break;
    case OPTION_SETTINGS:
        snprintf(text, size, "a map from settings to values");
        break;
    case OPTION_HANDLERS:
        snprintf(text, size, "a map from event types to {sql: \"…\"}");
        break;
    case OPTION_RULES:
        snprintf(text, size, "a list of rules");
        break;
    default:
        if (o->words)
            value_words_text(o->words, text, size);
        else
            snprintf(text, size, "text");
    }
    return text;
}
