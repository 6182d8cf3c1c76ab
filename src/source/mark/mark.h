/*
 * mark.h — reading a table of the user's own, whose state column says what is to be
 * published.
 *
 * Such a table has no insert order: it is swept by key, in version order within an
 * aggregate, so that a cut is always a prefix of a stream.  The state stands as a
 * literal in the statements: as a parameter the partial index is missed.
 * docs/internals/mark.md has the reasons.
 *
 * Threads: one worker, on its own connection.
 * Memory:  mark_free() after the connection is gone; rows as window.h says.
 */
#ifndef PR_MARK_H
#define PR_MARK_H

#include "config/config.h"
#include "source/poll/window.h"

/* The statements for one table, and where the sweep stands. */
struct mark {
    const struct outbox_config *outbox;
    struct strbuf sql[7];
    struct pgstmt first, next, prev, publish, discard, due, rights;
    struct strbuf index; /* the CREATE INDEX that the sweep needs */
    struct strbuf grant; /* … and the GRANT */
    bool has_type;       /* the aggregate type is a column, and so part of the key */
    bool indexed;        /* an index as it needs is there */

    char *after_type, *after_id; /* the last key read; NULL: the sweep begins */
    int64_t after_version;
};

enum { MARK_LIMIT = 5000 };

/*
 * Looks the table up and makes the statements; `due` tells the age in milliseconds of the
 * oldest of some pending rows, or null.
 */
bool mark_open(struct pgconn *conn, const struct outbox_config *outbox, struct mark **ret,
               struct error *err) PR_MUSTCHECK;
void mark_free(struct mark *mark); /* NULL is fine */

/* Whether this login may do what a relay does; the error names the GRANT. */
bool mark_prepare(struct pgconn *conn, struct mark *mark, struct error *err) PR_MUSTCHECK;

/*
 * The next rows of the sweep, at most MARK_LIMIT; fewer, and not `cut`: it has reached
 * the end, and the next call begins again.  Rows have lane 0, and their version for an id.
 */
bool mark_read(struct pgconn *conn, struct mark *mark, struct arena *arena, struct window_rows *ret,
               struct error *err) PR_MUSTCHECK;

/* Where the next reading begins: after this row, or at the start. */
void mark_move(struct mark *mark, const struct outbox_row *last);
void mark_restart(struct mark *mark);

#endif
