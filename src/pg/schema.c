#include "pg/schema.h"

#include <stdlib.h>
#include <string.h>

#include "core/strbuf.h"
#include "pg/pgerror.h"
#include "pg/schema_files.h"

/* Any number of ours; all installs of one database wait for each other on it. */
#define INSTALL_LOCK "7305816923471"

static const struct pgstmt stmt_exists = {
    "schema_exists",
    "SELECT to_regclass('postrider.schema_version') IS NOT NULL",
};
static const struct pgstmt stmt_version = {
    "schema_version",
    "SELECT max(version), max(min_binary) FROM postrider.schema_version",
};
static const struct pgstmt stmt_meta = {
    "schema_meta",
    "SELECT m.system_identifier = c.system_identifier AND m.database_oid = d.oid,"
    "  m.system_identifier, c.system_identifier,"
    "  (SELECT s.seqcache FROM pg_sequence s"
    "   WHERE s.seqrelid = pg_get_serial_sequence('postrider.outbox', 'id')::regclass)"
    " FROM postrider.meta m, pg_control_system() c, pg_database d WHERE d.datname = "
    "current_database()",
};
static const struct pgstmt stmt_applied = {
    "schema_applied",
    "SELECT version, checksum FROM postrider.schema_version",
};
static const struct pgstmt stmt_altered = {
    "schema_altered",
    "SELECT line, kept FROM ("
    "  SELECT k.line, true AS kept FROM postrider.meta m, unnest(m.fingerprint) k(line)"
    "  WHERE k.line <> ALL (postrider.schema_fingerprint())"
    "  UNION ALL"
    "  SELECT n.line, false FROM postrider.meta m, unnest(postrider.schema_fingerprint()) n(line)"
    "  WHERE n.line <> ALL (m.fingerprint)) d"
    " WHERE (SELECT fingerprint <> '{}' FROM postrider.meta) ORDER BY line LIMIT 4",
};
static const struct pgstmt stmt_record = {
    "schema_record",
    "INSERT INTO postrider.schema_version (version, name, checksum, min_binary)"
    " VALUES ($1::int, $2::text, $3::text, $4::int) ON CONFLICT (version) DO UPDATE"
    " SET checksum = excluded.checksum, applied_at = clock_timestamp(), applied_by = session_user",
};

int
schema_latest(void)
{
    int latest = 0;

    for (const struct schema_file *file = schema_migrations; file->name; file++)
        latest = file->version;
    return latest;
}

/* ------------------------------------------------------------------ checking */

static bool
exists(struct pgconn *conn, bool *ret, struct error *err)
{
    PGresult *res;

    if (!pgconn_query(conn, &stmt_exists, NULL, &res, err))
        return false;
    *ret = pgresult_bool(res, 0, 0);
    PQclear(res);
    return true;
}

static bool
newer(const struct pgconn *conn, int version, struct error *err)
{
    error_set_exit(err, ERR_STOP, EXIT_NEWER, "schema.newer",
                   "%s was prepared by a newer postrider (schema %d, this program knows %d)",
                   pgconn_target(conn), version, schema_latest());
    return error_hint(err, "upgrade this program; the newer one goes on meanwhile");
}

bool
schema_is_served(const struct pgconn *conn, int min_binary, struct error *err)
{
    return min_binary <= schema_latest() || newer(conn, min_binary, err);
}

static bool
check_version(struct pgconn *conn, struct error *err)
{
    PGresult *res;
    int version, min_binary;

    if (!pgconn_query(conn, &stmt_version, NULL, &res, err))
        return false;
    version = (int) pgresult_i64(res, 0, 0);
    min_binary = (int) pgresult_i64(res, 0, 1);
    PQclear(res);
    if (min_binary > schema_latest())
        return newer(conn, version, err);
    if (version >= schema_latest())
        return true;
    error_set_exit(err, ERR_STOP, EXIT_CONFIG, "schema.old",
                   "the schema in %s is older (%d) than this program (%d)", pgconn_target(conn),
                   version, schema_latest());
    return error_hint(err, "run `postrider init`; programs of the older version go on working");
}

