/*
 * daemon.h — the running program: one thread per relay and per consumer, the janitor,
 * the reconciler if it is asked for, the HTTP server, and a main thread that waits for signals.
 *
 * Threads: call from main() with no other thread running; it blocks signals for all.
 */
#ifndef PR_DAEMON_H
#define PR_DAEMON_H

#include <stdbool.h>

#include "config/config.h"

struct daemon_choice {
    bool relays;
    bool consumers;
};

/*
 * Runs until SIGTERM or SIGINT.  What cannot work from the start (no schema, wrong
 * password, server away) ends it at once with its error, and so does a schema that has
 * become too new.  SIGHUP reads the file again: if it is good, the workers finish what
 * they have and go on by the new one; if not, they go on as before.
 */
bool daemon_run(const struct config *config, const struct daemon_choice *choice,
                struct error *err) PR_MUSTCHECK;

#endif
