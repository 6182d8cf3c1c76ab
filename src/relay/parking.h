/*
 * parking.h — what a relay writes about events that it does not publish: dead letters
 * and what waits behind them, in the transaction that records the position past them.
 *
 * Threads: one worker, on the outbox connection.
 */
#ifndef PR_RELAY_PARKING_H
#define PR_RELAY_PARKING_H

#include "relay/publisher.h"

/*
 * Within the caller's transaction, after the position: writes the dead and waiting rows
 * of lanes that are still ours.
 */
bool parking_write(struct publisher *p, const struct batch *batch, struct error *err) PR_MUSTCHECK;

/* After its COMMIT: the streams are held from now on. */
void parking_committed(struct publisher *p, const struct batch *batch);

/*
 * After a batch: streams whose discarded event has been passed by a published one are
 * as any other again.
 */
bool parking_clear_passed(struct publisher *p, const struct batch *batch,
                          struct error *err) PR_MUSTCHECK;

/* A dead row's attempt, and its text in postrider.parked when it was dead before. */
bool parking_write_refusal(struct publisher *p, int64_t parked_id, const struct outbox_row *row,
                           const struct error *refusal, struct error *err) PR_MUSTCHECK;

#endif
