/*
 * lanes_model.c — an exhaustive explorer of one lane: transactions, snapshot windows read
 * in parts, leases with epochs, processes that stop and wake up, lost connections and
 * server crashes.  It visits every state of a small model, breadth first, and looks for
 * one that breaks an invariant of docs/guide/guarantees.md:
 *
 *   lost        a committed event that no future can publish (the position is past it)
 *   inversion   the first publication of version 2 comes before that of version 1
 *   unconfirmed the position in the database is past an event that the broker has not stored
 *   zombie      a position written by a process that no longer owns the lane
 *
 *   lanes_model TROUBLES [MUTATION]
 *
 * TROUBLES: how many server crashes, pauses past the lease, kills and lost connections
 * there may be: 1 is quick, 2 takes half a minute and 1 GB.
 *
 * Without a mutation it must find none, and prints how many states it has seen; with one of
 * `mutations`, each a mistake that was made somewhere, it must find one, and prints how it
 * comes about.  Exit code 0: so it was.
 *
 * Shares no code with the program: it is the algorithm as the documentation tells it.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TXS = 3,    /* transactions: the first two write versions 1 and 2 of one stream,
                   the third an event of another stream, in any interleaving */
    RELAYS = 2, /* processes that share the lane */
    EVENTS = TXS,
    NUMBERS = 4, /* transaction numbers, at most */
    NOBODY = 7,
};

/* ------------------------------------------------------------------ mutations */

enum mutation {
    NONE,
    NO_EPOCH,      /* ADVANCE does not name the epoch */
    KEEP_POSITION, /* the position in memory outlives its connection */
    EARLY_ADVANCE, /* the position is written before the confirm */
    HIGH_WATER,    /* the cursor is the highest id published */
    BY_XID,        /* a window is published in the order of transaction numbers */
    READ_EPOCH,    /* the epoch is read first and the position written after, without a lock */
    SKIP_PART,     /* a resumed window begins after the part that was read, not confirmed */
};

static const char *const mutations[] = {
    [NONE] = "none",
    [NO_EPOCH] = "no-epoch",
    [KEEP_POSITION] = "keep-position",
    [EARLY_ADVANCE] = "early-advance",
    [HIGH_WATER] = "high-water",
    [BY_XID] = "by-xid",
    [READ_EPOCH] = "read-epoch",
    [SKIP_PART] = "skip-part",
};

static enum mutation mutation;

/* ------------------------------------------------------------------ the state */

/* A snapshot: which transaction numbers it calls finished. */
typedef uint8_t snapshot; /* bit n: number n is done in it */

enum tx_state { TX_NEW, TX_NUMBERED, TX_WRITTEN, TX_COMMITTED, TX_ROLLED_BACK };

struct tx {
    uint8_t state : 3;
    uint8_t number : 4; /* its transaction number */
    uint8_t id : 4;     /* of its event; 0: not written */
};

struct relay {
    uint8_t has : 1;   /* believes that it owns the lane */
    uint8_t fresh : 1; /* its own clock says that the lease holds */
    uint8_t epoch : 4;
    uint8_t reading : 1; /* a window is open */
    uint8_t sent : 3;    /* events handed to the client library and not settled (bits) */
    uint8_t acked : 3;   /* events confirmed in this window (bits) */
    uint8_t checked : 1; /* has read that it is the owner (a mutation) */
    uint8_t pos : 4;     /* the part of the window up to this id is confirmed */
    snapshot done;
    snapshot open;
};

struct state {
    struct tx tx[TXS];
    uint8_t next_number : 4; /* the next transaction number */
    uint8_t flushed : 4;     /* numbers below this one cannot be given again */
    uint8_t next_id : 4;
    uint8_t troubles : 2; /* still to come */

    uint8_t owner : 3; /* the lane row */
    uint8_t epoch : 4;
    uint8_t expired : 1; /* the lease has run out by the server's clock */
    uint8_t open_pos : 4;
    uint8_t has_open : 1;
    snapshot done, open;

    uint8_t stored : 3; /* events the broker has (bits) */
    uint8_t inverted : 1;
    uint8_t zombie : 1;
    struct relay relay[RELAYS];
};

