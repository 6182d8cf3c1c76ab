#include "consume/source.h"

#include <inttypes.h>
#include <string.h>

bool
source_open(const struct consumer_config *config, struct source **ret, struct error *err)
{
    *ret = NULL;
    if (strcmp(config->destination->transport, "postgres") == 0)
        return source_postgres.open(config, ret, err);
#ifdef PR_KAFKA
    return source_kafka.open(config, ret, err);
#else
    error_set_exit(err, ERR_STOP, EXIT_CONFIG, "config.transport",
                   "destination %s: this program was built without transport %s",
                   config->destination->name, config->destination->transport);
    return error_hint(err, "build it with -Dkafka=enabled, or install a package that has it");
#endif
}

void
source_close(struct source *s)
{
    if (s)
        s->ops->close(s);
}

bool
source_start(struct source *s, struct partition_bounds *bounds, int count, struct error *err)
{
    enum start_at start;
    int64_t us;

    PR_CHECK(start_parse(s->config->start, &start, &us)); /* the configuration was checked */
    for (int i = 0; i < count; i++)
        bounds[i].start_off = start == START_EARLIEST ? bounds[i].first_off : bounds[i].next_off;
    return start != START_TIME || s->ops->find_time(s, us, bounds, count, err);
}

void
source_batch_release(struct source_batch *batch)
{
    for (int i = 0; i < batch->held_count; i++)
        batch->let_go(batch->held[i]);
    batch->held_count = batch->count = 0;
    arena_reset(&batch->arena);
}

/* Kafka's way back is by hand: `consumer rewind` reads the log of PostgreSQL only. */
static const char *
way_back(const struct source *s)
{
    return s->ops == &source_postgres
               ? "`postrider consumer rewind --to earliest`"
               : "set next_off by hand (docs/internals/consume.md, \"Kafka\")";
}

bool
source_overtaken(const struct source *s, int64_t part, int64_t ours, int64_t first,
                 struct error *err)
{
    error_set_exit(err, ERR_STOP, EXIT_DIFFERS, "consumer.overtaken",
                   "partition %" PRId64 " of topic %s: the log has dropped messages %" PRId64
                   " to %" PRId64 " before they were consumed",
                   part, s->config->topic, ours, first - 1);
    return error_hint(
        err,
        "raise the retention; what is missing must be repaired from the outbox, then %s: see "
        "docs/internals/consume.md, \"Overtaken\"",
        way_back(s));
}

bool
source_went_back(const struct source *s, int64_t part, int64_t ours, int64_t next,
                 struct error *err)
{
    error_set_exit(err, ERR_STOP, EXIT_DIFFERS, "consumer.went_back",
                   "partition %" PRId64 " of topic %s: the log is not the one that was read up to "
                   "%" PRId64 " (it ends at %" PRId64 ")",
                   part, s->config->topic, ours, next);
    return error_hint(err,
                      "the log was restored, made anew or failed over to an earlier state; %s; see "
                      "docs/internals/consume.md, \"The log went back\"",
                      way_back(s));
}
