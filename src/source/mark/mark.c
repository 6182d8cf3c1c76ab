#include "source/mark/mark.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"

enum { COLUMNS = 10 };

/* A column as the table has it. */
struct column {
    const char *name; /* as the configuration has it */
    bool needed;
    char *quoted; /* as it stands in SQL; NULL: the table has none of that name */
    char *type;
    bool not_null;
};

struct table {
    const struct outbox_config *outbox;
    char *quoted;
    struct column id, aggregate_type, aggregate_id, version, event_type, payload, headers,
        content_type, occurred_at, state;
};

static const struct pgstmt stmt_columns = {
    "mark_columns",
    "SELECT a.attname, quote_ident(a.attname), format_type(a.atttypid, a.atttypmod),"
    "  a.attnotnull, format('%I.%I', n.nspname, c.relname)"
    " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped"
    " WHERE c.relkind IN ('r', 'p') AND CASE WHEN strpos($1::text, '.') > 0"
    "  THEN n.nspname = split_part($1::text, '.', 1) AND c.relname = split_part($1::text, '.', 2)"
    "  ELSE n.nspname = 'public' AND c.relname = $1::text END",
};

/* Whether an index serves the sweep: these key columns, in this order, for pending rows. */
static const struct pgstmt stmt_indexed = {
    "mark_indexed",
    "SELECT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = $1::text::regclass AND i.indisvalid"
    "  AND i.indpred IS NOT NULL AND i.indnkeyatts >= cardinality($2::text[])"
    "  AND pg_get_expr(i.indpred, i.indrelid) LIKE '%' || quote_literal($3::text) || '%'"
    "  AND $2::text[] = (SELECT array_agg(pg_get_indexdef(i.indexrelid, n, true) ORDER BY n)"
    "    FROM generate_series(1, cardinality($2::text[])) n))",
};

/* ------------------------------------------------------------------ looking it up */

static void
list_columns(struct table *t, struct column *ret[COLUMNS])
{
    struct column *all[COLUMNS] = {
        &t->id,      &t->aggregate_type, &t->aggregate_id, &t->version,     &t->event_type,
        &t->payload, &t->headers,        &t->content_type, &t->occurred_at, &t->state};

    memcpy(ret, all, sizeof(all));
}

static void
name_columns(struct table *t, const struct outbox_config *o)
{
    const struct columns_config *c = &o->columns;

    t->outbox = o;
    t->id = (struct column){.name = c->event_id, .needed = true};
    t->aggregate_type =
        (struct column){.name = c->aggregate_type, .needed = o->aggregate_type == NULL};
    t->aggregate_id = (struct column){.name = c->aggregate_id, .needed = true};
    t->version = (struct column){.name = c->aggregate_version, .needed = true};
    t->event_type = (struct column){.name = c->event_type, .needed = true};
    t->payload = (struct column){.name = c->payload, .needed = true};
    t->headers = (struct column){.name = c->headers};
    t->content_type = (struct column){.name = c->content_type};
    t->occurred_at = (struct column){.name = c->occurred_at};
    t->state = (struct column){.name = o->mark.column, .needed = true};
}

static void
release_table(struct table *t)
{
    struct column *all[COLUMNS];

    list_columns(t, all);
    for (int i = 0; i < COLUMNS; i++) {
        free(all[i]->quoted);
        free(all[i]->type);
    }
    free(t->quoted);
}

static void
take_columns(struct table *t, const PGresult *res)
{
    struct column *all[COLUMNS];

    list_columns(t, all);
    t->quoted = xstrdup(pgresult_str(res, 0, 4));
    for (int row = 0; row < PQntuples(res); row++) {
        for (int i = 0; i < COLUMNS; i++) {
            if (strcmp(all[i]->name, pgresult_str(res, row, 0)) != 0)
                continue;
            all[i]->quoted = xstrdup(pgresult_str(res, row, 1));
            all[i]->type = xstrdup(pgresult_str(res, row, 2));
            all[i]->not_null = pgresult_bool(res, row, 3);
        }
    }
}