/* ------------------------------------------------------------------ snapshots */

static snapshot
snapshot_now(const struct state *s)
{
    snapshot now = 0;

    for (int n = 0; n < s->next_number; n++)
        now |= (snapshot) (1 << n);
    for (int t = 0; t < TXS; t++)
        if (s->tx[t].state == TX_NUMBERED || s->tx[t].state == TX_WRITTEN)
            now &= (snapshot) ~(1 << s->tx[t].number);
    return now;
}

static bool
is_in(const struct tx *tx, snapshot snap)
{
    return tx->state == TX_COMMITTED && tx->id > 0 && (snap & (1 << tx->number));
}

/* The event of the window that comes next after id `after`; -1: none. */
static int
next_event(const struct state *s, const struct relay *r, int after)
{
    int best = -1;

    for (int t = 0; t < TXS; t++) {
        if (!is_in(&s->tx[t], r->open) || (mutation != HIGH_WATER && is_in(&s->tx[t], r->done)))
            continue;
        int key = mutation == BY_XID ? s->tx[t].number + 1 : s->tx[t].id;
        int best_key = best < 0 ? 99 : mutation == BY_XID ? s->tx[best].number + 1 : s->tx[best].id;
        if (key > after && key < best_key)
            best = t;
    }
    return best;
}

static int
key_of(const struct state *s, int event)
{
    return mutation == BY_XID ? s->tx[event].number + 1 : s->tx[event].id;
}

/* ------------------------------------------------------------------ the queue */

struct node {
    struct state state;
    uint32_t parent;
    char step[28];
};

static struct node *nodes;
static uint32_t node_count, node_cap;
static uint32_t *table; /* open addressing: node number + 1 */
static uint32_t table_size = 1 << 16;

static uint64_t
hash(const struct state *s)
{
    const unsigned char *b = (const unsigned char *) s;
    uint64_t h = 1469598103934665603ULL;

    for (size_t i = 0; i < sizeof(*s); i++)
        h = (h ^ b[i]) * 1099511628211ULL;
    return h;
}

static void *
must(void *p)
{
    if (!p)
        abort();
    return p;
}

static void
grow_table(void)
{
    uint32_t old = table_size, *from = table;

    table_size = old * 2;
    table = must(calloc(table_size, sizeof(*table)));
    for (uint32_t i = 0; i < old; i++) {
        if (!from[i])
            continue;
        uint64_t at = hash(&nodes[from[i] - 1].state) & (table_size - 1);
        while (table[at])
            at = (at + 1) & (table_size - 1);
        table[at] = from[i];
    }
    free(from);
}

/* The processes are alike: of two states that differ in their names, one is enough. */
static void
order_relays(struct state *s)
{
    struct relay first = s->relay[0];

    if (memcmp(&s->relay[0], &s->relay[1], sizeof(first)) <= 0)
        return;
    s->relay[0] = s->relay[1];
    s->relay[1] = first;
    if (s->owner < RELAYS)
        s->owner = (uint8_t) (RELAYS - 1 - s->owner) & 7;
}

static void
reach(struct state *s, uint32_t parent, const char *step, int who)
{
    order_relays(s);
    if (node_count * 2 >= table_size)
        grow_table();
    uint64_t at = hash(s) & (table_size - 1);
    for (; table[at]; at = (at + 1) & (table_size - 1))
        if (memcmp(&nodes[table[at] - 1].state, s, sizeof(*s)) == 0)
            return;
    if (node_count == node_cap) {
        node_cap = node_cap ? node_cap * 2 : 4096;
        nodes = must(realloc(nodes, node_cap * sizeof(*nodes)));
    }
    struct node *n = &nodes[node_count++];
    n->state = *s;
    n->parent = parent;
    snprintf(n->step, sizeof(n->step), "%s %d", step, who);
    table[at] = node_count;
}

/* ------------------------------------------------------------------ writers */

/* Version 2 is written by a transaction that saw version 1 committed: the row lock. */
static bool
may_write(const struct state *s, int t)
{
    return t != 1 || s->tx[0].state == TX_COMMITTED;
}

