#include "cli/relays.h"

#include <stdio.h>
#include <string.h>

#include "pg/schema.h"
#include "source/mark/mark.h"

static bool
is_first_of_its_database(const struct config *config, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(config->outboxes[i].database, config->outboxes[n].database) == 0)
            return false;
    return true;
}

bool
relays_each_database(const struct config *config, const char *purpose, relays_visit on, void *arg,
                     struct error *err)
{
    struct pgconn_options options = {.purpose = purpose, .system_search_path = true};

    for (size_t i = 0; i < config->outbox_count; i++) {
        const struct outbox_config *outbox = &config->outboxes[i];
        struct pgconn *conn = NULL;
        if (!is_first_of_its_database(config, i))
            continue;
        bool ok = pgconn_open(outbox->database, &options, &conn, err) && schema_check(conn, err) &&
                  on(conn, outbox, arg, err);
        pgconn_close(conn);
        if (!ok)
            return false;
    }
    return true;
}

const struct relay_config *
relays_find(const struct config *config, const char *name)
{
    for (size_t i = 0; i < config->relay_count; i++)
        if (strcmp(config->relays[i].name, name) == 0)
            return &config->relays[i];
    return NULL;
}

bool
relays_mark_age(struct pgconn *conn, const struct outbox_config *outbox, int64_t *ret,
                struct error *err)
{
    struct mark *mark;
    PGresult *res;

    if (!mark_open(conn, outbox, &mark, err))
        return false;
    bool ok = pgconn_query(conn, &mark->due, NULL, &res, err);
    if (ok) {
        *ret = PQgetisnull(res, 0, 0) ? -1 : pgresult_i64(res, 0, 0);
        PQclear(res);
    }
    mark_free(mark);
    return ok;
}

void
relays_duration(int64_t ms, char *ret, size_t size)
{
    double s = (double) ms / 1000;

    if (s < 120)
        snprintf(ret, size, "%.1f s", s);
    else if (s < 7200)
        snprintf(ret, size, "%.0f min", s / 60);
    else if (s < 172800)
        snprintf(ret, size, "%.0f h", s / 3600);
    else
        snprintf(ret, size, "%.0f d", s / 86400);
}
