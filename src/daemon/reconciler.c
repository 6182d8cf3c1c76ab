#include "daemon/reconciler.h"

#include <stdlib.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/log.h"
#include "metrics/metrics.h"
#include "repair/checks.h"
#include "repair/reconcile.h"

enum { FIRST_MS = 1000, LABEL_LOST = 0, LABEL_FOREIGN = 1 };

struct reconciler {
    const struct config *config;
    int stop_fd;
    struct metric_set **consumers, **checks;
};

/* A stop in the middle is nobody's failure. */
static void
say_failed(const struct reconciler *r, struct error *err)
{
    struct error stopped;

    if (reconcile_pause(r->stop_fd, 0, &stopped))
        log_failure(LOG_WARN, "reconcile.failed", err);
}

static void
compare(const struct reconciler *r, size_t n)
{
    const struct consumer_config *c = &r->config->consumers[n];
    struct reconcile_wish wish = {.since_ms =
                                      (clock_wall_us() - r->config->reconcile_window_us) / 1000,
                                  .stop_fd = r->stop_fd};
    struct reconcile_report report = {0};
    struct error err;

    if (!reconcile_run(r->config, c, &wish, &report, &err) || !reconcile_record(c, &report, &err)) {
        say_failed(r, &err);
    } else {
        metric_set_value(r->consumers[n], METRIC_RECONCILE_DIFFERENCES, LABEL_LOST, report.lost);
        metric_set_value(r->consumers[n], METRIC_RECONCILE_DIFFERENCES, LABEL_FOREIGN,
                         report.foreign_count);
        metric_set_value(r->consumers[n], METRIC_RECONCILE_AGE, 0, clock_mono_us());
        if (report.lost + report.foreign_count > 0)
            log_error("reconcile.differs", F_STR("consumer", c->name), F_I64("lost", report.lost),
                      F_I64("foreign", report.foreign_count),
                      F_STR("first", report.list[0].event_id),
                      F_STR("hint", "postrider reconcile names them"));
        else
            log_info("reconcile.agrees", F_STR("consumer", c->name),
                     F_I64("published", report.published));
    }
    reconcile_release(&report);
}

static void
check(const struct reconciler *r, size_t n)
{
    const struct check_config *c = &r->config->checks[n];
    struct check_report report = {0};
    struct error err;

    if (!check_run(c, r->stop_fd, &report, &err)) {
        say_failed(r, &err);
    } else {
        metric_set_value(r->checks[n], METRIC_CHECK_DIFFERENCES, 0, report.differs);
        metric_set_value(r->checks[n], METRIC_CHECK_AGE, 0, clock_mono_us());
        if (report.differs > 0)
            log_error("reconcile.check_differs", F_STR("check", c->name),
                      F_I64("differ", report.differs), F_STR("first", report.list[0].key),
                      F_STR("hint", "postrider reconcile --check NAME names them"));
        else
            log_info("reconcile.check_agrees", F_STR("check", c->name), F_I64("keys", report.keys));
    }
    check_release(&report);
}

/* An age counts from the start until something was compared. */
static struct metric_set *
new_set(enum metric_side side, const char *name, enum metric age)
{
    struct metric_set *set = metric_set_new(side, name);

    metric_set_value(set, age, 0, clock_mono_us());
    return set;
}

static void
make_metrics(struct reconciler *r)
{
    const struct config *c = r->config;

    r->consumers = xcalloc(c->consumer_count + 1, sizeof(struct metric_set *));
    r->checks = xcalloc(c->check_count + 1, sizeof(struct metric_set *));
    for (size_t i = 0; i < c->consumer_count; i++)
        r->consumers[i] = new_set(METRIC_RECONCILE, c->consumers[i].name, METRIC_RECONCILE_AGE);
    for (size_t i = 0; i < c->check_count; i++)
        r->checks[i] = new_set(METRIC_CHECK, c->checks[i].name, METRIC_CHECK_AGE);
}

static void
free_metrics(struct reconciler *r)
{
    for (size_t i = 0; i < r->config->consumer_count; i++)
        metric_set_free(r->consumers[i]);
    for (size_t i = 0; i < r->config->check_count; i++)
        metric_set_free(r->checks[i]);
    free(r->consumers);
    free(r->checks);
}

void
reconciler_run(const struct config *config, int stop_fd)
{
    struct reconciler r = {.config = config, .stop_fd = stop_fd};
    int64_t every_ms = config->reconcile_every_us / 1000;
    struct error err;

    log_context("part", "reconcile");
    make_metrics(&r);
    for (int wait_ms = FIRST_MS; reconcile_pause(stop_fd, wait_ms, &err);
         wait_ms = (int) (every_ms < INT32_MAX ? every_ms : INT32_MAX)) {
        for (size_t i = 0; i < config->consumer_count; i++)
            compare(&r, i);
        for (size_t i = 0; i < config->check_count; i++)
            check(&r, i);
    }
    free_metrics(&r);
}
