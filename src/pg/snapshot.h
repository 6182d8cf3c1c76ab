/*
 * snapshot.h — PostgreSQL's pg_snapshot ("xmin:xmax:xip,xip,…") as a value.
 *
 * A transaction is visible in a snapshot if it had committed when that was taken.
 * Whether it committed or rolled back is not known here: its rows tell.
 *
 * Threads: the owner's.
 * Memory:  snapshot_release() frees; the text is kept as the server wrote it.
 */
#ifndef PR_SNAPSHOT_H
#define PR_SNAPSHOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/attr.h"
#include "core/strbuf.h"

struct snapshot {
    char *text; /* NULL: no snapshot */
    uint64_t xmin;
    uint64_t xmax;
    uint64_t *xip; /* in progress, ascending */
    size_t xip_count;
};

/* False, and *ret empty, if the text is no snapshot. */
bool snapshot_parse(const char *text, struct snapshot *ret) PR_MUSTCHECK;
void snapshot_copy(struct snapshot *to, const struct snapshot *from); /* releases what `to` held */
void snapshot_release(struct snapshot *snap);

bool snapshot_is_set(const struct snapshot *snap);
bool snapshot_equal(const struct snapshot *a, const struct snapshot *b);
bool snapshot_sees(const struct snapshot *snap, uint64_t xid);

/*
 * The transactions in progress at `done` that `open` sees, as the text of an xid8[]:
 * "{}" or "{746,750}".  A window reads their rows beside the range [xmax(done), xmax(open)).
 */
void snapshot_late(const struct snapshot *done, const struct snapshot *open, struct strbuf *out);

#endif
