/*
 * status.h — the inside of `postrider status`: one finding for each relay and consumer,
 * with the next thing to do when it is not right.
 *
 * Threads: the command's.
 * Memory:  a finding lends its texts.
 */
#ifndef PR_STATUS_H
#define PR_STATUS_H

#include <stdint.h>

#include "cli/command.h"
#include "core/jsonw.h"
#include "pg/pgconn.h"

enum { LATE_MS = 10000 }; /* what waits for longer is worth a look */

struct status {
    const struct command_env *env;
    struct jsonw *json;
    int code; /* EXIT_OK until something is not right; the worst wins */
};

struct finding {
    const char *kind; /* "relay", "consumer" */
    const char *name;
    const char *state; /* of the process that is worst off; NULL or "": none lives */
    const char *facts;
    const char *why;  /* "halted on app1 for 42 s: …"; NULL or "": it is well */
    const char *todo; /* "": it is all right */
    int code;         /* EXIT_OK: what follows from `todo` */
};

void status_say(struct status *s, const struct finding *finding);
void status_say_error(struct status *s, const char *kind, const char *name,
                      const struct error *err);

/* Connects, and looks whether the schema is ours. */
bool status_open(const char *dsn, struct pgconn **ret, struct error *err) PR_MUSTCHECK;

/* status_consumer.c */
void status_consumer(struct status *s, const struct consumer_config *c);

/*
 * status_workers.c: the processes that serve a relay or a consumer, as they show themselves
 * in its database (metrics/presence.h).  The one that is worst off speaks for all.
 */
struct workers {
    int live;
    bool well;       /* none is paused or halted */
    char state[16];  /* "running"; "" if none is live */
    char hosts[200]; /* of all that live */
    char why[1000];  /* "halted on app1 for 42 s: …", "" if it is well */
    char todo[400];
};

/* `side` is "relay" or "consumer". */
bool workers_find(struct pgconn *conn, const char *side, const char *name, struct workers *ret,
                  struct error *err) PR_MUSTCHECK;

/* "42 s", "7 m", "3 h", "2 d" */
const char *age_text(int64_t seconds, char *text, size_t size);

#endif
