#include "consume/applier.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/utf8.h"
#include "pg/schema.h"

const struct pgstmt stmt_begin = {
    "begin",
    "BEGIN ISOLATION LEVEL READ COMMITTED",
};
const struct pgstmt stmt_commit = {"commit", "COMMIT"};
const struct pgstmt stmt_settle = {
    "settle",
    "SELECT postrider.settle($1::smallint, $2::uuid[], $3::\"char\"[])",
};
const struct pgstmt stmt_reject = {
    "reject",
    "SELECT postrider.reject($1::smallint, $2::bigint, $3::uuid, $4::text, $5::text)",
};
static const struct pgstmt stmt_find = {
    "consumer",
    "SELECT consumer, 'postrider.parked_entry'::regtype::oid FROM postrider.consumer"
    " WHERE name = $1::text",
};

bool
applier_init(struct applier *a, const struct consumer_config *config, struct consumer_state *state,
             struct error *err)
{
    *a = (struct applier){.config = config, .state = state};
    a->handlers = xcalloc(config->handler_count + 1, sizeof(*a->handlers));
    partitions_init(&a->partitions, config->topic, config->lease_us);
    for (size_t i = 0; i < config->handler_count; i++) {
        if (!handler_compile(&config->handlers[i], config->name, (int) i, &a->handlers[i], err))
            return false;
        a->handler_count++;
    }
    return true;
}

void
applier_release(struct applier *a)
{
    applier_close(a);
    for (int i = 0; i < a->handler_count; i++)
        handler_release(&a->handlers[i]);
    free(a->handlers);
    partitions_release(&a->partitions);
    arena_release(&a->arena);
    *a = (struct applier){0};
}

static bool
find_consumer(struct applier *a, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    PGresult *res = NULL;

    pgparams_text(&p, a->config->name);
    bool ok = pgconn_query(a->conn, &stmt_find, &p, &res, err);
    if (ok && PQntuples(res) == 0) {
        ok = error_set_exit(err, ERR_STOP, EXIT_CONFIG, "consumer.unknown",
                            "consumer %s is not registered in %s", a->config->name,
                            pgconn_target(a->conn));
        error_hint(err, "run `postrider init` with this configuration");
    } else if (ok) {
        a->consumer = a->partitions.consumer = (int16_t) pgresult_i64(res, 0, 0);
        a->entry_type = (unsigned) pgresult_i64(res, 0, 1);
    }
    PQclear(res);
    arena_release(&arena);
    return ok;
}

bool
applier_open(struct applier *a, struct error *err)
{
    char purpose[96];
    struct pgconn_options options = {.purpose = purpose};

    applier_close(a);
    snprintf(purpose, sizeof(purpose), "consumer %s", a->config->name);
    if (!pgconn_open(a->config->database, &options, &a->conn, err) || !schema_check(a->conn, err) ||
        !find_consumer(a, err))
        return false;
    for (int i = 0; i < a->handler_count; i++)
        if (!handler_prepare(&a->handlers[i], a->conn, err))
            return false;
    return pgconn_prepare(a->conn, &stmt_begin, err) &&
           pgconn_prepare(a->conn, &stmt_commit, err) &&
           pgconn_prepare(a->conn, &stmt_settle, err) && pgconn_prepare(a->conn, &stmt_reject, err);
}

void
applier_close(struct applier *a)
{
    pgconn_close(a->conn);
    a->conn = NULL;
    partitions_forget(&a->partitions); /* a position in memory is good on its connection only */
}

const char *
applier_order(const struct applier *a)
{
    static const char *const words[] = {
        [ORDER_STREAM] = "stream", [ORDER_LATEST] = "latest", [ORDER_NONE] = "none"};

    return words[a->config->order];
}

/* Past "what: " at the beginning of the text, which may be all of it: a message can be empty. */
static const char *
past(const char *text, const char *what)
{
    size_t len = strlen(what);

    if (strncmp(text, what, len) != 0 || text[len] != ':')
        return text;
    return text + len + (text[len + 1] == ' ' ? 2 : 1);
}

void
applier_failure(const struct applier *a, const struct error *err, bool dead, struct failure *ret)
{
    char purpose[96];
    const char *text;

    snprintf(purpose, sizeof(purpose), "consumer %s", a->config->name);
    text = past(err->text, purpose);
    for (int i = 0; i < a->handler_count; i++)
        text = past(text, a->handlers[i].stmt.name);
    *ret = (struct failure){.dead = dead, .cls = err->cls};
    snprintf(ret->code, sizeof(ret->code), "%s", err->sqlstate[0] ? err->sqlstate : err->code);
    snprintf(ret->message, sizeof(ret->message), "%s", text);
    utf8_mend(ret->message);
}

void
applier_reject(struct work *work, const struct failure *failure)
{
    work->kind = 'r';
    work->failure = failure;
}

void
applier_reject_params(const struct applier *a, const struct work *work, int64_t parked_id,
                      struct pgparams *ret)
{
    pgparams_i16(ret, a->consumer);
    if (parked_id)
        pgparams_i64(ret, parked_id);
    else
        pgparams_text(ret, NULL);
    pgparams_uuid(ret, &work->in->event_id);
    pgparams_text(ret, work->failure->code);
    pgparams_text(ret, work->failure->message);
}

static const struct handler *
find_handler(const struct applier *a, const char *event_type)
{
    for (int i = 0; i < a->handler_count; i++)
        if (strcmp(a->handlers[i].config->event_type, event_type) == 0)
            return &a->handlers[i];
    return NULL;
}

static bool
is_ignored(const struct applier *a, const char *event_type)
{
    for (size_t i = 0; i < a->config->ignore_count; i++)
        if (strcmp(a->config->ignore[i], event_type) == 0)
            return true;
    return false;
}

void
applier_prepare(const struct applier *a, const struct incoming *in, struct arena *arena,
                struct work *ret)
{
    struct error err = {0};

    *ret = (struct work){.in = in, .params = {.arena = arena}};
    if (in->foreign)
        return;
    ret->handler = find_handler(a, in->event_type);
    ret->kind = ret->handler ? 'h' : is_ignored(a, in->event_type) ? 'i' : 'u';
    if (ret->handler && !handler_bind(ret->handler, in, &ret->params, &err)) {
        struct failure *failure = arena_alloc(arena, sizeof(*failure));
        applier_failure(a, &err, true, failure);
        ret->failure = failure;
    }
}

void
applier_rollback(struct applier *a)
{
    struct error ignored;

    if (pgconn_ok(a->conn) && pgconn_exec(a->conn, "ROLLBACK", &ignored))
        return;
    pgconn_close(a->conn);
    a->conn = NULL;
}

bool
applier_committed(PGresult *res, struct error *err)
{
    /* Of a transaction that had failed the server answers "ROLLBACK", and no error. */
    if (strcmp(PQcmdStatus(res), "COMMIT") == 0)
        return true;
    return error_set(err, ERR_UNKNOWN, "consumer.rolled_back",
                     "the transaction was rolled back although no statement failed");
}
