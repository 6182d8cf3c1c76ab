/*
 * intake.h — messages out of the log in a PostgreSQL database, read ahead of what is
 * being applied.
 *
 * Offsets of the log are dense and in commit order, so a hole in what was read means
 * that messages were dropped under us, and says so instead of jumping.
 *
 * It is source_postgres of source.h, and reads parked messages as well.
 *
 * Threads: one worker owns an intake.
 */
#ifndef PR_INTAKE_H
#define PR_INTAKE_H

#include <stdbool.h>

#include "consume/incoming.h"
#include "pg/pgconn.h"

/*
 * One message from a binary result: key, header names, header values and body in four
 * columns from `col` on.  False if the headers are no such arrays.
 */
bool intake_content(const PGresult *res, int row, int col, struct arena *arena,
                    struct incoming *ret) PR_MUSTCHECK;

#endif
