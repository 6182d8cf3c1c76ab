#include "transport/transport.h"

#include <string.h>

#include "core/attr.h"

static const struct transport_ops *const transports[] = {
    &transport_postgres,
    &transport_file,
#ifdef PR_KAFKA
    &transport_kafka,
#endif
    &transport_null,
};

const struct transport_ops *
transport_find(const char *kind)
{
    for (size_t i = 0; i < PR_LENGTH(transports); i++)
        if (strcmp(transports[i]->kind, kind) == 0)
            return transports[i];
    return NULL;
}

const char *
durability_name(enum durability durability)
{
    static const char *const names[] = {
        [DURABLE_NOT] = "not stored",
        [DURABLE_MEMORY] = "in memory",
        [DURABLE_PAGECACHE] = "in the page cache of one machine",
        [DURABLE_REPLICATED] = "on several machines",
        [DURABLE_FSYNC] = "on disk (fsync)",
        [DURABLE_BY_TOPIC] = "what each topic's settings say",
    };
    return names[durability];
}
