#include "config/rules.h"

#include <ctype.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

#include "config/values.h"
#include "core/alloc.h"

enum { SQLSTATE_LENGTH = 5, CLASS_LENGTH = 2 };

static const char class_words[] = "rejected|permanent|transient|unknown";
static const enum error_class classes[] = {ERR_REJECTED, ERR_PERMANENT, ERR_TRANSIENT, ERR_UNKNOWN};

/* What no event can be at fault for: codes of the server, of the handler, and those that repeat. */
static const struct {
    const char *prefix;
    const char *why;
} untouchable[] = {
    {"00", "success is no error"},
    {"08", "a lost connection is no event's fault: the consumer connects again"},
    {"25006", "a standby is no event's fault: the consumer looks for the primary"},
    {"26000", "a lost statement is repeated at once"},
    {"28", "a refused login is no event's fault: the consumer pauses"},
    {"3D000", "a missing database is no event's fault: the consumer pauses"},
    {"3F000", "a missing schema is the handler's fault: the consumer pauses until it is there"},
    {"40001", "a serialization failure is repeated at once and charges nothing"},
    {"40003", "an unknown commit is looked up"},
    {"40P01", "a deadlock is repeated at once and charges nothing"},
    {"42703", "a missing column is the handler's fault: the consumer pauses until it is there"},
    {"42883", "a missing function is the handler's fault: the consumer pauses until it is there"},
    {"42P01", "a missing table is the handler's fault: the consumer pauses until it is there"},
    {"42P02", "a missing parameter is the handler's fault: the consumer pauses until it is there"},
    {"42P05", "a statement that is there twice is repeated at once"},
    {"53", "a full disk or memory is no event's fault: the consumer pauses"},
    {"57P", "a restart is no event's fault: the consumer connects again"},
    {"58", "a failed disk is no event's fault: the consumer pauses"},
    {"F0", "a broken server file is no event's fault: the consumer pauses"},
    {"PR0", "Postrider's own codes have their meaning"},
    {"XX001", "damaged data is no event's fault: the consumer stops"},
    {"XX002", "a damaged index is no event's fault: the consumer stops"},
};

struct fresh {
    struct error_rule rule;
    bool has_class;
};

/* ------------------------------------------------------------------ reading one rule */

