#include "consume/verdict.h"

#include <string.h>

#include "config/rules.h"
#include "core/digest.h"
#include "core/strbuf.h"
#include "pg/pgerror.h"
#include "pg/sqlstate.h"

bool
verdict_is_repeat(const struct error *err)
{
    return err->sqlstate[0] && sqlstate_find(err->sqlstate)->at_once;
}

/* ------------------------------------------------------------------ proof */

/* Runs the handler for another event and undoes it; whether it failed the same way. */
static bool
fails_alike(struct applier *a, const struct work *other, const struct error *cause)
{
    struct error err = {0};
    bool begun = pgconn_run(a->conn, &stmt_begin, NULL, &err);
    bool ran = begun && pgconn_run(a->conn, &other->handler->stmt, &other->params, &err);

    applier_rollback(a);
    return !ran && strcmp(err.sqlstate, cause->sqlstate) == 0;
}

/* Whether the statement as such has become impossible. */
static bool
cannot_be_prepared(struct applier *a, const struct handler *handler, const struct error *cause)
{
    struct strbuf sql = {0};
    struct error err = {0};

    strbuf_addf(&sql, "PREPARE postrider_probe AS %s", handler->stmt.sql);
    bool ok = pgconn_exec(a->conn, strbuf_str(&sql), &err);
    if (ok)
        ok = pgconn_exec(a->conn, "DEALLOCATE postrider_probe", &err);
    strbuf_release(&sql);
    return !ok && strcmp(err.sqlstate, cause->sqlstate) == 0;
}

static bool
same_stream(const struct incoming *x, const struct incoming *y)
{
    return strcmp(x->aggregate_id, y->aggregate_id) == 0 &&
           strcmp(x->aggregate_type, y->aggregate_type) == 0;
}

static uint32_t
stream_hash(const struct incoming *in)
{
    return murmur2(in->aggregate_type, strlen(in->aggregate_type)) * 31 +
           murmur2(in->aggregate_id, strlen(in->aggregate_id));
}

/* Whether another stream's event has failed alike, and the handler has not worked since. */
static bool
failed_alike_before(struct applier *a, const struct work *culprit, const struct error *cause)
{
    struct evidence *e = &a->evidence;
    struct evidence now = {.handler = culprit->handler, .stream = stream_hash(culprit->in)};

    memcpy(now.sqlstate, cause->sqlstate, sizeof(now.sqlstate));
    bool alike = e->handler == now.handler && strcmp(e->sqlstate, now.sqlstate) == 0;
    now.proven = alike && (e->proven || e->stream != now.stream);
    *e = now;
    return now.proven;
}

void
verdict_clear(struct applier *a, const struct work *work)
{
    if (work->decision == 'a' && a->evidence.handler == work->handler)
        a->evidence.handler = NULL;
}

static bool
is_proven(struct applier *a, const struct work *culprit, const struct work *others, int count,
          const struct error *cause)
{
    struct error err = {0};

    if (failed_alike_before(a, culprit, cause) || !pgconn_ok(a->conn) ||
        !partitions_probe(&a->partitions, a->conn, &err))
        return true;
    for (int i = 0; i < count; i++) {
        const struct work *other = &others[i];
        if (other->handler == culprit->handler && !other->failure &&
            !same_stream(other->in, culprit->in))
            return (a->evidence.proven = fails_alike(a, other, cause));
    }
    return cause->scope == SCOPE_HANDLER && cannot_be_prepared(a, culprit->handler, cause);
}

/* A disk or a memory that is full is nobody's event, whatever a small probe says. */
static bool
needs_no_proof(const struct error *err)
{
    return pgerror_is(err, "53100") || pgerror_is(err, "53200") || err->cls == ERR_STOP;
}

/* ------------------------------------------------------------------ verdict */

static bool
is_last_try(const struct error *err, int tries)
{
    switch (err->cls) {
    case ERR_PERMANENT:
        return true;
    case ERR_TRANSIENT:
        return (pgerror_is(err, "23503") || pgerror_is(err, "57014")) && tries >= MOST_COUNTED;
    default:
        return tries >= MOST_UNKNOWN;
    }
}

static void
name_the_pause(const struct work *culprit, struct error *err)
{
    if (err->scope != SCOPE_HANDLER)
        return;
    error_wrap(err, "the handler of %s fails for every event (%s)",
               culprit->handler->config->event_type, err->sqlstate);
    if (!err->hint[0])
        error_hint(err, "mend the handler or the database; no event is charged for it");
}

/* What the configuration says of this error: the handler's own rules first. */
static const struct error_rule *
find_rule(const struct applier *a, const struct work *culprit, const struct error *err)
{
    struct failure seen;
    const struct error_rule *rule;

    if (!err->sqlstate[0] || verdict_is_repeat(err))
        return NULL;
    applier_failure(a, err, false, &seen);
    rule = rules_find(&culprit->handler->config->errors, err->sqlstate, seen.message);
    if (!rule)
        rule = rules_find(&a->config->errors, err->sqlstate, seen.message);
    /* A class of codes, or a message, does not speak of what looks like the handler's or the
     * server's own trouble: that code must be named. */
    return rule && (err->scope == SCOPE_EVENT || rule_is_exact(rule)) ? rule : NULL;
}

enum verdict
verdict_find(struct applier *a, const struct work *culprit, int tries, const struct work *others,
             int other_count, struct error *err, struct failure *ret)
{
    if (needs_no_proof(err))
        return VERDICT_PAUSE;
    const struct error_rule *rule = find_rule(a, culprit, err);
    if (rule) {
        err->cls = rule->cls;
        bool last = err->cls == ERR_PERMANENT || (err->cls == ERR_UNKNOWN && tries >= MOST_UNKNOWN);
        applier_failure(a, err, last, ret);
        return VERDICT_EVENT;
    }
    if (err->scope != SCOPE_EVENT) {
        if (is_proven(a, culprit, others, other_count, err)) {
            name_the_pause(culprit, err);
            return VERDICT_PAUSE;
        }
        err->cls = ERR_UNKNOWN;
    }
    applier_failure(a, err, is_last_try(err, tries), ret);
    return VERDICT_EVENT;
}