static bool
check_meta(struct pgconn *conn, struct error *err)
{
    PGresult *res;
    bool ok = true;

    if (!pgconn_query(conn, &stmt_meta, NULL, &res, err))
        return false;
    if (PQntuples(res) == 0 || !pgresult_bool(res, 0, 0)) {
        ok = error_set_exit(err, ERR_STOP, EXIT_DIFFERS, "schema.other_cluster",
                            "%s is a copy: its positions speak of another cluster or database",
                            pgconn_target(conn));
        error_hint(err, "events of a copy must not go out twice; see docs/guide/operations.md, "
                        "\"After a restore\", before you adopt it");
    } else if (pgresult_i64(res, 0, 3) != 1) {
        ok =
            error_set_exit(err, ERR_STOP, EXIT_CONFIG, "schema.sequence_cache",
                           "the identity of postrider.outbox in %s has CACHE %s: ids of one stream "
                           "would be given out of order",
                           pgconn_target(conn), PQgetvalue(res, 0, 3));
        error_hint(err, "ALTER TABLE postrider.outbox ALTER COLUMN id SET CACHE 1");
    }
    PQclear(res);
    return ok;
}

bool
schema_check(struct pgconn *conn, struct error *err)
{
    bool there;

    if (!exists(conn, &there, err))
        return false;
    if (!there) {
        error_set_exit(err, ERR_STOP, EXIT_CONFIG, "schema.missing",
                       "there is no schema of ours in %s", pgconn_target(conn));
        return error_hint(err, "run `postrider init` with this configuration");
    }
    return check_version(conn, err) && check_meta(conn, err);
}

/* ------------------------------------------------------------------ installing */

/* Checksums of what is applied; version 0 is the functions. */
struct applied {
    char checksums[64][72];
    int latest;
};

static bool
read_applied(struct pgconn *conn, struct applied *ret, struct error *err)
{
    PGresult *res;
    bool there;

    memset(ret, 0, sizeof(*ret));
    ret->latest = 0;
    if (!exists(conn, &there, err))
        return false;
    if (!there)
        return true;
    if (!pgconn_query(conn, &stmt_applied, NULL, &res, err))
        return false;
    for (int row = 0; row < PQntuples(res); row++) {
        int version = (int) pgresult_i64(res, row, 0);
        if (version > ret->latest)
            ret->latest = version;
        if (version < 64)
            snprintf(ret->checksums[version], sizeof(ret->checksums[version]), "%s",
                     PQgetvalue(res, row, 1));
    }
    PQclear(res);
    return true;
}

static bool
check_unchanged(struct pgconn *conn, const struct applied *applied, struct error *err)
{
    if (applied->latest > schema_latest())
        return newer(conn, applied->latest, err);
    for (const struct schema_file *file = schema_migrations; file->name; file++) {
        const char *was = applied->checksums[file->version];
        if (!*was || strcmp(was, file->checksum) == 0)
            continue;
        error_set_exit(err, ERR_STOP, EXIT_CONFIG, "schema.changed",
                       "migration %d (%s) in %s differs from this program's (%.12s, here %.12s)",
                       file->version, file->name, pgconn_target(conn), was, file->checksum);
        return error_hint(err, "a migration never changes after its release: use the program that "
                               "installed it, or a database of its own");
    }
    return true;
}

static bool
check_unaltered(struct pgconn *conn, struct error *err)
{
    struct strbuf names = {0};
    PGresult *res;
    bool ok = true;

    if (!pgconn_query(conn, &stmt_altered, NULL, &res, err))
        return false;
    for (int row = 0; row < PQntuples(res); row++)
        strbuf_addf(&names, "%s%s %s", row ? "; " : "",
                    pgresult_bool(res, row, 1) ? "missing" : "extra", PQgetvalue(res, row, 0));
    if (PQntuples(res) > 0) {
        ok = error_set_exit(err, ERR_STOP, EXIT_CONFIG, "schema.altered",
                            "the schema in %s was altered by hand: %s", pgconn_target(conn),
                            strbuf_str(&names));
        error_hint(err,
                   "undo the change; or, if it is meant: UPDATE postrider.meta SET fingerprint = "
                   "postrider.schema_fingerprint()");
    }
    strbuf_release(&names);
    PQclear(res);
    return ok;
}