static bool
check_columns(struct table *t, const char *target, struct error *err)
{
    struct column *all[COLUMNS];
    const struct outbox_config *o = t->outbox;

    list_columns(t, all);
    for (int i = 0; i < COLUMNS; i++) {
        if (!all[i]->needed || all[i]->quoted)
            continue;
        error_set_exit(err, ERR_STOP, EXIT_CONFIG, "outbox.column",
                       "table %s in %s has no column %s", o->table, target, all[i]->name);
        if (all[i] == &t->aggregate_type)
            return error_hint(err,
                              "say which with outboxes.%s.columns.aggregate_type, or the type "
                              "of all its events with outboxes.%s.aggregate_type",
                              o->name, o->name);
        return error_hint(err, "say which it is with outboxes.%s.columns or outboxes.%s.mark",
                          o->name, o->name);
    }
    if (t->version.not_null)
        return true;
    error_set_exit(err, ERR_STOP, EXIT_CONFIG, "outbox.column",
                   "column %s of table %s may be null, so events have no order", t->version.name,
                   o->table);
    return error_hint(err, "ALTER TABLE %s ALTER COLUMN %s SET NOT NULL", t->quoted,
                      t->version.quoted);
}

static bool
find_table(struct pgconn *conn, struct table *t, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    PGresult *res;

    pgparams_text(&p, t->outbox->table);
    bool ok = pgconn_query(conn, &stmt_columns, &p, &res, err);
    arena_release(&arena);
    if (!ok)
        return false;
    if (PQntuples(res) == 0) {
        ok = error_set_exit(err, ERR_STOP, EXIT_CONFIG, "outbox.table", "%s has no table %s",
                            pgconn_target(conn), t->outbox->table);
        error_hint(err, "outboxes.%s.table is schema.name, without quotes", t->outbox->name);
    } else {
        take_columns(t, res);
        ok = check_columns(t, pgconn_target(conn), err);
    }
    PQclear(res);
    return ok;
}

/* ------------------------------------------------------------------ statements */

static void
add_literal(struct strbuf *out, const char *text)
{
    strbuf_adds(out, strchr(text, '\\') ? " E'" : "'");
    for (; *text; text++) {
        if (*text == '\'' || *text == '\\')
            strbuf_addc(out, *text);
        strbuf_addc(out, *text);
    }
    strbuf_addc(out, '\'');
}

static void
is_pending(struct strbuf *out, const struct table *t)
{
    strbuf_addf(out, "%s = ", t->state.quoted);
    add_literal(out, t->outbox->mark.pending);
}

/*
 * An id that is no UUID becomes one of version 8, made of the table's name and the id:
 * the same each time.
 */
static void
add_event_id(struct strbuf *out, const struct table *t)
{
    if (strcmp(t->id.type, "uuid") == 0) {
        strbuf_adds(out, t->id.quoted);
        return;
    }
    strbuf_adds(out, "(SELECT encode(set_byte(set_byte(h, 6, get_byte(h, 6) & 15 | 128), 8,"
                     " get_byte(h, 8) & 63 | 128), 'hex')::uuid FROM substring(sha256(convert_to(");
    add_literal(out, t->quoted);
    strbuf_addf(out, " || ':' || %s::text, 'UTF8')) FROM 1 FOR 16) h)", t->id.quoted);
}

static void
add_aggregate_type(struct strbuf *out, const struct table *t)
{
    if (t->aggregate_type.quoted)
        strbuf_addf(out, "%s::text", t->aggregate_type.quoted);
    else
        add_literal(out, t->outbox->aggregate_type);
}

