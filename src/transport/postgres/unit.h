/*
 * unit.h — what one postrider.log_append() carries: messages go in, parameters of the
 * statement come out.  The function wants them ordered by partition and the header
 * names once for all messages that share them: a message of ours has eleven headers,
 * and their names would be a third of what the server has to read.
 *
 * Threads: the owner's.
 * Memory:  messages are lent until unit_start(); parameters are good until then, too.
 */
#ifndef PR_UNIT_H
#define PR_UNIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pg/pgparams.h"
#include "transport/transport.h"

enum { UNIT_MESSAGES = 2000, UNIT_BYTES = 4 * 1024 * 1024, UNIT_PARAMS = 12 };

struct unit;

/* The numbers that postrider.log_names and postrider.log_values have in the database. */
struct unit *unit_new(unsigned names_type, unsigned values_type);
void unit_free(struct unit *unit); /* NULL is fine */

/* Empties it. */
void unit_start(struct unit *unit);

/* False if it is full; the first message is always taken. */
bool unit_add(struct unit *unit, const struct message *message);
size_t unit_count(const struct unit *unit);

/* All parameters of log_append(), in its order; `p` is empty. */
void unit_params(struct unit *unit, const struct uuid *writer, struct pgparams *p);

#endif
