/*
 * schema.h — installing the schema, and knowing whether a database's is ours.
 *
 * Migrations are numbered and never change; the functions are replaced as a whole
 * when their text changed.  Each step is one transaction under an advisory lock.
 *
 * Threads: the connection's owner.
 */
#ifndef PR_SCHEMA_H
#define PR_SCHEMA_H

#include <stdbool.h>
#include <stdio.h>

#include "core/error.h"
#include "pg/pgconn.h"

/*
 * Whether this program may work here.  Errors: schema.missing, schema.old (78),
 * schema.newer (75), schema.other_cluster (1), schema.sequence_cache (78), each a stop.
 */
bool schema_check(struct pgconn *conn, struct error *err) PR_MUSTCHECK;

/*
 * Whether this program is new enough for a schema that asks for `min_binary`: looked at
 * with each renewal of a lease.  Errors: schema.newer (75).
 */
bool schema_is_served(const struct pgconn *conn, int min_binary, struct error *err) PR_MUSTCHECK;

/*
 * Brings the schema up to this program.  *ret_changed: whether anything was done.
 * Errors: schema.altered, schema.newer, schema.changed, schema.busy, and the server's.
 */
bool schema_install(struct pgconn *conn, bool *ret_changed, struct error *err) PR_MUSTCHECK;

/* What schema_install() would run in an empty database. */
void schema_print(FILE *out);

/* The newest migration this program knows. */
int schema_latest(void);

#endif