/* "P0001" as it is, "23" and "23***" as "23"; NULL if it is neither. */
static char *
code_prefix(const char *text)
{
    size_t len = strspn(text, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ");

    if (len == SQLSTATE_LENGTH && !text[len])
        return xstrdup(text);
    if (len != CLASS_LENGTH || (text[len] && strcmp(text + len, "***") != 0))
        return NULL;
    char *prefix = xstrdup(text);
    prefix[CLASS_LENGTH] = '\0';
    return prefix;
}

static void
read_sqlstate(struct reading *r, const struct pair *pair, struct error_rule *rule)
{
    char *text = pair_text(r, pair, "an SQLSTATE", false);
    size_t length = text ? strlen(text) : 0;

    if (!text)
        return;
    rule->sqlstate = code_prefix(text);
    free(text);
    if (!rule->sqlstate) {
        pair_expected(r, pair,
                      "five characters of 0-9 and A-Z, as \"P0001\", or a class of codes, as "
                      "\"23\" or \"23***\"%s (Appendix A of PostgreSQL's manual lists them)",
                      length < SQLSTATE_LENGTH ? ", in quotes" : "");
        return;
    }
    for (size_t i = 0; i < PR_LENGTH(untouchable); i++)
        if (strncmp(rule->sqlstate, untouchable[i].prefix, strlen(untouchable[i].prefix)) == 0)
            pair_expected(r, pair, "a code that can be about one event (%s)", untouchable[i].why);
}

static void
read_message(struct reading *r, const struct pair *pair, struct error_rule *rule)
{
    char why[128];

    rule->message = pair_text(r, pair, "a regular expression", false);
    if (!rule->message)
        return;
    regex_t *pattern = xcalloc(1, sizeof(*pattern));
    int failed = regcomp(pattern, rule->message, REG_EXTENDED | REG_NOSUB);
    if (failed == 0) {
        rule->pattern = pattern;
        return;
    }
    regerror(failed, pattern, why, sizeof(why));
    free(pattern);
    pair_expected(r, pair,
                  "a POSIX extended regular expression (%s; \\ takes the meaning off a "
                  "character)",
                  why);
}

static void
read_class(struct reading *r, const struct pair *pair, struct fresh *fresh)
{
    char what[128];
    char *text = pair_text(r, pair, value_words_text(class_words, what, sizeof(what)), false);
    int word = text ? value_word_index(class_words, text) : -1;

    fresh->has_class = true; /* it is there, if not good */
    if (word >= 0)
        fresh->rule.cls = classes[word];
    else if (text)
        pair_expected(r, pair, "%s", what);
    free(text);
}

static void
read_part(struct reading *r, const struct pair *pair, void *arg)
{
    struct fresh *fresh = arg;

    if (strcmp(pair->key, "sqlstate") == 0)
        read_sqlstate(r, pair, &fresh->rule);
    else if (strcmp(pair->key, "message") == 0)
        read_message(r, pair, &fresh->rule);
    else if (strcmp(pair->key, "class") == 0)
        read_class(r, pair, fresh);
    else
        mistake_add(&r->mistakes, pair->line, pair->where,
                    "found an unknown part of a rule, expected sqlstate, message or class");
}

static void
release_rule(struct error_rule *rule)
{
    free(rule->sqlstate);
    free(rule->message);
    if (rule->pattern)
        regfree(rule->pattern);
    free(rule->pattern);
}

/* ------------------------------------------------------------------ the list */

static bool
covers(const struct error_rule *wide, const struct error_rule *narrow)
{
    bool code = !wide->sqlstate || (narrow->sqlstate && strncmp(narrow->sqlstate, wide->sqlstate,
                                                                strlen(wide->sqlstate)) == 0);

    return code &&
           (!wide->message || (narrow->message && strcmp(wide->message, narrow->message) == 0));
}

static void
check_reachable(struct reading *r, const char *where, const struct error_rules *rules,
                const struct error_rule *rule)
{
    for (size_t i = 0; i < rules->count; i++) {
        if (!covers(&rules->list[i], rule))
            continue;
        mistake_add(&r->mistakes, rule->line, where,
                    "found a rule that never applies, expected it before the one of line %d, which "
                    "takes everything that it would (first match wins)",
                    rules->list[i].line);
        return;
    }
}

static void
read_rule(struct reading *r, const struct pair *pair, struct error_rules *ret)
{
    struct fresh fresh = {.rule = {.line = pair->line}};
    size_t before = mistakes_total(&r->mistakes);

    pair_each(r, pair, "{sqlstate: \"P0001\", message: \"…\", class: rejected}", read_part, &fresh);
    if (mistakes_total(&r->mistakes) == before && !fresh.rule.sqlstate && !fresh.rule.message)
        mistake_add(&r->mistakes, pair->line, pair->where,
                    "found neither sqlstate nor message, expected at least one of them");
    if (mistakes_total(&r->mistakes) == before && !fresh.has_class)
        mistake_add(&r->mistakes, pair->line, pair->where,
                    "found no class, expected rejected, permanent, transient or unknown");
    if (mistakes_total(&r->mistakes) > before) {
        release_rule(&fresh.rule);
        return;
    }
    check_reachable(r, pair->where, ret, &fresh.rule);
    ret->list = xrealloc(ret->list, sizeof(*ret->list) * (ret->count + 1));
    ret->list[ret->count++] = fresh.rule;
}

void
rules_read(struct reading *r, const struct pair *pair, struct error_rules *ret)
{
    if (node_is_empty(pair->value))
        return;
    if (pair->value->type != YAML_SEQUENCE_NODE) {
        pair_expected(r, pair, "a list of rules, [{sqlstate: \"P0001\", class: rejected}]");
        return;
    }
    const yaml_node_item_t *first = pair->value->data.sequence.items.start;
    for (const yaml_node_item_t *i = first; i < pair->value->data.sequence.items.top; i++) {
        if (!reading_count(r, pair, (size_t) (i - first)))
            return;
        const yaml_node_t *node = yaml_document_get_node(r->doc, *i);
        struct pair item = {"", node_line(node), node, pair->where};
        read_rule(r, &item, ret);
    }
}

void
rules_release(struct error_rules *rules)
{
    for (size_t i = 0; i < rules->count; i++)
        release_rule(&rules->list[i]);
    free(rules->list);
    *rules = (struct error_rules){0};
}

/* ------------------------------------------------------------------ matching */

bool
rule_is_exact(const struct error_rule *rule)
{
    return rule->sqlstate && strlen(rule->sqlstate) == SQLSTATE_LENGTH;
}

const struct error_rule *
rules_find(const struct error_rules *rules, const char *sqlstate, const char *message)
{
    for (size_t i = 0; i < rules->count; i++) {
        const struct error_rule *rule = &rules->list[i];
        if (rule->sqlstate && strncmp(sqlstate, rule->sqlstate, strlen(rule->sqlstate)) != 0)
            continue;
        if (!rule->pattern || regexec(rule->pattern, message, 0, NULL, 0) == 0)
            return rule;
    }
    return NULL;
}
