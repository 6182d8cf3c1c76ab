#include "consume/handler.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "config/values.h"
#include "consume/jsonpath.h"
#include "core/alloc.h"
#include "core/strbuf.h"
#include "core/utf8.h"

enum { MOST_DEPTH = 16, BOOL_OID = 16 };

enum value_kind {
    VALUE_CONSUMER,
    VALUE_EVENT_ID,
    VALUE_AGGREGATE_TYPE,
    VALUE_AGGREGATE_ID,
    VALUE_VERSION,
    VALUE_EVENT_TYPE,
    VALUE_OCCURRED_AT,
    VALUE_PAYLOAD,
    VALUE_HEADER,
};

struct handler_value {
    enum value_kind kind;
    int depth; /* names behind payload or header */
    char *path[MOST_DEPTH];
};

static const struct {
    const char *name;
    enum value_kind kind;
} names[] = {
    {"consumer", VALUE_CONSUMER},
    {"event_id", VALUE_EVENT_ID},
    {"aggregate_type", VALUE_AGGREGATE_TYPE},
    {"aggregate_id", VALUE_AGGREGATE_ID},
    {"version", VALUE_VERSION},
    {"aggregate_version", VALUE_VERSION},
    {"event_type", VALUE_EVENT_TYPE},
    {"occurred_at", VALUE_OCCURRED_AT},
    {"payload", VALUE_PAYLOAD},
    {"header", VALUE_HEADER},
};

/* ------------------------------------------------------------------ finding parameters */

static bool
is_word_start(char c)
{
    return isalpha((unsigned char) c) || c == '_' || (unsigned char) c >= 0x80;
}

static bool
is_word(char c)
{
    return is_word_start(c) || isdigit((unsigned char) c);
}

/* Past a quoted text; `escapes`: a backslash hides the next character. */
static const char *
skip_quoted(const char *at, char quote, bool escapes)
{
    for (at++; *at; at++) {
        if (escapes && *at == '\\' && at[1])
            at++;
        else if (*at == quote && at[1] == quote)
            at++;
        else if (*at == quote)
            return at + 1;
    }
    return at;
}

static const char *
skip_comment(const char *at)
{
    int level = 0;

    if (*at == '-')
        return at + strcspn(at, "\n");
    do {
        if (at[0] == '/' && at[1] == '*') {
            level++;
            at += 2;
        } else if (at[0] == '*' && at[1] == '/') {
            level--;
            at += 2;
        } else {
            at++;
        }
    } while (level > 0 && *at);
    return at;
}

/* Past $tag$ … $tag$; `at` itself if this dollar begins no such text. */
static const char *
skip_dollar(const char *at)
{
    const char *tag_end = at + 1;
    size_t len;

    if (*tag_end != '$' && !is_word_start(*tag_end))
        return at;
    while (is_word(*tag_end))
        tag_end++;
    if (*tag_end != '$')
        return at;
    len = (size_t) (tag_end - at) + 1;
    for (const char *end = tag_end + 1; *end; end++)
        if (strncmp(end, at, len) == 0)
            return end + len;
    return tag_end + strlen(tag_end);
}

/* Past whatever cannot hold a parameter and begins here; `at` itself if nothing such does. */
static const char *
skip_opaque(const char *at, const char *start)
{
    bool word_before = at > start && is_word(at[-1]);

    if ((at[0] == '-' && at[1] == '-') || (at[0] == '/' && at[1] == '*'))
        return skip_comment(at);
    if (*at == '\'') {
        bool e = word_before && (at[-1] | 0x20) == 'e' && (at - start < 2 || !is_word(at[-2]));
        return skip_quoted(at, '\'', e);
    }
    if (*at == '"')
        return skip_quoted(at, '"', false);
    if (*at == '$' && !word_before)
        return skip_dollar(at);
    if (at[0] == ':' && (at[1] == ':' || at[1] == '='))
        return at + 2;
    return at;
}

/* One name of a parameter, plain or "quoted"; NULL if none begins here.  The caller frees. */
static char *
take_name(const char **at)
{
    struct strbuf name = {0};
    const char *c = *at;

    if (*c == '"') {
        const char *end = skip_quoted(c, '"', false);
        for (c++; c < end - 1; c++) {
            strbuf_addc(&name, *c);
            if (*c == '"')
                c++; /* doubled */
        }
        c = end;
    } else {
        while (is_word(*c))
            strbuf_addc(&name, *c++);
    }
    *at = c;
    return name.len ? strbuf_take(&name) : NULL;
}

static bool
unknown_parameter(const struct handler *h, const char *name, struct error *err)
{
    const char *known[PR_LENGTH(names)];
    const char *near;

    for (size_t i = 0; i < PR_LENGTH(names); i++)
        known[i] = names[i].name;
    near = value_nearest(name, known, PR_LENGTH(names));
    error_set_exit(err, ERR_STOP, EXIT_CONFIG, "handler.parameter",
                   "consumer %s: the handler of %s has an unknown parameter :%s", h->consumer,
                   h->config->event_type, name);
    return error_hint(err,
                      "%s%s%sa member of the payload is written :payload.name, a header "
                      ":header.name; in an array slice put a space behind the colon",
                      near ? "did you mean :" : "", near ? near : "", near ? "? " : "");
}

