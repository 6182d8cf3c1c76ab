#include "relay/prevs.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/digest.h"

void
prevs_forget(struct prevs *prevs)
{
    for (int i = 0; i < PREVS_KEPT; i++) {
        free(prevs->kept[i].stream);
        prevs->kept[i].stream = NULL;
    }
}

/* The place of a stream; another's is dropped from it. */
static struct prev_known *
place_of(struct prevs *prevs, const struct outbox_row *row, bool *ret_known)
{
    char *stream = xasprintf("%s\x1f%s", row->aggregate_type, row->aggregate_id);
    struct prev_known *known = &prevs->kept[murmur2(stream, strlen(stream)) % PREVS_KEPT];

    *ret_known = known->stream && strcmp(known->stream, stream) == 0;
    if (*ret_known) {
        free(stream);
    } else {
        free(known->stream);
        known->stream = stream;
    }
    return known;
}

static bool
look_up(struct prevs *prevs, struct pgconn *conn, struct prev_want **missing, int count,
        struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    struct pgarray types = {0}, ids = {0}, versions = {0};
    PGresult *res;

    pgarray_start(&types, PG_TEXT);
    pgarray_start(&ids, PG_TEXT);
    pgarray_start(&versions, PG_INT8);
    for (int i = 0; i < count; i++) {
        pgarray_text(&types, missing[i]->row->aggregate_type);
        pgarray_text(&ids, missing[i]->row->aggregate_id);
        pgarray_i64(&versions, missing[i]->row->version);
    }
    pgparams_i16(&p, prevs->relay);
    pgparams_array(&p, &types);
    pgparams_array(&p, &ids);
    pgparams_array(&p, &versions);
    window_add_list(&p, prevs->filter ? prevs->filter->event_types : NULL,
                    prevs->filter ? prevs->filter->event_type_count : 0);
    bool ok = pgconn_query(conn, prevs->lookup, &p, &res, err);
    for (int i = 0; ok && i < count; i++)
        missing[i]->found = pgresult_i64(res, i, 0);
    if (ok)
        PQclear(res);
    pgarray_release(&types);
    pgarray_release(&ids);
    pgarray_release(&versions);
    arena_release(&arena);
    return ok;
}

bool
prevs_find(struct prevs *prevs, struct pgconn *conn, struct prev_want *wants, int count,
           struct error *err)
{
    struct prev_want **missing = xmalloc(sizeof(struct prev_want *) * ((size_t) count + 1));
    int missing_count = 0;

    for (int i = 0; i < count; i++) {
        struct prev_want *want = &wants[i];
        bool known;
        struct prev_known *kept = place_of(prevs, want->row, &known);
        /* After a new reading of the same rows, what is remembered may lie ahead. */
        if (known && !want->look_up && kept->version < want->row->version)
            want->found = kept->version;
        else
            missing[missing_count++] = want;
        kept->version = want->row->version;
    }
    bool ok = missing_count == 0 || look_up(prevs, conn, missing, missing_count, err);
    if (!ok)
        prevs_forget(prevs);
    free(missing);
    return ok;
}
