/*
 * reconciler.h — compares every consumer and runs every check, each `reconcile.every`.
 * What it finds is a log line and metrics; it never halts anybody.
 *
 * Threads: the body of a thread of its own, on connections of its own, and writes nothing but one
 * row for `postrider status`, so that neither relay nor consumer ever waits for it.
 */
#ifndef PR_RECONCILER_H
#define PR_RECONCILER_H

#include "config/config.h"

void reconciler_run(const struct config *config, int stop_fd);

#endif
