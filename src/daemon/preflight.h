/*
 * preflight.h — what must hold before anything starts: every database answers, its
 * schema is ours, every relay and consumer is registered, every handler can be prepared.
 * A running program waits out what breaks later; a start that cannot work says so at
 * once.
 *
 * Threads: main, before the others.
 */
#ifndef PR_PREFLIGHT_H
#define PR_PREFLIGHT_H

#include <stdbool.h>

#include "config/config.h"

bool preflight(const struct config *config, bool relays, bool consumers,
               struct error *err) PR_MUSTCHECK;

#endif
