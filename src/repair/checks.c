#include "repair/checks.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "pg/pgconn.h"
#include "repair/reconcile.h"

enum { STATEMENT_MS = 600000 };

static const struct pgstmt stmt_fetch = {"check_fetch", "FETCH 5000 FROM check_rows"};

/* One query under way, in key order. */
struct side {
    const struct check_config *check;
    const struct check_side *config;
    const char *word; /* "left" */
    struct pgconn *conn;
    PGresult *res;
    int row;
    char *last; /* the key before: one that comes twice cannot be compared */
};

/* What differed at first; texts may be long, so they are kept as numbers. */
struct seen {
    uint64_t key, values;
};

struct checking {
    struct check_report *report;
    struct side left, right;
    struct seen *seen;
    size_t count, cap;
    bool again; /* the second look */
};

/* ------------------------------------------------------------------ one side */

/* The user's query as a part of ours: without the semicolon, closed behind a comment. */
static void
add_query(struct strbuf *out, const char *sql)
{
    size_t len = strlen(sql);

    while (len > 0 && strchr("; \t\r\n", sql[len - 1]))
        len--;
    strbuf_adds(out, "DECLARE check_rows NO SCROLL CURSOR FOR SELECT q.key::text, q.value::text"
                     " FROM (\n");
    strbuf_add(out, sql, len);
    strbuf_adds(out, "\n) AS q(key, value) ORDER BY q.key::text COLLATE \"C\"");
}

static bool
side_failed(const struct side *s, struct error *err)
{
    return error_wrap(err, "while query checks.%s.%s.sql runs", s->check->name, s->word);
}

