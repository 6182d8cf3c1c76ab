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

    return known && known->open ? &known->route : NULL;
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
    known->route = (struct route){known->topic, destination->partitions};
    return known;
}

static bool
fix_partitions(struct router *router, struct pgconn *conn, const struct route *route,
               struct error *err)
{
    struct arena arena = {0};
    struct pgparams put = {.arena = &arena}, get = {.arena = &arena};
    PGresult *res = NULL;
    bool ok = false;

    pgparams_i16(&put, router->relay);
    pgparams_text(&put, route->topic);
    pgparams_i32(&put, route->partitions);
    pgparams_i16(&get, router->relay);
    pgparams_text(&get, route->topic);
    if (!pgconn_run(conn, &stmt_route_add, &put, err) ||
        !pgconn_query(conn, &stmt_route, &get, &res, err))
        goto out;
    int fixed = (int) pgresult_i64(res, 0, 0);
    if (fixed != route->partitions) {
        error_set_exit(err, ERR_STOP, EXIT_CONFIG, "relay.partitions",
                       "topic %s was begun with %d partitions, the configuration says %d",
                       route->topic, fixed, route->partitions);
        error_hint(err,
                   "set destinations.%s.partitions to %d: another count would send later events "
                   "of a stream elsewhere, past earlier ones",
                   router->destination->name, fixed);
        goto out;
    }
    ok = true;

out:
    PQclear(res);
    arena_release(&arena);
    return ok;
}

bool
router_open(struct router *router, struct pgconn *conn, struct transport *transport,
            const char *aggregate_type, struct error *err)
{
    struct known *known = find(router, aggregate_type);

    if (!known)
        known = add(router, aggregate_type);
    if (!fix_partitions(router, conn, &known->route, err) ||
        !transport->ops->topic(transport, known->route.topic, known->route.partitions, err))
        return false;
    known->open = true;
    return true;
}

int
route_partition(const char *key, size_t len, int partitions)
{
    return (int) ((murmur2(key, len) & 0x7fffffff) % (uint32_t) partitions);
}