/* ":payload.a.b": the value and where the text goes on. */
static bool
take_parameter(struct handler *h, const char **at, struct error *err)
{
    struct handler_value *value = &h->values[h->count++];
    size_t i = 0;

    (*at)++;
    char *name = take_name(at);
    PR_CHECK(name != NULL);
    while (i < PR_LENGTH(names) && strcmp(names[i].name, name) != 0)
        i++;
    if (i == PR_LENGTH(names)) {
        unknown_parameter(h, name, err);
        free(name);
        return false;
    }
    free(name);
    value->kind = names[i].kind;
    if (value->kind != VALUE_PAYLOAD && value->kind != VALUE_HEADER)
        return true;
    int most = value->kind == VALUE_HEADER ? 1 : MOST_DEPTH;
    while (**at == '.' && value->depth < most && (is_word_start((*at)[1]) || (*at)[1] == '"')) {
        (*at)++;
        value->path[value->depth++] = take_name(at);
        if (!value->path[value->depth - 1])
            return unknown_parameter(h, "payload.\"\" (an empty name)", err);
    }
    return value->kind == VALUE_PAYLOAD || value->depth == 1 ||
           unknown_parameter(h, "header without a name", err);
}

/* A handler ends no transaction and changes no session. */
static bool
check_command(const struct handler *h, const char *sql, struct error *err)
{
    static const char *const allowed[] = {"select", "insert", "update", "delete",
                                          "merge",  "call",   "with",   "values"};
    const char *word = sql, *before;
    size_t len = 0;

    do {
        before = word;
        word += strspn(word, " \t\r\n(");
        if ((word[0] == '-' && word[1] == '-') || (word[0] == '/' && word[1] == '*'))
            word = skip_comment(word);
    } while (before != word);
    while (is_word(word[len]))
        len++;
    for (size_t i = 0; i < PR_LENGTH(allowed); i++)
        if (len == strlen(allowed[i]) && strncasecmp(word, allowed[i], len) == 0)
            return true;
    error_set_exit(err, ERR_STOP, EXIT_CONFIG, "handler.statement",
                   "consumer %s: the handler of %s cannot be a statement that begins with \"%.*s\"",
                   h->consumer, h->config->event_type, (int) (len ? len : strcspn(word, " ")),
                   word);
    return error_hint(err,
                      "use one SELECT, INSERT, UPDATE, DELETE, MERGE, CALL, WITH or VALUES; it "
                      "runs inside the consumer's own transaction");
}

static bool
too_many(const struct handler *h, struct error *err)
{
    error_set_exit(err, ERR_STOP, EXIT_CONFIG, "handler.parameter",
                   "consumer %s: the handler of %s has more than %d parameters", h->consumer,
                   h->config->event_type, PGPARAMS_MAX);
    return error_hint(err, "pass :payload whole and take it apart in a function");
}

static bool
positional(const struct handler *h, const char *at, struct error *err)
{
    error_set_exit(err, ERR_STOP, EXIT_CONFIG, "handler.parameter",
                   "consumer %s: the handler of %s has a parameter by number, %.3s", h->consumer,
                   h->config->event_type, at);
    return error_hint(err, "name it: :event_id, :payload.playerId, …");
}

bool
handler_compile(const struct handler_config *config, const char *consumer, int number,
                struct handler *ret, struct error *err)
{
    const char *at = config->sql, *next;
    struct strbuf sql = {0};
    bool ok = false;

    *ret = (struct handler){.config = config, .consumer = consumer};
    ret->values = xcalloc(PGPARAMS_MAX, sizeof(*ret->values));
    ret->stmt.name = xasprintf("handler %d: %s", number, config->event_type);
    if (!check_command(ret, at, err))
        goto out;
    while (*at) {
        if ((next = skip_opaque(at, config->sql)) != at) {
            strbuf_add(&sql, at, (size_t) (next - at));
            at = next;
        } else if (*at == ':' && is_word_start(at[1])) {
            if (ret->count == PGPARAMS_MAX ? !too_many(ret, err) : !take_parameter(ret, &at, err))
                goto out;
            strbuf_addf(&sql, "$%d", ret->count);
        } else if (*at == '$' && isdigit((unsigned char) at[1]) &&
                   (at == config->sql || !is_word(at[-1]))) {
            positional(ret, at, err);
            goto out;
        } else {
            strbuf_addc(&sql, *at++);
        }
    }
    ret->stmt.sql = strbuf_take(&sql);
    ok = true;

out:
    strbuf_release(&sql);
    if (!ok)
        handler_release(ret);
    return ok;
}

void
handler_release(struct handler *handler)
{
    for (int i = 0; handler->values && i < handler->count; i++)
        for (int d = 0; d < handler->values[i].depth; d++)
            free(handler->values[i].path[d]);
    free(handler->values);
    free((void *) (uintptr_t) handler->stmt.name);
    free((void *) (uintptr_t) handler->stmt.sql);
    *handler = (struct handler){0};
}

