#include "config/config.h"
#include "core/jsonw.h"

static void
add_list(struct jsonw *w, const char *key, char *const *list, size_t count)
{
    if (count == 0)
        return;
    jsonw_array(w, key);
    for (size_t i = 0; i < count; i++)
        jsonw_str(w, NULL, list[i]);
    jsonw_end(w);
}

const char *
filter_json(const struct filter_config *filter, struct strbuf *out)
{
    struct jsonw w = {.out = out};

    if (filter->aggregate_type_count == 0 && filter->event_type_count == 0)
        return NULL;
    jsonw_object(&w, NULL);
    add_list(&w, "aggregate_types", filter->aggregate_types, filter->aggregate_type_count);
    add_list(&w, "event_types", filter->event_types, filter->event_type_count);
    jsonw_end(&w);
    return strbuf_str(out);
}
