/*
 * consumer.h — one consumer: reads its topic, applies each event once, parks what cannot
 * be applied.  It ends only when told to: every failure is said, waited out and tried
 * again.
 *
 * Threads: consumer_run() is the body of the worker's thread.
 * Memory:  consumer_new() lends the configuration for as long as the consumer lives.
 */
#ifndef PR_CONSUMER_H
#define PR_CONSUMER_H

#include "config/config.h"
#include "core/error.h"

struct consumer;

struct consumer *consumer_new(const struct consumer_config *config); /* after consumer_check() */
void consumer_free(struct consumer *consumer);                       /* NULL is fine */

/*
 * Works until `stop_fd` becomes readable; then commits or undoes what is under way, within
 * 5 s, and gives its partitions back.  False: the process must end, since the schema has
 * become too new for this program (*why, exit code 75).
 */
bool consumer_run(struct consumer *consumer, int stop_fd, struct error *why) PR_MUSTCHECK;

/*
 * Whether the handlers can work at all: parameters known, statements prepared in the
 * consumer's database.  For a look before the start.
 */
bool consumer_check(const struct consumer_config *config, struct error *err) PR_MUSTCHECK;

#endif
