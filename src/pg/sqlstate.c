#include "pg/sqlstate.h"

#include <string.h>

#include "core/attr.h"

#define T ERR_TRANSIENT
#define P ERR_PERMANENT
#define D ERR_DESTINATION
#define U ERR_UNKNOWN
#define S ERR_STOP
#define EVENT SCOPE_EVENT
#define HANDLER SCOPE_HANDLER
#define SERVER SCOPE_SERVER

static const char *const grant_hint =
    "grant the right to this login: it must be a member of the role named in docs/guide/install.md";
static const char *const schema_hint = "run `postrider init`, or make the missing object";
static const char *const disk_hint =
    "free disk space on the database server; nothing is lost, work goes on by itself";

/* First match wins, so whole codes stand before the class they belong to. */
static const struct sqlstate_rule rules[] = {
    {"PR001", T, SERVER, true, EXIT_FAULT, "fenced.partition", NULL},
    {"PR002", S, SERVER, false, EXIT_CONFIG, "consumer.unknown", NULL},
    {"PR010", T, SERVER, true, EXIT_FAULT, "fenced.lane", NULL},
    {"PR011", D, SERVER, false, EXIT_CONFIG, "log.no_topic", NULL},
    {"PR012", S, SERVER, false, EXIT_CONFIG, "log.partitions", NULL},
    {"PR013", S, SERVER, false, EXIT_FAULT, "log.call", NULL},
    {"PR020", P, EVENT, false, EXIT_DIFFERS, "dlq.refused", NULL},
    {"PR024", P, EVENT, false, EXIT_DIFFERS, "gaps.refused", NULL},
    {"PR025", P, EVENT, false, EXIT_DIFFERS, "consumer.refused", NULL},
    {"PR1", P, EVENT, false, EXIT_REFUSED, "event.limit", NULL},

    {"08004", D, SERVER, false, EXIT_AWAY, "pg.refused", "the server refuses connections"},
    {"08007", U, SERVER, false, EXIT_AWAY, "pg.commit_unknown", NULL},
    {"08P01", U, SERVER, false, EXIT_FAULT, "pg.protocol", NULL},
    {"08", T, SERVER, false, EXIT_AWAY, "pg.away", "check that the server runs and is reachable"},
    {"0A000", P, EVENT, false, EXIT_FAULT, "pg.unsupported", NULL},
    {"21", P, EVENT, false, EXIT_FAULT, "pg.data", NULL},
    {"22", P, EVENT, false, EXIT_REFUSED, "pg.data", NULL},
    {"23503", T, EVENT, false, EXIT_FAULT, "pg.foreign_key", NULL},
    {"23", P, EVENT, false, EXIT_REFUSED, "pg.constraint", NULL},
    {"25006", T, SERVER, false, EXIT_AWAY, "pg.readonly",
     "connect to the primary: name all hosts in the connection string"},
    {"25P03", T, EVENT, false, EXIT_FAULT, "pg.timeout", NULL},
    {"25P04", T, EVENT, false, EXIT_FAULT, "pg.timeout", NULL},
    {"57P05", T, SERVER, false, EXIT_FAULT, "pg.timeout", NULL},
    {"26000", T, EVENT, true, EXIT_FAULT, "pg.statement_lost", NULL},
    {"42P05", T, EVENT, true, EXIT_FAULT, "pg.statement_lost", NULL},
    {"28", D, SERVER, false, EXIT_RIGHTS, "pg.auth", "check user and password of the connection"},
    {"3D000", D, SERVER, false, EXIT_CONFIG, "pg.database",
     "create the database, or correct its name in the connection string"},
    {"3F000", D, HANDLER, false, EXIT_CONFIG, "pg.missing", schema_hint},
    {"40001", T, EVENT, true, EXIT_FAULT, "pg.serialization", NULL},
    {"40P01", T, EVENT, true, EXIT_FAULT, "pg.deadlock", NULL},
    {"40003", U, SERVER, false, EXIT_AWAY, "pg.commit_unknown", NULL},
    {"40002", P, EVENT, false, EXIT_FAULT, "pg.constraint", NULL},
    {"42501", D, HANDLER, false, EXIT_RIGHTS, "pg.rights", grant_hint},
    {"42P01", D, HANDLER, false, EXIT_CONFIG, "pg.missing", schema_hint},
    {"42703", D, HANDLER, false, EXIT_CONFIG, "pg.missing", schema_hint},
    {"42883", D, HANDLER, false, EXIT_CONFIG, "pg.missing", schema_hint},
    {"42P02", D, HANDLER, false, EXIT_CONFIG, "pg.missing", schema_hint},
    {"42", P, EVENT, false, EXIT_CONFIG, "pg.statement", NULL},
    {"44", P, EVENT, false, EXIT_REFUSED, "pg.constraint", NULL},
    {"53100", T, SERVER, false, EXIT_FULL, "pg.disk", disk_hint},
    {"53300", T, SERVER, false, EXIT_AWAY, "pg.connections",
     "raise max_connections, or end idle sessions"},
    {"53", T, SERVER, false, EXIT_AWAY, "pg.resources",
     "the database server lacks memory or space"},
    {"54", P, EVENT, false, EXIT_REFUSED, "pg.limit", NULL},
    {"55P03", T, EVENT, false, EXIT_FAULT, "pg.lock", NULL},
    {"55006", T, SERVER, false, EXIT_FAULT, "pg.in_use", NULL},
    {"55", D, SERVER, false, EXIT_FAULT, "pg.state", NULL},
    {"57014", T, EVENT, false, EXIT_FAULT, "pg.cancelled", NULL},
    {"57P04", D, SERVER, false, EXIT_CONFIG, "pg.database", "the database was dropped"},
    {"57", T, SERVER, false, EXIT_AWAY, "pg.restart", "the server restarts; wait, or see its log"},
    {"58", T, SERVER, false, EXIT_FULL, "pg.io",
     "see the database server's log: a file or disk failed"},
    {"F0", T, SERVER, false, EXIT_FULL, "pg.io", "see the database server's log"},
    {"72", T, EVENT, false, EXIT_FAULT, "pg.snapshot", NULL},
    {"HV00N", T, EVENT, false, EXIT_FAULT, "pg.foreign_data", NULL},
    {"HV", P, EVENT, false, EXIT_FAULT, "pg.foreign_data", NULL},
    {"P0004", U, EVENT, false, EXIT_FAULT, "pg.assert", NULL},
    {"P0", P, EVENT, false, EXIT_REFUSED, "pg.raised", NULL},
    {"XX001", S, SERVER, false, EXIT_FAULT, "pg.corrupt",
     "data is damaged: stop, and restore from a backup"},
    {"XX002", S, SERVER, false, EXIT_FAULT, "pg.corrupt",
     "an index is damaged: REINDEX after checking the disk"},
    {"", U, EVENT, false, EXIT_FAULT, "pg.error", NULL},
};

const struct sqlstate_rule *
sqlstate_find(const char *sqlstate)
{
    const struct sqlstate_rule *rule = rules;

    while (strncmp(sqlstate, rule->prefix, strlen(rule->prefix)) != 0)
        rule++; /* ends at "", which is in front of everything */
    return rule;
}
