/*
 * worker.h — one relay: reads its outbox, publishes to its destination, records what
 * was confirmed.  It serves all the lanes it holds and ends only when told to: every
 * failure is said, waited out and tried again.
 *
 * Threads: relay_run() is the body of the worker's thread.
 * Memory:  relay_new() lends the configuration for as long as the worker lives.
 */
#ifndef PR_RELAY_WORKER_H
#define PR_RELAY_WORKER_H

#include "config/config.h"

struct relay_worker;

struct relay_worker *relay_new(const struct relay_config *config);
void relay_free(struct relay_worker *worker); /* NULL is fine */

/* Whether it could work: connects to its outbox and looks itself up there. */
bool relay_check(const struct relay_config *config, struct error *err) PR_MUSTCHECK;

/*
 * Works until `stop_fd` becomes readable; then finishes what is under way (2 s at
 * most), writes its positions and gives its lanes back.  False: the process must end,
 * since the schema has become too new for this program (*why, exit code 75).
 */
bool relay_run(struct relay_worker *worker, int stop_fd, struct error *why) PR_MUSTCHECK;

#endif