static bool
side_open(struct side *s, int stop_fd, struct error *err)
{
    struct pgconn_options options = {.purpose = "check", .statement_timeout_ms = STATEMENT_MS};
    struct strbuf sql = {0};

    add_query(&sql, s->config->sql);
    bool ok = pgconn_open(s->config->database, &options, &s->conn, err);
    if (ok && stop_fd >= 0)
        pgconn_stop_on(s->conn, stop_fd, 0);
    struct pgstmt declare = {"check_declare", strbuf_str(&sql)};
    ok = ok && pgconn_exec(s->conn, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", err) &&
         pgconn_run(s->conn, &declare, NULL, err);
    strbuf_release(&sql);
    return ok || side_failed(s, err);
}

static void
side_close(struct side *s)
{
    PQclear(s->res);
    pgconn_close(s->conn);
    free(s->last);
    s->res = NULL;
    s->conn = NULL;
    s->last = NULL;
}

/* NULL at the end. */
static const char *
side_key(const struct side *s)
{
    return s->row < PQntuples(s->res) ? PQgetvalue(s->res, s->row, 0) : NULL;
}

static const char *
side_value(const struct side *s)
{
    return pgresult_str(s->res, s->row, 1);
}

static bool
check_key(const struct side *s, struct error *err)
{
    const char *key = side_key(s), *fault = NULL;

    if (key && PQgetisnull(s->res, s->row, 0))
        fault = "null";
    else if (key && s->last && strcmp(key, s->last) == 0)
        fault = key;
    if (!fault)
        return true;
    error_set_exit(err, ERR_PERMANENT, EXIT_CONFIG, "check.key",
                   "query checks.%s.%s.sql gives the key %s%s", s->check->name, s->word, fault,
                   fault == key ? " more than once" : "");
    return error_hint(err, "each key must come once, and none be null: GROUP BY the key, or leave "
                           "such rows out");
}

/* Moves to the next row, the first at first. */
static bool
side_next(struct side *s, struct error *err)
{
    if (s->res) {
        free(s->last);
        s->last = xstrdup(side_key(s));
        s->row++;
    }
    if (!s->res || s->row >= PQntuples(s->res)) {
        PQclear(s->res);
        s->res = NULL;
        s->row = 0;
        if (!pgconn_query(s->conn, &stmt_fetch, NULL, &s->res, err))
            return side_failed(s, err);
    }
    return check_key(s, err);
}

/* ------------------------------------------------------------------ differences */

static uint64_t
number_of(const char *a, const char *b)
{
    uint64_t h = 1469598103934665603ULL; /* FNV-1a: nobody gains by a collision */
    const char *const texts[] = {a ? a : "\1", "\2", b ? b : "\1"};

    for (int i = 0; i < 3; i++)
        for (const char *at = texts[i]; *at; at++)
            h = (h ^ (unsigned char) *at) * 1099511628211ULL;
    return h;
}

static int
compare_seen(const void *a, const void *b)
{
    uint64_t x = ((const struct seen *) a)->key, y = ((const struct seen *) b)->key;

    return x < y ? -1 : x > y;
}

static const char *
copy(struct check_report *report, const char *text)
{
    return text ? arena_strdup(&report->arena, text) : NULL;
}

static void
list_difference(struct check_report *report, const struct check_difference *d)
{
    report->differs++;
    if (report->count >= CHECK_LISTED)
        return;
    GROW(report->list, report->count, report->cap);
    report->list[report->count++] = (struct check_difference){
        .key = copy(report, d->key),
        .on_left = d->on_left,
        .on_right = d->on_right,
        .left = copy(report, d->left),
        .right = copy(report, d->right),
    };
}

static void
take_difference(struct checking *c, const struct check_difference *d)
{
    struct seen now = {number_of(d->key, d->on_left ? d->on_right ? "both" : "left" : "right"),
                       number_of(d->left, d->right)};

    /* Whether a side has the key at all is part of what must be the same. */
    now.values ^= now.key;
    now.key = number_of(d->key, "");
    if (!c->again) {
        c->report->more |= c->count >= CHECK_MOST;
        if (c->count >= CHECK_MOST)
            return;
        GROW(c->seen, c->count, c->cap);
        c->seen[c->count++] = now;
        return;
    }
    const struct seen *before =
        c->seen ? bsearch(&now, c->seen, c->count, sizeof(now), compare_seen) : NULL;
    if (before && before->values == now.values)
        list_difference(c->report, d);
    else if (before)
        c->report->moving++;
}

/* Compares the row or rows of the lowest key, and moves past it. */
static bool
step(struct checking *c, struct error *err)
{
    const char *left = side_key(&c->left), *right = side_key(&c->right);
    int order = !left ? 1 : !right ? -1 : strcmp(left, right);
    struct check_difference d = {
        .key = order <= 0 ? left : right, .on_left = order <= 0, .on_right = order >= 0};

    c->report->keys++;
    d.left = d.on_left ? side_value(&c->left) : NULL;
    d.right = d.on_right ? side_value(&c->right) : NULL;
    if (order != 0 || !d.left != !d.right || (d.left && strcmp(d.left, d.right) != 0))
        take_difference(c, &d);
    return (!d.on_left || side_next(&c->left, err)) && (!d.on_right || side_next(&c->right, err));
}

static bool
look(struct checking *c, int stop_fd, struct error *err)
{
    c->report->keys = 0;
    bool ok = side_open(&c->left, stop_fd, err) && side_open(&c->right, stop_fd, err) &&
              side_next(&c->left, err) && side_next(&c->right, err);

    while (ok && (side_key(&c->left) || side_key(&c->right)))
        ok = step(c, err);
    side_close(&c->left);
    side_close(&c->right);
    return ok;
}

bool
check_run(const struct check_config *check, int stop_fd, struct check_report *ret,
          struct error *err)
{
    struct checking c = {.report = ret,
                         .left = {.check = check, .config = &check->left, .word = "left"},
                         .right = {.check = check, .config = &check->right, .word = "right"}};

    memset(ret, 0, sizeof(*ret));
    bool ok = look(&c, stop_fd, err);
    if (ok && c.count > 0) {
        qsort(c.seen, c.count, sizeof(*c.seen), compare_seen);
        c.again = true;
        ok = reconcile_pause(stop_fd, (int) (check->settle_us / 1000), err) &&
             look(&c, stop_fd, err);
    }
    free(c.seen);
    return ok;
}

void
check_release(struct check_report *report)
{
    arena_release(&report->arena);
    free(report->list);
}
