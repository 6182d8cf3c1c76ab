/*
 * regression.h — whether positions and events speak of the transactions of this server.
 *
 * After a dump was loaded elsewhere, or a server was set back, a position that is ahead of
 * the server's transactions takes new events for published; an event that is ahead is
 * never seen.  Both are refused before anything is published.
 *
 * Threads: the connection's owner.
 */
#ifndef PR_REGRESSION_H
#define PR_REGRESSION_H

#include <stdbool.h>

#include "core/error.h"
#include "pg/pgconn.h"

/*
 * Of all relays of the built-in outbox, or of one (`relay` not NULL).
 * Error: relay.xid_regression (1), a stop.
 */
bool regression_check_positions(struct pgconn *conn, const char *relay,
                                struct error *err) PR_MUSTCHECK;
bool regression_check_events(struct pgconn *conn, struct error *err) PR_MUSTCHECK;

#endif
