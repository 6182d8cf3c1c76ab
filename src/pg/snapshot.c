#include "pg/snapshot.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"

static bool
take_number(const char **at, uint64_t *ret)
{
    char *end;

    if (**at < '0' || **at > '9')
        return false;
    *ret = strtoull(*at, &end, 10);
    *at = end;
    return true;
}

static bool
take_xip(const char *at, struct snapshot *snap)
{
    size_t cap = 0;

    while (*at) {
        uint64_t xid;
        if (!take_number(&at, &xid))
            return false;
        GROW(snap->xip, snap->xip_count, cap);
        snap->xip[snap->xip_count++] = xid;
        if (*at == ',' && at[1])
            at++;
        else if (*at)
            return false;
    }
    return true;
}

bool
snapshot_parse(const char *text, struct snapshot *ret)
{
    const char *at = text;
    bool ok = false;

    *ret = (struct snapshot){0};
    if (!take_number(&at, &ret->xmin) || *at++ != ':' || !take_number(&at, &ret->xmax) ||
        *at++ != ':')
        goto out;
    ok = take_xip(at, ret);
    if (ok)
        ret->text = xstrdup(text);

out:
    if (!ok)
        snapshot_release(ret);
    return ok;
}

void
snapshot_copy(struct snapshot *to, const struct snapshot *from)
{
    struct snapshot copy = *from;

    if (to == from)
        return;
    copy.text = from->text ? xstrdup(from->text) : NULL;
    copy.xip = from->xip_count ? xmemdup(from->xip, from->xip_count * sizeof(*from->xip)) : NULL;
    snapshot_release(to);
    *to = copy;
}

void
snapshot_release(struct snapshot *snap)
{
    free(snap->text);
    free(snap->xip);
    *snap = (struct snapshot){0};
}

bool
snapshot_is_set(const struct snapshot *snap)
{
    return snap->text != NULL;
}

bool
snapshot_equal(const struct snapshot *a, const struct snapshot *b)
{
    if (!a->text || !b->text)
        return a->text == b->text;
    return strcmp(a->text, b->text) == 0;
}

bool
snapshot_sees(const struct snapshot *snap, uint64_t xid)
{
    size_t low = 0, high = snap->xip_count;

    if (xid < snap->xmin)
        return true;
    if (xid >= snap->xmax)
        return false;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (snap->xip[mid] == xid)
            return false;
        if (snap->xip[mid] < xid)
            low = mid + 1;
        else
            high = mid;
    }
    return true;
}

void
snapshot_late(const struct snapshot *done, const struct snapshot *open, struct strbuf *out)
{
    const char *sep = "";

    strbuf_addc(out, '{');
    for (size_t i = 0; i < done->xip_count; i++) {
        if (!snapshot_sees(open, done->xip[i]))
            continue;
        strbuf_addf(out, "%s%llu", sep, (unsigned long long) done->xip[i]);
        sep = ",";
    }
    strbuf_addc(out, '}');
}
