#include "cli/consumers.h"

#include <string.h>

#include "pg/pgerror.h"
#include "pg/schema.h"

enum { STATEMENT_MS = 3600000 }; /* what forgets many records takes its time */

const struct consumer_config *
consumers_find(const struct config *config, const char *name, struct error *err)
{
    for (size_t i = 0; i < config->consumer_count; i++)
        if (strcmp(config->consumers[i].name, name) == 0)
            return &config->consumers[i];
    error_set_exit(err, ERR_PERMANENT, EXIT_USAGE, "cli.usage",
                   "the configuration has no consumer \"%s\"", name);
    return NULL;
}

bool
consumers_open(const char *dsn, const char *purpose, struct pgconn **ret, struct error *err)
{
    struct pgconn_options options = {
        .purpose = purpose, .system_search_path = true, .statement_timeout_ms = STATEMENT_MS};

    return pgconn_open(dsn, &options, ret, err) && schema_check(*ret, err);
}

bool
consumers_has_log(const struct consumer_config *c, const char *hint, struct error *err)
{
    if (c->destination->database)
        return true;
    error_set_exit(err, ERR_PERMANENT, EXIT_REFUSED, "consumer.refused",
                   "consumer %s reads from Kafka, which this command cannot do yet", c->name);
    return error_hint(err, "%s", hint);
}

bool
consumers_refused(const char *consumer, struct error *err)
{
    if (!pgerror_is(err, "55P03"))
        return false;
    error_set_exit(err, ERR_TRANSIENT, EXIT_DIFFERS, "pg.lock",
                   "consumer %s is at work on what this is about for more than 5 s; nothing was "
                   "done",
                   consumer);
    return error_hint(err, "try again when its handler is through");
}
