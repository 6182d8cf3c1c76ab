#include "relay/router.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/digest.h"
#include "core/strbuf.h"

struct known {
    char *aggregate_type;
    char *topic;
    struct route route;
    bool open;
};

struct router {
    int16_t relay;
    const struct destination_config *destination;
    struct known *known; /* a service has a handful of aggregate types */
    int count, cap;
};

static const struct pgstmt stmt_route_add = {
    "route_add",
    "INSERT INTO postrider.route (relay, topic, partitions)"
    " VALUES ($1::smallint, $2::text, $3::int) ON CONFLICT (relay, topic) DO NOTHING",
};
static const struct pgstmt stmt_route = {
    "route",
    "SELECT partitions FROM postrider.route WHERE relay = $1::smallint AND topic = $2::text",
};

struct router *
router_new(int16_t relay, const struct destination_config *destination)
{
    struct router *router = xcalloc(1, sizeof(*router));

    router->relay = relay;
    router->destination = destination;
    return router;
}

void
router_free(struct router *router)
{
    if (!router)
        return;
    router_retry_refused(router);
    for (int i = 0; i < router->count; i++) {
        free(router->known[i].aggregate_type);
        free(router->known[i].topic);
    }
    free(router->known);
    free(router);
}

void
router_forget(struct router *router)
{
    for (int i = 0; i < router->count; i++)
        router->known[i].open = false;
}

void
router_retry_refused(struct router *router)
{
    for (int i = 0; i < router->count; i++) {
        free(router->known[i].route.refusal);
        router->known[i].route.refusal = NULL;
    }
}

static struct known *
find(struct router *router, const char *aggregate_type)
{
    for (int i = 0; i < router->count; i++)
        if (strcmp(router->known[i].aggregate_type, aggregate_type) == 0)
            return &router->known[i];
    return NULL;
}

const struct route *
router_find(struct router *router, const char *aggregate_type)
{
    struct known *known = find(router, aggregate_type);

    return known && (known->open || known->route.refusal) ? &known->route : NULL;
}

/* The template with {aggregate_type} filled in. */
static char *
fill_template(const char *template, const char *aggregate_type)
{
    static const char place[] = "{aggregate_type}";
    struct strbuf out = {0};

    for (const char *at = template, *hole; *at; at = hole + strlen(place)) {
        hole = strstr(at, place);
        if (!hole) {
            strbuf_adds(&out, at);
            break;
        }
        strbuf_add(&out, at, (size_t) (hole - at));
        strbuf_adds(&out, aggregate_type);
    }
    return strbuf_take(&out);
}

static struct known *
add(struct router *router, const char *aggregate_type)
{
    const struct destination_config *destination = router->destination;
    struct known *known;

    GROW(router->known, router->count, router->cap);
    known = &router->known[router->count++];
    *known = (struct known){.aggregate_type = xstrdup(aggregate_type)};
    known->topic = destination->topic ? fill_template(destination->topic, aggregate_type)
                                      : xstrdup(aggregate_type);
    known->route = (struct route){.topic = known->topic};
    return known;
}

/* The count fixed at the topic's first use; 0: there was none yet. */
static bool
read_fixed(struct router *router, struct pgconn *conn, const char *topic, int *ret,
           struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    PGresult *res;

    pgparams_i16(&p, router->relay);
    pgparams_text(&p, topic);
    bool ok = pgconn_query(conn, &stmt_route, &p, &res, err);
    if (ok) {
        *ret = PQntuples(res) > 0 ? (int) pgresult_i64(res, 0, 0) : 0;
        PQclear(res);
    }
    arena_release(&arena);
    return ok;
}

static bool
fix(struct router *router, struct pgconn *conn, const struct route *route, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};

    pgparams_i16(&p, router->relay);
    pgparams_text(&p, route->topic);
    pgparams_i32(&p, route->partitions);
    bool ok = pgconn_run(conn, &stmt_route_add, &p, err);
    arena_release(&arena);
    return ok;
}

static bool
is_as_fixed(const struct router *router, const struct route *route, int fixed, int now,
            const char *who, struct error *err)
{
    if (fixed == 0 || now == 0 || fixed == now)
        return true;
    error_set_exit(err, ERR_STOP, EXIT_CONFIG, "relay.partitions",
                   "topic %s was begun with %d partitions, %s %d", route->topic, fixed, who, now);
    return error_hint(err,
                      "set destinations.%s.partitions to %d: another count would send later events "
                      "of a stream elsewhere, past earlier ones",
                      router->destination->name, fixed);
}

static bool
open_route(struct router *router, struct pgconn *conn, struct transport *transport,
           struct route *route, struct error *err)
{
    int fixed, has, asked = router->destination->partitions;

    if (!read_fixed(router, conn, route->topic, &fixed, err) ||
        !is_as_fixed(router, route, fixed, asked, "the configuration says", err))
        return false;
    has = fixed ? fixed : asked;
    if (!transport->ops->topic(transport, route->topic, &has, err) ||
        !is_as_fixed(router, route, fixed, has, "it has now", err))
        return false;
    route->partitions = has;
    if (fixed)
        return true;
    return fix(router, conn, route, err) && read_fixed(router, conn, route->topic, &fixed, err) &&
           is_as_fixed(router, route, fixed, has, "this process counts", err);
}

bool
router_open(struct router *router, struct pgconn *conn, struct transport *transport,
            const char *aggregate_type, struct error *err)
{
    struct known *known = find(router, aggregate_type);

    if (!known)
        known = add(router, aggregate_type);
    if (open_route(router, conn, transport, &known->route, err)) {
        known->open = true;
        return true;
    }
    if (err->cls != ERR_PERMANENT || !pgconn_ok(conn))
        return false;
    known->route.refusal = xmemdup(err, sizeof(*err));
    return true;
}

int
route_partition(const char *key, size_t len, int partitions)
{
    return (int) ((murmur2(key, len) & 0x7fffffff) % (uint32_t) partitions);
}