/* In the order of window.h's rows; then the byte size, the key of the row as text. */
static void
add_row(struct strbuf *out, const struct table *t)
{
    bool bytes = strcmp(t->payload.type, "bytea") == 0;

    strbuf_addf(out, "%s::bigint AS id, 0::smallint AS lane, ", t->version.quoted);
    add_event_id(out, t);
    strbuf_adds(out, " AS event_id, ");
    add_aggregate_type(out, t);
    strbuf_addf(out, " AS aggregate_type, %s::text AS aggregate_id, %s::bigint AS version, ",
                t->aggregate_id.quoted, t->version.quoted);
    strbuf_addf(out, "%s::text AS event_type, ", t->event_type.quoted);
    strbuf_addf(out, "%s AS payload, ", bytes ? "NULL::text" : t->payload.quoted);
    strbuf_addf(out, "%s AS body, ", bytes ? t->payload.quoted : "NULL::bytea");
    if (t->content_type.quoted)
        strbuf_addf(out, "%s::text", t->content_type.quoted);
    else
        add_literal(out, bytes ? "application/octet-stream" : "application/json");
    strbuf_addf(out, " AS content_type, %s::text AS headers, ",
                t->headers.quoted ? t->headers.quoted : "NULL");
    const char *at = t->occurred_at.quoted ? t->occurred_at.quoted : "clock_timestamp()";
    strbuf_addf(out, "coalesce(%s::timestamptz, clock_timestamp()) AS occurred_at, ", at);
    strbuf_addf(out, "%s::text AS source_key, coalesce(pg_column_size(%s), 0) AS size",
                t->id.quoted, t->payload.quoted);
}

static void
add_keys(struct strbuf *out, const struct table *t)
{
    if (t->aggregate_type.quoted)
        strbuf_addf(out, "%s, ", t->aggregate_type.quoted);
    strbuf_addf(out, "%s, %s", t->aggregate_id.quoted, t->version.quoted);
}

/* $1 limit; $2 aggregate id, $3 version, $4 aggregate type: the key to go on from. */
static void
make_sweep(struct strbuf *out, const struct table *t, bool next)
{
    strbuf_adds(out, "SELECT id, lane, event_id, aggregate_type, aggregate_id, version, event_type,"
                     " payload::text, body, content_type, headers, occurred_at, occurred_at, bytes,"
                     " source_key FROM (SELECT *, sum(size) OVER (ORDER BY n ROWS UNBOUNDED "
                     "PRECEDING) AS bytes FROM"
                     " (SELECT row_number() OVER (ORDER BY ");
    add_keys(out, t);
    strbuf_adds(out, ") AS n, ");
    add_row(out, t);
    strbuf_addf(out, " FROM %s WHERE ", t->quoted);
    is_pending(out, t);
    if (next) {
        strbuf_adds(out, " AND (");
        add_keys(out, t);
        strbuf_adds(out, ") > (");
        if (t->aggregate_type.quoted)
            strbuf_addf(out, "$4::text::%s, ", t->aggregate_type.type);
        strbuf_addf(out, "$2::text::%s, $3::bigint)", t->aggregate_id.type);
    }
    strbuf_adds(out, " ORDER BY ");
    add_keys(out, t);
    strbuf_addf(out, " LIMIT $1::bigint) u) w WHERE bytes - size < %d ORDER BY n", WINDOW_BYTES);
}

/*
 * $1 relay, $2 owner, $3 epoch, $4 ids: fenced by the lane's row, which stays locked.
 * The ids are joined, and the state is asked for in words that no index has: as `= ANY` beside
 * the partial index's predicate, a table whose statistics lag behind was read by that index and
 * each row compared with each id (2 s for 1,000 rows).
 */
static void
make_update(struct strbuf *out, const struct table *t, const char *to)
{
    strbuf_adds(out, "WITH l AS MATERIALIZED (SELECT lane FROM postrider.lane"
                     " WHERE relay = $1::smallint AND lane = 0 AND owner = $2::uuid"
                     " AND epoch = $3::bigint FOR SHARE), u AS (");
    strbuf_addf(out, "UPDATE %s AS t SET %s = ", t->quoted, t->state.quoted);
    add_literal(out, to);
    strbuf_addf(out,
                " FROM unnest($4::text[]) AS given(key)"
                " WHERE t.%s = given.key::%s AND t.%s IS NOT DISTINCT FROM ",
                t->id.quoted, t->id.type, t->state.quoted);
    add_literal(out, t->outbox->mark.pending);
    strbuf_adds(out, " AND EXISTS (SELECT FROM l) RETURNING 1)"
                     " SELECT (SELECT count(*) FROM l), (SELECT count(*) FROM u)");
}