static void
move_writers(const struct state *from, uint32_t parent)
{
    for (int t = 0; t < TXS; t++) {
        struct state s = *from;
        struct tx *tx = &s.tx[t];
        if (tx->state == TX_NEW && s.next_number < NUMBERS) {
            tx->state = TX_NUMBERED;
            tx->number = s.next_number++;
            reach(&s, parent, "begin", t);
        } else if (tx->state == TX_NUMBERED) {
            if (may_write(from, t)) {
                tx->state = TX_WRITTEN;
                tx->id = s.next_id++;
                reach(&s, parent, "write", t);
            }
            if (t == 2) {
                s = *from;
                s.tx[t].state = TX_ROLLED_BACK;
                reach(&s, parent, "rollback", t);
            }
        } else if (tx->state == TX_WRITTEN) {
            tx->state = TX_COMMITTED;
            if (s.flushed < s.next_number)
                s.flushed = s.next_number; /* the commit record flushes all before it */
            reach(&s, parent, "commit", t);
        } else if (tx->state == TX_ROLLED_BACK && t == 2) {
            tx->state = TX_NEW; /* the application tries again */
            tx->id = 0;
            reach(&s, parent, "again", t);
        }
    }
}

/* ------------------------------------------------------------------ relays */

static void
forget(struct relay *r)
{
    snapshot done = r->done;
    *r = (struct relay){0};
    if (mutation == KEEP_POSITION)
        r->done = done;
}

static void
claim(struct state s, int n, uint32_t parent)
{
    struct relay *r = &s.relay[n];

    if (r->has || (s.owner != NOBODY && !s.expired))
        return;
    s.owner = (uint8_t) n & 7;
    s.epoch++;
    s.expired = 0;
    r->has = r->fresh = 1;
    r->epoch = s.epoch;
    if (mutation != KEEP_POSITION || r->done == 0)
        r->done = s.done;
    r->reading = s.has_open;
    r->open = s.has_open ? s.open : 0;
    r->pos = s.open_pos;
    r->sent = r->acked = 0;
    reach(&s, parent, "claim", n);
}

static void
open_window(struct state s, int n, uint32_t parent)
{
    struct relay *r = &s.relay[n];
    snapshot now = snapshot_now(&s);

    if (!r->has || r->reading || now == r->done)
        return;
    r->open = now;
    r->reading = 1;
    if (mutation != HIGH_WATER)
        r->pos = 0;
    r->sent = r->acked = 0;
    reach(&s, parent, "open", n);
}

/* What is in front of the next event has been sent, too. */
static int
last_sent(const struct state *s, const struct relay *r)
{
    int last = r->pos;

    for (int t = 0; t < TXS; t++)
        if ((r->sent | r->acked) & (1 << t))
            last = key_of(s, t) > last ? key_of(s, t) : last;
    return last;
}

static void
send(struct state s, int n, uint32_t parent)
{
    struct relay *r = &s.relay[n];

    if (!r->has || !r->reading || !r->fresh)
        return;
    int event = next_event(&s, r, last_sent(&s, r));
    if (event < 0)
        return;
    r->sent |= (uint8_t) (1 << event) & 7;
    reach(&s, parent, "send", n);
}

/* The broker stores what the client library holds, in order; also of a process that sleeps. */
static void
store(struct state s, int n, uint32_t parent)
{
    struct relay *r = &s.relay[n];
    int first = -1;

    for (int t = 0; t < TXS; t++)
        if ((r->sent & (1 << t)) && (first < 0 || key_of(&s, t) < key_of(&s, first)))
            first = t;
    if (first < 0)
        return;
    if (first == 1 && !(s.stored & 1))
        s.inverted = 1;
    s.stored |= (uint8_t) (1 << first) & 7;
    r->sent &= (uint8_t) ~(1 << first) & 7;
    r->acked |= (uint8_t) (1 << first) & 7;
    reach(&s, parent, "store", n);
}

