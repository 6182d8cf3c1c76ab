#include "metrics/health.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/jsonw.h"
#include "core/utf8.h"

enum { ROUND_LIMIT_US = 15000000, DUE_LIMIT_US = 60000000 };

struct health {
    const char *kind;
    char *name;
    struct health *next;
    _Atomic int64_t progress_us;
    _Atomic int64_t due_us;
    struct health_word word; /* under the lock */
};

static struct health *list;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

const char *
health_state_name(enum health_state state)
{
    static const char *const names[] = {"starting", "running", "paused", "halted", "stopped"};
    return names[state];
}

struct health *
health_new(const char *kind, const char *name)
{
    struct health *health = xcalloc(1, sizeof(*health)), **at = &list;

    health->kind = kind;
    health->name = xstrdup(name);
    atomic_store(&health->progress_us, clock_mono_us());
    pthread_mutex_lock(&lock);
    while (*at)
        at = &(*at)->next;
    *at = health;
    pthread_mutex_unlock(&lock);
    return health;
}

void
health_free(struct health *health)
{
    if (!health)
        return;
    pthread_mutex_lock(&lock);
    for (struct health **at = &list; *at; at = &(*at)->next) {
        if (*at == health) {
            *at = health->next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    free(health->name);
    free(health);
}

void
health_progress(struct health *health)
{
    atomic_store(&health->progress_us, clock_mono_us());
}

void
health_due(struct health *health, int64_t since_us)
{
    atomic_store(&health->due_us, since_us);
}

bool
health_set(struct health *health, enum health_state state, const char *reason, const char *hint)
{
    struct health_word *word = &health->word;

    pthread_mutex_lock(&lock);
    bool changed = word->state != state;
    if (changed || strcmp(word->reason, reason) != 0)
        word->changes++;
    word->state = state;
    snprintf(word->reason, sizeof(word->reason), "%s", reason);
    snprintf(word->hint, sizeof(word->hint), "%s", hint);
    utf8_mend(word->reason);
    utf8_mend(word->hint);
    pthread_mutex_unlock(&lock);
    return changed;
}

void
health_word(const struct health *health, struct health_word *ret)
{
    pthread_mutex_lock(&lock);
    *ret = health->word;
    pthread_mutex_unlock(&lock);
}

void
health_ages(const struct health *health, int64_t *ret_quiet_us, int64_t *ret_due_us)
{
    int64_t now = clock_mono_us(), due = atomic_load(&health->due_us);

    *ret_quiet_us = now - atomic_load(&health->progress_us);
    *ret_due_us = due && now > due ? now - due : 0;
}

static const char *
judge(const struct health *health, int64_t quiet_us, int64_t due_us)
{
    if (health->word.state != HEALTH_RUNNING)
        return health->word.reason[0] ? health->word.reason : "has not finished its first round";
    if (quiet_us > ROUND_LIMIT_US)
        return "no good round for more than 15 s: see the log for what it waits for";
    if (due_us > DUE_LIMIT_US)
        return "its oldest due event has waited for more than 60 s: see `postrider status`";
    return NULL;
}

bool
health_report(struct strbuf *out)
{
    struct jsonw w = {.out = out};
    struct strbuf workers = {0};
    struct jsonw inner = {.out = &workers};
    int64_t quiet_us, due_us;
    bool ready = true;

    jsonw_array(&inner, NULL);
    pthread_mutex_lock(&lock);
    for (const struct health *h = list; h; h = h->next) {
        health_ages(h, &quiet_us, &due_us);
        const char *reason = judge(h, quiet_us, due_us);
        jsonw_object(&inner, NULL);
        jsonw_str(&inner, h->kind, h->name);
        jsonw_str(&inner, "state", health_state_name(h->word.state));
        jsonw_bool(&inner, "ready", reason == NULL);
        jsonw_f64(&inner, "seconds_since_progress", (double) quiet_us / 1e6);
        jsonw_f64(&inner, "oldest_due_seconds", (double) due_us / 1e6);
        if (reason)
            jsonw_str(&inner, "reason", reason);
        if (h->word.hint[0])
            jsonw_str(&inner, "hint", h->word.hint);
        jsonw_end(&inner);
        ready &= reason == NULL;
    }
    pthread_mutex_unlock(&lock);
    jsonw_end(&inner);
    jsonw_object(&w, NULL);
    jsonw_bool(&w, "ready", ready);
    jsonw_raw(&w, "workers", strbuf_str(&workers));
    jsonw_end(&w);
    strbuf_release(&workers);
    return ready;
}
