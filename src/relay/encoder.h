/*
 * encoder.h — an outbox row as a message: our headers, then the event's own, and the
 * body byte for byte.
 *
 * Threads: any.
 * Memory:  everything new lies in the arena; body and names are lent from the row.
 */
#ifndef PR_ENCODER_H
#define PR_ENCODER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/error.h"
#include "source/poll/window.h"
#include "transport/transport.h"

/*
 * Fills all but cookie, topic and part; `relay` is its name, `prev` the version before or
 * -1 where messages carry none.  Errors (permanent, proven): event.headers, event.version,
 * event.name; a table of the user's own may hold what the built-in one does not take, and
 * no consumer could read.
 */
bool encode_message(const struct outbox_row *row, const char *relay, int64_t epoch, int64_t prev,
                    struct arena *arena, struct message *ret, struct error *err) PR_MUSTCHECK;

#endif