/* Whether the row may be written; who may not learns it and forgets all. */
static bool
fenced(struct state *s, int n)
{
    struct relay *r = &s->relay[n];

    bool ours = s->owner == n && s->epoch == r->epoch;
    if (ours)
        return false;
    if (mutation == NO_EPOCH || (mutation == READ_EPOCH && r->checked)) {
        s->zombie = 1;
        return false;
    }
    forget(r);
    return true;
}

/* The mutation: a look at the row, some time before it is written. */
static void
read_epoch(struct state s, int n, uint32_t parent)
{
    struct relay *r = &s.relay[n];

    if (mutation != READ_EPOCH || !r->has || r->checked || s.owner != n || s.epoch != r->epoch)
        return;
    r->checked = 1;
    reach(&s, parent, "read epoch", n);
}

/* The part up to the last confirmed event is recorded. */
static void
advance_part(struct state s, int n, uint32_t parent)
{
    struct relay *r = &s.relay[n];
    uint8_t counted = mutation == SKIP_PART ? r->acked | r->sent : r->acked;
    int pos = r->pos;

    if (!r->has || !r->reading || (mutation != SKIP_PART && r->sent) || !counted)
        return;
    for (int t = 0; t < TXS; t++)
        if (counted & (1 << t))
            pos = key_of(&s, t) > pos ? key_of(&s, t) : pos;
    if (!fenced(&s, n)) {
        s.has_open = 1;
        s.open = r->open;
        s.open_pos = r->pos = (uint8_t) pos & 15;
        r->acked = 0;
        s.flushed = s.next_number > s.flushed ? s.next_number : s.flushed;
    }
    reach(&s, parent, "part", n);
}

static void
advance(struct state s, int n, uint32_t parent)
{
    struct relay *r = &s.relay[n];

    if (!r->has || !r->reading || (r->sent && mutation != EARLY_ADVANCE) ||
        next_event(&s, r, last_sent(&s, r)) >= 0)
        return;
    if (!fenced(&s, n)) {
        s.done = r->done = r->open;
        s.has_open = 0;
        s.open = 0;
        s.open_pos = 0;
        if (mutation == HIGH_WATER)
            r->pos = (uint8_t) last_sent(&s, r) & 15;
        else
            r->pos = 0;
        r->reading = 0;
        r->acked = 0;
        s.flushed = s.next_number > s.flushed ? s.next_number : s.flushed;
    }
    reach(&s, parent, "advance", n);
}

/* An empty window is remembered only: the row is not written for it. */
static void
skip_empty(struct state s, int n, uint32_t parent)
{
    struct relay *r = &s.relay[n];

    if (!r->has || !r->reading || s.has_open || r->sent || r->acked ||
        next_event(&s, r, r->pos) >= 0)
        return;
    r->done = r->open;
    r->reading = 0;
    reach(&s, parent, "empty", n);
}

static void
lose_connection(struct state s, int n, uint32_t parent)
{
    struct relay *r = &s.relay[n];
    uint8_t sent = r->sent;

    if (!r->has || s.troubles == 0)
        return;
    s.troubles--;
    forget(r);
    r->sent = sent; /* the client library still has them */
    reach(&s, parent, "lose", n);
}

static void
crash_process(struct state s, int n, uint32_t parent)
{
    if (!s.relay[n].has || s.troubles == 0)
        return;
    s.troubles--;
    s.relay[n] = (struct relay){0};
    reach(&s, parent, "kill", n);
}

static void
move_relays(const struct state *s, uint32_t parent)
{
    for (int n = 0; n < RELAYS; n++) {
        claim(*s, n, parent);
        open_window(*s, n, parent);
        send(*s, n, parent);
        store(*s, n, parent);
        read_epoch(*s, n, parent);
        advance_part(*s, n, parent);
        advance(*s, n, parent);
        skip_empty(*s, n, parent);
        lose_connection(*s, n, parent);
        crash_process(*s, n, parent);
    }
}

/* ------------------------------------------------------------------ time and the server */

/* The owner's own clock runs out first: its deadline was taken before it asked, less a margin. */
static void
pass_time(struct state s, uint32_t parent)
{
    if (s.owner == NOBODY || s.expired || s.troubles == 0)
        return;
    s.troubles--;
    s.expired = 1;
    for (int n = 0; n < RELAYS; n++)
        s.relay[n].fresh = 0;
    reach(&s, parent, "expire", 0);
}