static bool
record(struct pgconn *conn, const struct schema_file *file, struct error *err)
{
    struct arena arena = {0};
    struct pgparams p = {.arena = &arena};

    pgparams_i32(&p, file->version);
    pgparams_text(&p, file->name);
    pgparams_text(&p, file->checksum);
    /* The first release; a migration that shuts older programs out raises this in its own file. */
    pgparams_i32(&p, 1);
    bool ok = pgconn_run(conn, &stmt_record, &p, err);
    arena_release(&arena);
    return ok;
}

static bool
apply(struct pgconn *conn, const struct schema_file *file, struct error *err)
{
    if (!pgconn_exec(conn, file->text, err) || !record(conn, file, err))
        return error_wrap(err, "while applying %s", file->name);
    return true;
}

/* Everything in one transaction: an init that fails has done nothing. */
static bool
install_all(struct pgconn *conn, bool *ret_changed, struct error *err)
{
    struct applied applied;

    if (!pgconn_exec(conn,
                     "BEGIN; SET LOCAL lock_timeout = '5s'; SET LOCAL check_function_bodies = off;"
                     " SELECT pg_advisory_xact_lock(" INSTALL_LOCK ")",
                     err) ||
        !read_applied(conn, &applied, err) || !check_unchanged(conn, &applied, err))
        return false;
    if (applied.latest > 0 &&
        (!pgconn_exec(conn, "SET LOCAL ROLE postrider_owner", err) || !check_unaltered(conn, err)))
        return false;
    *ret_changed = false;
    for (const struct schema_file *file = schema_migrations; file->name; file++) {
        if (file->version <= applied.latest)
            continue;
        if (!apply(conn, file, err))
            return false;
        *ret_changed = true;
    }
    if (strcmp(applied.checksums[0], schema_functions.checksum) != 0) {
        if (!apply(conn, &schema_functions, err))
            return false;
        *ret_changed = true;
    }
    if (*ret_changed &&
        !pgconn_exec(conn, "UPDATE postrider.meta SET fingerprint = postrider.schema_fingerprint()",
                     err))
        return false;
    return pgconn_exec(conn, "SELECT postrider.make_partitions(3)", err);
}

static void
explain(struct pgconn *conn, struct error *err)
{
    if (pgerror_is(err, "42501"))
        error_hint(err, "run `postrider init` as the owner of the database with CREATEROLE, or let "
                        "a DBA run what `postrider init --dry-run` prints");
    else if (pgerror_is(err, "55P03")) {
        error_wrap(err, "another session holds what %s must change", pgconn_target(conn));
        error_hint(err,
                   "another init is running, or a long transaction uses these tables; try again");
    }
}

bool
schema_install(struct pgconn *conn, bool *ret_changed, struct error *err)
{
    struct error ignored;

    *ret_changed = false;
    if (install_all(conn, ret_changed, err) && pgconn_exec(conn, "COMMIT", err))
        return true;
    explain(conn, err);
    if (pgconn_ok(conn) && !pgconn_exec(conn, "ROLLBACK", &ignored))
        return false;
    return false;
}

void
schema_print(FILE *out)
{
    fputs("BEGIN;\nSET LOCAL lock_timeout = '5s';\nSET LOCAL check_function_bodies = off;\n"
          "SELECT pg_advisory_xact_lock(" INSTALL_LOCK ");\n",
          out);
    for (const struct schema_file *file = schema_migrations; file->name; file++)
        fprintf(out,
                "\n-- %03d_%s\n%s\nINSERT INTO postrider.schema_version (version, name, checksum, "
                "min_binary) VALUES (%d, '%s', '%s', 1);\n",
                file->version, file->name, file->text, file->version, file->name, file->checksum);
    fprintf(
        out,
        "\n%s\nINSERT INTO postrider.schema_version (version, name, checksum, min_binary) VALUES"
        " (0, 'functions', '%s', 1);\nUPDATE postrider.meta SET fingerprint = "
        "postrider.schema_fingerprint();\nSELECT postrider.make_partitions(3);\nCOMMIT;\n",
        schema_functions.text, schema_functions.checksum);
}