/* ------------------------------------------------------------------ preparing */

/* The server's own words, without the statement's name, which is no name of the user's. */
static void
name_handler(const struct handler *handler, struct error *err)
{
    const char *own = strstr(err->text, handler->stmt.name);
    char text[600];

    if (!err->sqlstate[0] || !own)
        return;
    snprintf(text, sizeof(text), "%s", own + strlen(handler->stmt.name));
    snprintf(err->text, sizeof(err->text),
             "consumer %s: the handler of %s cannot be prepared%s (%s)", handler->consumer,
             handler->config->event_type, text, err->sqlstate);
    utf8_mend(err->text);
}

bool
handler_prepare(struct handler *handler, struct pgconn *conn, struct error *err)
{
    PGresult *res;

    if (!pgconn_prepare(conn, &handler->stmt, err)) {
        name_handler(handler, err);
        return false;
    }
    if (!pgconn_describe(conn, &handler->stmt, &res, err))
        return false;
    handler->answers = PQnfields(res) == 1 && PQftype(res, 0) == BOOL_OID;
    PQclear(res);
    return true;
}

/* ------------------------------------------------------------------ binding */

static bool
no_text(const char *what, struct error *err)
{
    error_set_exit(err, ERR_PERMANENT, EXIT_REFUSED, "payload.text",
                   "%s is no UTF-8 text, or holds a NUL byte", what);
    return error_hint(err,
                      "the producer must send text; PostgreSQL stores no such bytes in a text");
}

static bool
bind_bytes(const struct slice *bytes, const char *what, struct pgparams *p, struct error *err)
{
    if (!bytes || !bytes->data) {
        pgparams_text(p, NULL);
        return true;
    }
    if (!utf8_is_text(bytes->data, bytes->len))
        return no_text(what, err);
    pgparams_text(p, arena_strndup(p->arena, bytes->data, bytes->len));
    return true;
}

static bool
missing_member(const struct handler_value *value, struct error *err)
{
    char path[200] = "payload";
    size_t len = strlen(path);

    for (int i = 0; i < value->depth && len < sizeof(path); i++)
        len += (size_t) snprintf(path + len, sizeof(path) - len, ".%s", value->path[i]);
    error_set_exit(err, ERR_PERMANENT, EXIT_REFUSED, "payload.missing", "the payload has no %s",
                   path);
    return error_hint(err, "correct the handler's parameter, or the producer's payload");
}

static bool
bind_member(const struct handler_value *value, const struct incoming *in, struct pgparams *p,
            struct error *err)
{
    const char *text;

    switch (jsonpath_find(in->body.data, in->body.len, (const char *const *) value->path,
                          value->depth, p->arena, &text)) {
    case JSONPATH_FOUND:
    case JSONPATH_NULL:
        if (text && !utf8_is_text(text, strlen(text)))
            return no_text("the payload", err);
        pgparams_text(p, text);
        return true;
    case JSONPATH_MISSING:
        return missing_member(value, err);
    case JSONPATH_BROKEN:
        break;
    }
    error_set_exit(err, ERR_PERMANENT, EXIT_REFUSED, "payload.json",
                   "the payload is no JSON text that PostgreSQL can hold");
    return error_hint(err, "a handler that takes other payloads uses :payload alone");
}

static void
bind_id(const struct uuid *id, struct pgparams *p)
{
    char *text = arena_alloc(p->arena, UUID_TEXT);

    uuid_format(id, text);
    pgparams_text(p, text);
}

static bool
bind_value(const struct handler *handler, const struct handler_value *value,
           const struct incoming *in, struct pgparams *p, struct error *err)
{
    switch (value->kind) {
    case VALUE_CONSUMER:
        pgparams_text(p, handler->consumer);
        return true;
    case VALUE_EVENT_ID:
        bind_id(&in->event_id, p);
        return true;
    case VALUE_AGGREGATE_TYPE:
        pgparams_text(p, in->aggregate_type);
        return true;
    case VALUE_AGGREGATE_ID:
        pgparams_text(p, in->aggregate_id);
        return true;
    case VALUE_VERSION:
        pgparams_text(p, arena_printf(p->arena, "%" PRId64, in->version));
        return true;
    case VALUE_EVENT_TYPE:
        pgparams_text(p, in->event_type);
        return true;
    case VALUE_OCCURRED_AT:
        pgparams_text(p, in->occurred_at);
        return true;
    case VALUE_HEADER:
        return bind_bytes(incoming_header(in, value->path[0]), "a header", p, err);
    case VALUE_PAYLOAD:
        break;
    }
    return value->depth ? bind_member(value, in, p, err)
                        : bind_bytes(&in->body, "the payload", p, err);
}

bool
handler_bind(const struct handler *handler, const struct incoming *in, struct pgparams *ret,
             struct error *err)
{
    for (int i = 0; i < handler->count; i++)
        if (!bind_value(handler, &handler->values[i], in, ret, err))
            return false;
    return true;
}
