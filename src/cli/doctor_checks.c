#include <stddef.h>

#include "cli/doctor.h"

/* The outbox and its partitions. */
#define OUTBOX_TABLES                                                                              \
    "(SELECT c.oid, c.relacl, c.relpersistence, c.relowner FROM pg_class c"                        \
    " WHERE c.oid = 'postrider.outbox'::regclass OR c.oid IN (SELECT inhrelid FROM pg_inherits"    \
    "  WHERE inhparent = 'postrider.outbox'::regclass)) t"
#define ROLE_OF(acl)                                                                               \
    "CASE WHEN " acl ".grantee = 0 THEN 'PUBLIC' ELSE " acl ".grantee::regrole::text END"
/* Not the owner's own, and not a superuser's, who may do everything anyway. */
#define IS_FOREIGN(acl)                                                                            \
    acl ".grantee <> t.relowner AND NOT EXISTS (SELECT FROM pg_roles s WHERE s.oid = " acl         \
        ".grantee AND s.rolsuper)"
#define PRODUCER_COLUMNS                                                                           \
    "event_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload, body, "       \
    "content_type, headers, occurred_at"
#define AGE(time) "justify_interval(date_trunc('second', clock_timestamp() - " time "))"
/* clang-format off */
const struct doctor_check doctor_checks[] = {
    {5, DOCTOR_ANY, "schema as init left it",
     "the program relies on every column, index and function being as it made them",
     DOCTOR_NO_NAMES, {"doctor_altered",
     "WITH kept AS (SELECT k.line FROM postrider.meta, unnest(fingerprint) k(line)),"
     "  now AS (SELECT n.line FROM unnest(postrider.schema_fingerprint()) n(line))"
     " SELECT d.what, 'undo it; or, if it is meant: UPDATE postrider.meta SET fingerprint ="
     " postrider.schema_fingerprint()', true FROM ("
     "  SELECT line, 'missing: ' || line AS what FROM kept WHERE line NOT IN (SELECT n.line FROM now n)"
     "  UNION ALL"
     "  SELECT line, 'not ours: ' || line FROM now WHERE line NOT IN (SELECT k.line FROM kept k)) d"
     " WHERE EXISTS (SELECT FROM kept) ORDER BY d.line LIMIT 10"}},
    {6, DOCTOR_ANY, "primary server",
     "positions and effects are written; and a standby's snapshots are not those of its primary",
     DOCTOR_NO_NAMES, {"doctor_primary",
     "SELECT 'the server is a standby', 'name all hosts in the connection string, without"
     " target_session_attrs; to make this one the primary: SELECT pg_promote()', true"
     " WHERE pg_is_in_recovery()"}},
    {7, DOCTOR_ANY, "durability of commits",
     "what the server has confirmed must be there after a crash; so nothing can be promised else",
     DOCTOR_NO_NAMES, {"doctor_settings",
     "SELECT format('%s is off', s.name), format('ALTER SYSTEM SET %s = on; SELECT pg_reload_conf()',"
     "  s.name), true FROM pg_settings s"
     " WHERE s.name IN ('fsync', 'full_page_writes') AND s.setting = 'off'"
     " UNION ALL"
     " SELECT format('synchronous_commit is off for %s: a crash can undo their last commits, and the"
     " events with them; our own sessions turn it on', a.who), a.remedy, false FROM ("
     "  SELECT 'all sessions' AS who,"
     "   'ALTER SYSTEM RESET synchronous_commit; SELECT pg_reload_conf()' AS remedy"
     "  FROM pg_settings WHERE name = 'synchronous_commit' AND reset_val = 'off'"
     "   AND NOT EXISTS (SELECT FROM pg_db_role_setting g, unnest(g.setconfig) c WHERE c = 'synchronous_commit=off')"
     "  UNION ALL SELECT 'sessions of ' || coalesce(r.rolname, 'all roles') || ' in ' || coalesce(d.datname,"
     "   'all databases'), 'ALTER ' || CASE WHEN r.rolname IS NULL THEN format('DATABASE %I', d.datname)"
     "   WHEN d.datname IS NULL THEN format('ROLE %I', r.rolname)"
     "   ELSE format('ROLE %I IN DATABASE %I', r.rolname, d.datname) END || ' RESET synchronous_commit'"
     "  FROM pg_db_role_setting g LEFT JOIN pg_database d ON d.oid = g.setdatabase"
     "  LEFT JOIN pg_roles r ON r.oid = g.setrole"
     "  WHERE 'synchronous_commit=off' = ANY (g.setconfig)"
     "   AND (d.datname IS NULL OR d.datname = current_database())) a"}},
    {8, DOCTOR_ANY, "encoding",
     "names and payloads travel as UTF-8; bytes that are none stop at the event that has them",
     DOCTOR_NO_NAMES, {"doctor_encoding",
     "SELECT format('the database is encoded in %s', pg_encoding_to_char(encoding)),"
     "  'keep events to ASCII, or use a database made with ENCODING ''UTF8'' TEMPLATE template0', false"
     " FROM pg_database WHERE datname = current_database() AND pg_encoding_to_char(encoding) <> 'UTF8'"}},
    {9, DOCTOR_ANY, "partitions of the coming days",
     "rows of a day without a partition pile up in DEFAULT, where retention does not reach them",
     DOCTOR_NO_NAMES, {"doctor_partitions",
     "SELECT format('%s has no partition for %s', t.name, string_agg(n.day::text, ', ' ORDER BY n.day)),"
     "  'SELECT postrider.make_partitions(3); a running program does it every minute, see its log for"
     " janitor.failed', true"
     " FROM (VALUES ('outbox'), ('log'), ('consumed')) t(name)"
     " CROSS JOIN (SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date + g AS day FROM generate_series(0, 2) g) n"
     " WHERE NOT EXISTS (SELECT FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
     "  WHERE i.inhparent = ('postrider.' || t.name)::regclass"
     "   AND c.relname = t.name || '_' || to_char(n.day, 'YYYYMMDD')) GROUP BY t.name"}},
    {10, DOCTOR_ANY, "rows outside the days",
     "they come from a wrong clock or a missing partition, and retention does not reach them",
     DOCTOR_NO_NAMES, {"doctor_default",
     "SELECT format('%s_default has %s rows of %s', d.table_name, d.row_count, d.day),"
     /* Names of partitions have eight digits; and no clock is off by eight thousand years. */
     "  CASE WHEN d.day > '9999-12-30' THEN format('once they are published or consumed: DELETE FROM"
     " postrider.%I WHERE %s', d.table_name || '_default', CASE d.table_name"
     "   WHEN 'outbox' THEN 'event_id >= postrider.day_floor(''9999-12-31'')'"
     "   WHEN 'log' THEN 'at >= ''9999-12-31 00:00+00''' ELSE 'day > ''9999-12-30''' END)"
     "  ELSE format('SET ROLE postrider_owner; SELECT postrider.make_partition(%L, %L, %s)', d.table_name, d.day,"
     "   CASE d.table_name WHEN 'outbox' THEN format('postrider.day_floor(%L)::text,"
     " postrider.day_floor(%L)::text', d.day, d.day + 1)"
     "   WHEN 'log' THEN format('%L, %L', d.day || ' 00:00+00', d.day + 1 || ' 00:00+00')"
     "   ELSE format('%L, %L', d.day, d.day + 1) END) END, true"
     " FROM postrider.default_rows() d ORDER BY d.table_name, d.day LIMIT 10"}},
    {11, DOCTOR_ANY, "prepared transactions",
     "one that is forgotten holds back VACUUM and freezing for ever, and its events wait",
     DOCTOR_NO_NAMES, {"doctor_prepared",
     "SELECT format('%L of %s in database %s is prepared since %s', p.gid, p.owner, p.database, " AGE("p.prepared") "),"
     "  format('in database %s: ROLLBACK PREPARED %L, or COMMIT PREPARED %L: its coordinator knows which',"
     "   p.database, p.gid, p.gid), p.prepared < clock_timestamp() - interval '1 hour'"
     " FROM pg_prepared_xacts p WHERE p.prepared < clock_timestamp() - interval '5 seconds'"
     " ORDER BY p.prepared LIMIT 5"}},
    {12, DOCTOR_ANY, "long transactions",
     "nothing waits for them but their own events; they hold back VACUUM",
     DOCTOR_NO_NAMES, {"doctor_transactions",
     "SELECT format('pid %s (%s, user %s, database %s, %s) is in a transaction since %s', a.pid,"
     "   coalesce(nullif(a.application_name, ''), 'unnamed'), a.usename, a.datname, a.state, " AGE("a.xact_start") "),"
     "  format('SELECT pg_terminate_backend(%s)', a.pid), false"
     " FROM pg_stat_activity a WHERE a.xact_start < clock_timestamp() - interval '10 seconds'"
     "  AND a.pid <> pg_backend_pid() AND a.backend_type = 'client backend'"
     " ORDER BY a.xact_start LIMIT 5"}},

    {13, DOCTOR_ANY, "owner of the partitions",
     "only a table's owner may drop it, so retention stops at one that has another",
     DOCTOR_NO_NAMES, {"doctor_owners",
     "SELECT format('%s belongs to %s', i.inhrelid::regclass, pg_get_userbyid(c.relowner)),"
     "  format('ALTER TABLE %s OWNER TO %I', i.inhrelid::regclass, pg_get_userbyid(p.relowner)), true"
     " FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_class p ON p.oid = i.inhparent"
     " WHERE p.oid IN ('postrider.outbox'::regclass, 'postrider.log'::regclass, 'postrider.consumed'::regclass)"
     "  AND c.relowner <> p.relowner ORDER BY 1 LIMIT 10"}},

    {20, DOCTOR_OUTBOX, "rights of the relay's login",
     "without them the relay stops at its first step",
     DOCTOR_NO_NAMES, {"doctor_relay_rights",
     "SELECT format('login %s may not read the outbox and move positions', current_user),"
     "  format('GRANT postrider_relay TO %I', current_user), true"
     " WHERE NOT (has_table_privilege('postrider.outbox', 'SELECT')"
     "  AND has_column_privilege('postrider.lane', 'done_snap', 'UPDATE')"
     "  AND has_table_privilege('postrider.parked', 'INSERT'))"}},
    {21, DOCTOR_OUTBOX, "what producers may do",
     "a forged xid or id makes an event invisible to every relay, or puts it before an earlier"
     " one; what has been published must not change",
     DOCTOR_NO_NAMES, {"doctor_producers",
     "SELECT format('%s may %s on %s', g.who, g.rights, g.object),"
     "  format('REVOKE %s ON %s FROM %s', g.rights, g.object, g.who) || CASE"
     /* Taking INSERT from a table takes it from its columns, too. */
     "   WHEN g.rights !~ 'INSERT$|INSERT,' OR g.object <> 'postrider.outbox' OR g.who = 'PUBLIC' THEN ''"
     "   WHEN g.who = 'postrider_producer' THEN '; GRANT INSERT (" PRODUCER_COLUMNS ") ON postrider.outbox TO "
     "postrider_producer' ELSE '; GRANT postrider_producer TO ' || g.who END, true FROM ("
     "  SELECT " ROLE_OF("a") " AS who, string_agg(DISTINCT a.privilege_type, ', ') AS rights,"
     "    t.oid::regclass::text AS object"
     "  FROM " OUTBOX_TABLES ", aclexplode(t.relacl) a"
     "  WHERE a.privilege_type IN ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE') AND " IS_FOREIGN("a")
     "  GROUP BY a.grantee, t.oid"
     "  UNION ALL"
     "  SELECT " ROLE_OF("a") ", string_agg(DISTINCT format('%s (%I)', a.privilege_type, c.attname), ', '),"
     "    t.oid::regclass::text"
     "  FROM " OUTBOX_TABLES " JOIN pg_attribute c ON c.attrelid = t.oid AND NOT c.attisdropped,"
     "   aclexplode(c.attacl) a"
     "  WHERE (a.privilege_type = 'UPDATE'"
     "    OR (a.privilege_type = 'INSERT' AND (c.attname IN ('id', 'xid', 'inserted_at')"
     "     OR t.oid <> 'postrider.outbox'::regclass))) AND " IS_FOREIGN("a")
     "  GROUP BY a.grantee, t.oid"
     "  UNION ALL"
     "  SELECT " ROLE_OF("a") ", string_agg(DISTINCT a.privilege_type, ', '), 'SEQUENCE postrider.outbox_id_seq'"
     "  FROM (SELECT c.oid, c.relacl, c.relowner FROM pg_class c"
     "   WHERE c.oid = pg_get_serial_sequence('postrider.outbox', 'id')::regclass) t, aclexplode(t.relacl) a"
     "  WHERE a.privilege_type IN ('UPDATE', 'USAGE') AND " IS_FOREIGN("a") " GROUP BY a.grantee) g"
     " ORDER BY g.object, g.who LIMIT 20"}},
    {22, DOCTOR_OUTBOX, "row security of the outbox",
     "a relay that cannot see all rows takes what it does not see for published",
     DOCTOR_NO_NAMES, {"doctor_rls",
     "SELECT format('row security of %s applies to login %s, and no policy shows it all rows', t.oid::regclass,"
     "  current_user), format('CREATE POLICY postrider_relay ON %s FOR SELECT TO postrider_relay USING (true)',"
     "  t.oid::regclass), true"
     " FROM " OUTBOX_TABLES " WHERE row_security_active(t.oid) AND NOT EXISTS (SELECT FROM pg_policy p"
     "  WHERE p.polrelid = t.oid AND p.polpermissive AND p.polcmd IN ('r', '*')"
     "   AND pg_get_expr(p.polqual, p.polrelid) = 'true' AND EXISTS (SELECT FROM unnest(p.polroles) r"
     "    WHERE r = 0 OR pg_has_role(r, 'USAGE')))"}},
    {23, DOCTOR_OUTBOX, "logged tables",
     "a crash empties an unlogged table, and the events with it",
     DOCTOR_NO_NAMES, {"doctor_unlogged",
     "SELECT format('%s is unlogged', t.oid::regclass),"
     "  format('ALTER TABLE %s SET LOGGED', t.oid::regclass), true"
     " FROM " OUTBOX_TABLES " WHERE t.relpersistence = 'u'"}},
    {24, DOCTOR_OUTBOX, "indexes of the outbox",
     "with an index on bare id the planner may walk through all that was ever published to find what was not",
     DOCTOR_NO_NAMES, {"doctor_bare_id",
     "SELECT format('index %s of %s begins with id', x.indexrelid::regclass, t.oid::regclass),"
     "  format('DROP INDEX %s', x.indexrelid::regclass), true"
     " FROM " OUTBOX_TABLES " JOIN pg_index x ON x.indrelid = t.oid JOIN pg_class c ON c.oid = x.indexrelid"
     " JOIN pg_am m ON m.oid = c.relam"
     " JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = x.indkey[0]"
     " WHERE m.amname = 'btree' AND a.attname = 'id'"
     "  AND NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = x.indexrelid) ORDER BY 1 LIMIT 10"}},
    {27, DOCTOR_OUTBOX, "relays of the configuration",
     "a relay begins where it was registered to begin",
     DOCTOR_RELAYS, {"doctor_unregistered",
     "SELECT format('relay %s is not registered', n.name), 'postrider init', true"
     " FROM unnest($1::text[]) n(name) WHERE NOT EXISTS (SELECT FROM postrider.relay r WHERE r.name = n.name)"}},
    {28, DOCTOR_OUTBOX, "relays nobody runs",
     "retention keeps the outbox for every relay that is registered",
     DOCTOR_RELAYS, {"doctor_idle",
     "SELECT format('relay %s is not in this configuration, and no process runs it', r.name),"
     "  format('if it is gone for good: postrider relay drop %s --actor NAME --reason TEXT', r.name), false"
     " FROM postrider.relay r WHERE r.name <> ALL ($1::text[]) AND NOT EXISTS (SELECT FROM postrider.lane l"
     "  WHERE l.relay = r.relay AND l.lease_until > clock_timestamp())"}},

    {30, DOCTOR_LOG, "rights at the log",
     "a relay appends to it, a consumer reads it",
     DOCTOR_NO_NAMES, {"doctor_log_rights",
     "SELECT format('login %s may neither append to the log nor read it', current_user),"
     "  format('GRANT postrider_relay TO %I, or postrider_consumer', current_user), true"
     " WHERE NOT has_table_privilege('postrider.log', 'SELECT') AND NOT EXISTS (SELECT FROM pg_proc p"
     "  WHERE p.pronamespace = 'postrider'::regnamespace AND p.proname = 'log_append'"
     "   AND has_function_privilege(p.oid, 'EXECUTE'))"}},

    {43, DOCTOR_CONSUMER, "rights of the consumer's login",
     "without them the consumer stops at its first step",
     DOCTOR_NO_NAMES, {"doctor_consumer_rights",
     "SELECT format('login %s may not keep positions and apply events', current_user),"
     "  format('GRANT postrider_consumer TO %I', current_user), true"
     " WHERE NOT (has_column_privilege('postrider.consumer_partition', 'owner', 'UPDATE')"
     "  AND has_table_privilege('postrider.consumed', 'SELECT'))"}},
    {44, DOCTOR_CONSUMER, "consumers of the configuration",
     "a consumer's records are kept under its number",
     DOCTOR_CONSUMERS, {"doctor_strangers",
     "SELECT format('consumer %s is not registered', n.name), 'postrider init', true"
     " FROM unnest($1::text[]) n(name) WHERE NOT EXISTS (SELECT FROM postrider.consumer c WHERE c.name = n.name)"}},
    {.name = NULL},
};
/* clang-format on */
