#include "cli/dlq.h"

#include <string.h>

#include "pg/schema.h"

struct walk {
    const struct command_env *env;
    dlq_visit on;
    void *arg;
    const char *relay, *consumer; /* the names wanted; both NULL: all */
    bool found;
};

static bool
is_wanted(const struct walk *walk, const struct dlq_reader *reader)
{
    const char *wanted = strcmp(reader->side, "relay") == 0 ? walk->relay : walk->consumer;

    return (!walk->relay && !walk->consumer) || (wanted && strcmp(wanted, reader->name) == 0);
}

static bool
visit(struct walk *walk, const struct dlq_reader *reader, struct error *err)
{
    struct pgconn_options options = {.purpose = "dlq", .system_search_path = true};
    struct pgconn *conn = NULL;

    if (!is_wanted(walk, reader))
        return true;
    walk->found = true;
    bool ok = pgconn_open(reader->database, &options, &conn, err) && schema_check(conn, err) &&
              walk->on(walk->env, conn, reader, walk->arg, err);
    pgconn_close(conn);
    return ok;
}

static bool
visit_all(struct walk *walk, const struct config *config, struct error *err)
{
    for (size_t i = 0; i < config->relay_count; i++) {
        const struct relay_config *r = &config->relays[i];
        struct dlq_reader reader = {"relay", r->name, r->outbox->database};
        if (!visit(walk, &reader, err))
            return false;
    }
    for (size_t i = 0; i < config->consumer_count; i++) {
        const struct consumer_config *c = &config->consumers[i];
        struct dlq_reader reader = {"consumer", c->name, c->database};
        if (!visit(walk, &reader, err))
            return false;
    }
    if (walk->found || (!walk->relay && !walk->consumer))
        return true;
    return error_set_exit(err, ERR_PERMANENT, EXIT_USAGE, "dlq.reader",
                          "the configuration has no %s \"%s\"", walk->relay ? "relay" : "consumer",
                          walk->relay ? walk->relay : walk->consumer);
}

int
dlq_each(const struct command_env *env, const char *relay, const char *consumer, dlq_visit on,
         void *arg)
{
    struct walk walk = {.env = env, .on = on, .arg = arg, .relay = relay, .consumer = consumer};
    struct config *config = NULL;
    struct error err;
    bool ok = cli_config(env, &config, &err) && visit_all(&walk, config, &err);

    config_free(config);
    return ok ? EXIT_OK : cli_fail(env, &err);
}
