#include "consume/limits.h"

#include <inttypes.h>
#include <stdio.h>

#include "core/utf8.h"

enum { MOST_STREAMS = 1000 };

/* The streams that keep back most, and where the last parked event of each came from. */
static const struct pgstmt stmt_fullest = {
    "fullest_streams",
    "SELECT s.parked, s.aggregate_type, s.aggregate_id,"
    "  (SELECT p.part FROM postrider.parked p"
    "   WHERE p.side = 'consumer' AND p.reader = $1::smallint AND p.topic = $2::text"
    "     AND p.aggregate_type = s.aggregate_type AND p.aggregate_id = s.aggregate_id AND p.holds"
    "   ORDER BY p.version DESC LIMIT 1)"
    " FROM (SELECT * FROM postrider.stream WHERE consumer = $1::smallint AND parked > 0"
    "   AND parked >= $3::bigint"
    "   ORDER BY parked DESC LIMIT 1000) s"
    " UNION ALL (SELECT parked, aggregate_type, aggregate_id, NULL FROM postrider.stream"
    "   WHERE consumer = $1::smallint AND parked > 0 AND parked < $3::bigint"
    "   ORDER BY parked DESC LIMIT 1) ORDER BY 1 DESC",
};

/* Where it rests already, it goes on a little below the limit, not with every single event. */
static int64_t
threshold(int limit, bool was_full)
{
    return was_full ? limit - limit / 10 : limit;
}

static void
hold_all(struct limits *l, struct partitions *p)
{
    for (int i = 0; i < p->count; i++)
        p->list[i].full = true;
    l->held = p->count;
}

static void
say_total(struct limits *l, const struct consumer_config *config, int64_t sum)
{
    snprintf(l->reason, sizeof(l->reason),
             "%" PRId64 " events are parked, and parked_limit.total is %d: nothing more is read",
             sum, config->parked_total);
    snprintf(l->hint, sizeof(l->hint),
             "mend or discard dead letters (`postrider dlq list --consumer %s`), close gaps "
             "(`postrider gaps list`), or raise parked_limit.total; it goes on by itself",
             config->name);
}

static void
say_stream(struct limits *l, const struct consumer_config *config, const PGresult *res, int row)
{
    snprintf(l->reason, sizeof(l->reason),
             "stream %.100s:%.100s has %s events parked, and parked_limit.stream is %d: partition "
             "%s of topic %.100s is not read, others go on",
             PQgetvalue(res, row, 1), PQgetvalue(res, row, 2), PQgetvalue(res, row, 0),
             config->parked_stream, PQgetvalue(res, row, 3), config->topic);
    utf8_mend(l->reason);
    snprintf(l->hint, sizeof(l->hint),
             "mend what the stream waits for (`postrider dlq list --consumer %s`, `postrider gaps "
             "list`), or raise parked_limit.stream if the missing event is still to be read; it "
             "goes on by itself",
             config->name);
}

/* Marks the partitions of full streams; how much room the fullest of the others has. */
static int64_t
mark_streams(struct limits *l, struct applier *a, const PGresult *res)
{
    const struct consumer_config *config = a->config;
    struct partitions *p = &a->partitions;
    int64_t parked = 0;
    int row;

    for (int i = 0; i < p->count; i++) {
        p->list[i].was_full = p->list[i].full;
        p->list[i].full = false;
    }
    for (row = 0; row < PQntuples(res); row++) {
        parked = pgresult_i64(res, row, 0);
        if (parked < threshold(config->parked_stream, true))
            break;
        struct partition *of = PQgetisnull(res, row, 3)
                                   ? NULL
                                   : partitions_find(p, (int32_t) pgresult_i64(res, row, 3));
        if (!of || of->full || parked < threshold(config->parked_stream, of->was_full))
            continue;
        of->full = true;
        l->held++;
        if (l->held == 1)
            say_stream(l, config, res, row);
    }
    if (row == MOST_STREAMS) /* there may be others that were not seen */
        hold_all(l, p);
    return config->parked_stream - (row < PQntuples(res) ? parked : 0);
}

bool
limits_look(struct limits *l, struct applier *a, const struct parked *parked, struct error *err)
{
    struct arena arena = {0};
    struct pgparams params = {.arena = &arena};
    int64_t sum = 0, stream_room;
    PGresult *res;

    pgparams_i16(&params, a->consumer);
    pgparams_text(&params, a->config->topic);
    pgparams_i64(&params, threshold(a->config->parked_stream, true));
    bool ok = pgconn_query(a->conn, &stmt_fullest, &params, &res, err);
    arena_release(&arena);
    if (!ok)
        return false;
    for (int i = 0; i < PARKED_STATES; i++)
        sum += parked->count[i];
    l->held = 0;
    l->reason[0] = l->hint[0] = '\0';
    stream_room = mark_streams(l, a, res);
    PQclear(res);
    l->total_full = sum >= threshold(a->config->parked_total, l->total_full);
    if (l->total_full) {
        hold_all(l, &a->partitions);
        say_total(l, a->config, sum);
    }
    l->room = a->config->parked_total - sum;
    if (stream_room < l->room)
        l->room = stream_room;
    a->parked_since = 0;
    return true;
}

bool
limits_may_read(const struct limits *l, const struct partitions *p)
{
    return p->count > l->held && !l->total_full;
}

bool
limits_must_look(const struct limits *l, const struct applier *a)
{
    return a->parked_since > 0 && a->parked_since >= l->room;
}