/* Numbers that no commit has flushed are given again; every connection is lost. */
static void
crash_server(struct state s, uint32_t parent)
{
    if (s.troubles == 0)
        return;
    s.troubles--;
    for (int t = 0; t < TXS; t++) {
        if (s.tx[t].state == TX_COMMITTED)
            continue;
        s.tx[t] = (struct tx){.state = TX_NEW};
    }
    s.next_number = s.flushed;
    for (int n = 0; n < RELAYS; n++) {
        uint8_t sent = s.relay[n].sent;
        forget(&s.relay[n]);
        s.relay[n].sent = sent;
    }
    s.expired = 1;
    reach(&s, parent, "server crash", 0);
}

/* ------------------------------------------------------------------ what must hold */

static const char *
broken(const struct state *s)
{
    if (s->inverted)
        return "inversion: version 2 was published before version 1";
    if (s->zombie)
        return "zombie: a position was written by a process that does not own the lane";
    for (int t = 0; t < TXS; t++) {
        bool stored = s->stored & (1 << t);
        if (s->tx[t].state != TX_COMMITTED || stored)
            continue;
        if (is_in(&s->tx[t], s->done) ||
            (s->has_open && is_in(&s->tx[t], s->open) && key_of(s, t) <= s->open_pos))
            return "lost: the position is past an event that the broker does not have";
    }
    return NULL;
}

/*
 * A future that publishes everything: some process that has or can claim the lane reads on
 * from its position.  What its memory calls done it will never read.
 */
static const char *
never_read(const struct state *s)
{
    for (int n = 0; n < RELAYS; n++) {
        const struct relay *r = &s->relay[n];
        if (!r->has || s->owner != n || s->epoch != r->epoch)
            continue;
        for (int t = 0; t < TXS; t++) {
            bool stored = (s->stored | r->sent | r->acked) & (1 << t);
            if (s->tx[t].state != TX_COMMITTED || stored)
                continue;
            if (mutation == HIGH_WATER ? key_of(s, t) <= r->pos : is_in(&s->tx[t], r->done))
                return "lost: the owner's position in memory is past an unpublished event";
        }
    }
    return NULL;
}

static void
print_path(uint32_t at)
{
    uint32_t path[256];
    int count = 0;

    for (; at != UINT32_MAX && count < 256; at = nodes[at].parent)
        path[count++] = at;
    while (count-- > 0)
        printf("  %s\n", nodes[path[count]].step);
}

/* Every state is visited once; false, with the way to it, for the first that is broken. */
static bool
explore(void)
{
    for (uint32_t at = 0; at < node_count; at++) {
        struct state s = nodes[at].state;
        const char *fault = broken(&s);
        if (!fault)
            fault = never_read(&s);
        if (fault) {
            printf("%s, after %u states:\n", fault, (unsigned) at);
            print_path(at);
            return false;
        }
        move_writers(&s, at);
        move_relays(&s, at);
        pass_time(s, at);
        crash_server(s, at);
    }
    printf("%u states, all good\n", (unsigned) node_count);
    return true;
}

int
main(int argc, char **argv)
{
    struct state start;

    for (size_t i = 1; argc > 2 && i < sizeof(mutations) / sizeof(*mutations); i++)
        if (strcmp(argv[2], mutations[i]) == 0)
            mutation = (enum mutation) i;
    if (argc < 2 || argc > 3 || (argc > 2 && mutation == NONE)) {
        fprintf(stderr, "usage: lanes_model TROUBLES [MUTATION]\n");
        return 2;
    }
    memset(&start, 0, sizeof(start)); /* the padding is compared, too */
    start.owner = NOBODY;
    start.next_id = 1;
    start.troubles = (uint8_t) strtol(argv[1], NULL, 10) & 3;
    table = must(calloc(table_size, sizeof(*table)));
    reach(&start, UINT32_MAX, "start", 0);
    bool good = explore();
    free(nodes);
    free(table);
    return good == (mutation == NONE) ? 0 : 1;
}