/* As window_prev has it; what was discarded does not count. */
static void
make_prev(struct strbuf *out, const struct table *t)
{
    strbuf_addf(out, "SELECT coalesce((SELECT %s::bigint FROM %s WHERE ", t->version.quoted,
                t->quoted);
    if (t->aggregate_type.quoted)
        strbuf_addf(out, "%s = k.t::%s AND ", t->aggregate_type.quoted, t->aggregate_type.type);
    strbuf_addf(out, "%s = k.a::%s AND %s < k.v", t->aggregate_id.quoted, t->aggregate_id.type,
                t->version.quoted);
    strbuf_addf(out, " AND ($5::text[] IS NULL OR %s::text = ANY ($5::text[])) AND %s::text <> ",
                t->event_type.quoted, t->state.quoted);
    add_literal(out, t->outbox->mark.discarded);
    strbuf_addf(out,
                " ORDER BY %s DESC LIMIT 1), 0) FROM unnest($2::text[], $3::text[], $4::bigint[])"
                " WITH ORDINALITY k(t, a, v, n) WHERE $1::smallint IS NOT NULL ORDER BY n",
                t->version.quoted);
}

static void
make_index(struct strbuf *out, const struct table *t)
{
    strbuf_addf(out, "CREATE INDEX CONCURRENTLY ON %s (", t->quoted);
    add_keys(out, t);
    strbuf_adds(out, ") WHERE ");
    is_pending(out, t);
}

/* Bounded: the age of the oldest of some rows is near enough. */
static void
make_due(struct strbuf *out, const struct table *t)
{
    strbuf_adds(out, "SELECT round(extract(epoch FROM clock_timestamp() - min(at)) * 1000)::bigint"
                     " FROM (SELECT ");
    strbuf_addf(out, "coalesce(%s::timestamptz, clock_timestamp()) AS at FROM %s WHERE ",
                t->occurred_at.quoted ? t->occurred_at.quoted : "clock_timestamp()", t->quoted);
    is_pending(out, t);
    strbuf_adds(out, " LIMIT 1000) pending");
}

/* PREPARE asks for none of them. */
static void
make_rights(struct strbuf *out, const struct table *t)
{
    strbuf_adds(out, "SELECT has_table_privilege(");
    add_literal(out, t->quoted);
    strbuf_adds(out, ", 'SELECT') AND has_column_privilege(");
    add_literal(out, t->quoted);
    strbuf_adds(out, ", ");
    add_literal(out, t->state.name);
    strbuf_adds(out, ", 'UPDATE')");
}

static void
make_statements(struct mark *m, const struct table *t)
{
    PR_CHECK(t->id.type && t->payload.type && t->aggregate_id.type); /* check_columns() saw them */
    make_sweep(&m->sql[0], t, false);
    make_sweep(&m->sql[1], t, true);
    make_prev(&m->sql[2], t);
    make_update(&m->sql[3], t, t->outbox->mark.published);
    make_update(&m->sql[4], t, t->outbox->mark.discarded);
    make_due(&m->sql[5], t);
    make_rights(&m->sql[6], t);
    make_index(&m->index, t);
    strbuf_addf(&m->grant, "GRANT SELECT, UPDATE (%s) ON %s", t->state.quoted, t->quoted);
    m->first = (struct pgstmt){"mark_first", strbuf_str(&m->sql[0])};
    m->next = (struct pgstmt){"mark_next", strbuf_str(&m->sql[1])};
    m->prev = (struct pgstmt){"mark_prev", strbuf_str(&m->sql[2])};
    m->publish = (struct pgstmt){"mark_publish", strbuf_str(&m->sql[3])};
    m->discard = (struct pgstmt){"mark_discard", strbuf_str(&m->sql[4])};
    m->due = (struct pgstmt){"mark_due", strbuf_str(&m->sql[5])};
    m->rights = (struct pgstmt){"mark_rights", strbuf_str(&m->sql[6])};
    m->has_type = t->aggregate_type.quoted != NULL;
}

