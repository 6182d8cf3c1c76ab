#include "core/jsonw.h"

#include <string.h>

#include "core/error.h"

void
json_quote(struct strbuf *out, const char *text, size_t len)
{
    strbuf_addc(out, '"');
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char) text[i];
        if (c == '"' || c == '\\')
            strbuf_addf(out, "\\%c", c);
        else if (c == '\n')
            strbuf_adds(out, "\\n");
        else if (c == '\t')
            strbuf_adds(out, "\\t");
        else if (c < 0x20 || c == 0x7f)
            strbuf_addf(out, "\\u%04x", c);
        else
            strbuf_addc(out, (char) c);
    }
    strbuf_addc(out, '"');
}

static void
begin_value(struct jsonw *w, const char *key)
{
    if (w->comma)
        strbuf_addc(w->out, ',');
    w->comma = true;
    if (key) {
        json_quote(w->out, key, strlen(key));
        strbuf_addc(w->out, ':');
    }
}

static void
open_level(struct jsonw *w, const char *key, char open, char close)
{
    PR_CHECK(w->depth < (int) sizeof(w->close));
    begin_value(w, key);
    strbuf_addc(w->out, open);
    w->close[w->depth++] = close;
    w->comma = false;
}

void
jsonw_object(struct jsonw *w, const char *key)
{
    open_level(w, key, '{', '}');
}

void
jsonw_array(struct jsonw *w, const char *key)
{
    open_level(w, key, '[', ']');
}

void
jsonw_end(struct jsonw *w)
{
    PR_CHECK(w->depth > 0);
    strbuf_addc(w->out, w->close[--w->depth]);
    w->comma = true;
}

void
jsonw_strn(struct jsonw *w, const char *key, const char *text, size_t len)
{
    begin_value(w, key);
    json_quote(w->out, text, len);
}

void
jsonw_str(struct jsonw *w, const char *key, const char *text)
{
    if (text)
        jsonw_strn(w, key, text, strlen(text));
    else
        jsonw_null(w, key);
}

void
jsonw_i64(struct jsonw *w, const char *key, int64_t value)
{
    begin_value(w, key);
    strbuf_addf(w->out, "%lld", (long long) value);
}

void
jsonw_f64(struct jsonw *w, const char *key, double value)
{
    begin_value(w, key);
    strbuf_addf(w->out, "%.6g", value);
}

void
jsonw_bool(struct jsonw *w, const char *key, bool value)
{
    jsonw_raw(w, key, value ? "true" : "false");
}

void
jsonw_null(struct jsonw *w, const char *key)
{
    jsonw_raw(w, key, "null");
}

void
jsonw_raw(struct jsonw *w, const char *key, const char *json)
{
    begin_value(w, key);
    strbuf_adds(w->out, json);
}
