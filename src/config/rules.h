/*
 * rules.h — what a handler's errors mean by configuration: `errors:` of a consumer and of
 * one of its handlers.  First match wins, the handler's own rules before the consumer's.
 *
 * Threads: read-only after the configuration is read; matching locks nothing.
 * Memory:  the configuration owns its rules.
 */
#ifndef PR_RULES_H
#define PR_RULES_H

#include <stddef.h>

#include "config/config.h"
#include "config/reading.h"

/* Reads the list at `pair` into `ret`; every mistake is reported with its line. */
void rules_read(struct reading *r, const struct pair *pair, struct error_rules *ret);
void rules_release(struct error_rules *rules);

/* The first rule for this SQLSTATE and message of the server, or NULL. */
const struct error_rule *rules_find(const struct error_rules *rules, const char *sqlstate,
                                    const char *message);

/* Whether the rule names one code, and no class of codes. */
bool rule_is_exact(const struct error_rule *rule);

#endif
