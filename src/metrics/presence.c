#include "metrics/presence.h"

#include <stdio.h>
#include <unistd.h>

#include "core/log.h"

static const struct pgstmt stmt_tell = {
    "presence",
    "INSERT INTO postrider.instance AS i (id, side, reader, name, host, state, reason, hint,"
    "  since, seen_at, until)"
    " VALUES ($1::uuid, $2::text, $3::smallint, $4::text, $5::text, $6::text, $7::text, $8::text,"
    "   clock_timestamp(), clock_timestamp(),"
    "   clock_timestamp() + $9::bigint * interval '1 microsecond')"
    " ON CONFLICT (id) DO UPDATE SET state = excluded.state, reason = excluded.reason,"
    "   hint = excluded.hint, seen_at = excluded.seen_at, until = excluded.until,"
    "   since = CASE WHEN i.state = excluded.state THEN i.since ELSE excluded.since END",
};

void
presence_init(struct presence *p, const char *side, const char *name, int64_t lease_us)
{
    *p = (struct presence){.side = side, .name = name, .lease_us = lease_us, .told = -1};
    if (gethostname(p->host, sizeof(p->host) - 1) != 0)
        snprintf(p->host, sizeof(p->host), "unknown");
}

void
presence_tell(struct presence *p, struct pgconn *conn, const struct uuid *id, int16_t reader,
              const struct health *health, int64_t quiet_us)
{
    struct arena arena = {0};
    struct pgparams params = {.arena = &arena};
    struct health_word word;
    struct error err;

    health_word(health, &word);
    if ((word.changes == p->told && quiet_us == 0) || !pgconn_ok(conn))
        return;
    pgparams_uuid(&params, id);
    pgparams_text(&params, p->side);
    pgparams_i16(&params, reader);
    pgparams_text(&params, p->name);
    pgparams_text(&params, p->host);
    pgparams_text(&params, health_state_name(word.state));
    pgparams_text(&params, word.reason[0] ? word.reason : NULL);
    pgparams_text(&params, word.hint[0] ? word.hint : NULL);
    pgparams_i64(&params, p->lease_us + quiet_us);
    if (pgconn_run(conn, &stmt_tell, &params, &err))
        p->told = word.changes;
    else
        log_failure(LOG_DEBUG, "daemon.presence", &err);
    arena_release(&arena);
}