static bool
find_index(struct pgconn *conn, struct mark *m, const struct table *t, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};
    struct pgarray keys = {0};
    PGresult *res;

    pgarray_start(&keys, PG_TEXT);
    if (m->has_type)
        pgarray_text(&keys, t->aggregate_type.quoted);
    pgarray_text(&keys, t->aggregate_id.quoted);
    pgarray_text(&keys, t->version.quoted);
    pgparams_text(&p, t->quoted);
    pgparams_array(&p, &keys);
    pgparams_text(&p, t->outbox->mark.pending);
    pgarray_release(&keys);
    bool ok = pgconn_query(conn, &stmt_indexed, &p, &res, err);
    arena_release(&arena);
    if (!ok)
        return false;
    m->indexed = pgresult_bool(res, 0, 0);
    PQclear(res);
    return true;
}

bool
mark_prepare(struct pgconn *conn, struct mark *m, struct error *err)
{
    PGresult *res;

    if (!pgconn_query(conn, &m->rights, NULL, &res, err))
        return false;
    bool may = pgresult_bool(res, 0, 0);
    PQclear(res);
    if (!may) {
        error_set_exit(err, ERR_STOP, EXIT_RIGHTS, "outbox.rights",
                       "this login may not read table %s and set its state", m->outbox->table);
        return error_hint(err, "%s TO the relay's login", strbuf_str(&m->grant));
    }
    /* Whether the state's type has such values is found by preparing. */
    return (pgconn_prepare(conn, &m->first, err) && pgconn_prepare(conn, &m->next, err) &&
            pgconn_prepare(conn, &m->prev, err) && pgconn_prepare(conn, &m->publish, err)) ||
           error_wrap(err, "outbox %s, table %s", m->outbox->name, m->outbox->table);
}

bool
mark_open(struct pgconn *conn, const struct outbox_config *outbox, struct mark **ret,
          struct error *err)
{
    struct mark *m = xcalloc(1, sizeof(*m));
    struct table t = {0};

    m->outbox = outbox;
    name_columns(&t, outbox);
    bool ok = find_table(conn, &t, err);
    if (ok) {
        make_statements(m, &t);
        ok = find_index(conn, m, &t, err);
    }
    release_table(&t);
    if (!ok) {
        mark_free(m);
        return false;
    }
    *ret = m;
    return true;
}

void
mark_free(struct mark *m)
{
    if (!m)
        return;
    for (size_t i = 0; i < PR_LENGTH(m->sql); i++)
        strbuf_release(&m->sql[i]);
    strbuf_release(&m->index);
    strbuf_release(&m->grant);
    mark_restart(m);
    free(m);
}

/* ------------------------------------------------------------------ sweeping */

void
mark_restart(struct mark *m)
{
    free(m->after_type);
    free(m->after_id);
    m->after_type = m->after_id = NULL;
}

void
mark_move(struct mark *m, const struct outbox_row *last)
{
    mark_restart(m);
    m->after_type = xstrdup(last->aggregate_type);
    m->after_id = xstrdup(last->aggregate_id);
    m->after_version = last->version;
}

bool
mark_read(struct pgconn *conn, struct mark *m, struct arena *arena, struct window_rows *ret,
          struct error *err)
{
    struct pgparams p = {.arena = arena};
    PGresult *res;

    *ret = (struct window_rows){0};
    pgparams_i64(&p, MARK_LIMIT + 1);
    if (m->after_id) {
        pgparams_text(&p, m->after_id);
        pgparams_i64(&p, m->after_version);
        if (m->has_type)
            pgparams_text(&p, m->after_type);
    }
    pgparams_binary(&p);
    if (!pgconn_query(conn, m->after_id ? &m->next : &m->first, &p, &res, err))
        return false;
    window_take_rows(res, MARK_LIMIT, arena, ret);
    return true;
}
