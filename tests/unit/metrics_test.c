#include "tests/unit/t.h"

#include <stdio.h>
#include <stdlib.h>

#include "metrics/health.h"
#include "metrics/metrics.h"

static void
counters_gauges_and_histograms_are_rendered(void **state)
{
    struct metric_set *relay = metric_set_new(METRIC_RELAY, "a\"b");
    struct metric_set *consumer = metric_set_new(METRIC_CONSUMER, "rewards");
    struct strbuf out = {0};

    (void) state;
    metric_add(relay, METRIC_PUBLISHED, 0, 5);
    metric_set_value(relay, METRIC_RELAY_PENDING, 0, 1500000);
    metric_observe(relay, METRIC_PUBLISH_LATENCY, 3000, 2);
    metric_observe(relay, METRIC_PUBLISH_LATENCY, 90000000, 1);
    metric_add(consumer, METRIC_CONSUMED, OUTCOME_CONFLICT, 1);
    metrics_render(&out);
    const char *text = strbuf_str(&out);
    assert_non_null(strstr(text, "# TYPE postrider_relay_published_total counter\n"));
    assert_non_null(strstr(text, "postrider_relay_published_total{relay=\"a\\\"b\"} 5\n"));
    assert_non_null(
        strstr(text, "postrider_relay_oldest_pending_seconds{relay=\"a\\\"b\"} 1.500000\n"));
    assert_non_null(strstr(text, "latency_seconds_bucket{relay=\"a\\\"b\",le=\"0.0025\"} 0\n"));
    assert_non_null(strstr(text, "latency_seconds_bucket{relay=\"a\\\"b\",le=\"0.005\"} 2\n"));
    assert_non_null(strstr(text, "latency_seconds_bucket{relay=\"a\\\"b\",le=\"+Inf\"} 3\n"));
    assert_non_null(strstr(text, "latency_seconds_count{relay=\"a\\\"b\"} 3\n"));
    assert_non_null(strstr(
        text, "postrider_consumer_messages_total{consumer=\"rewards\",outcome=\"conflict\"} 1\n"));
    assert_null(strstr(text, "postrider_relay_lanes{relay=\"rewards\"}"));
    metric_set_free(relay);
    metric_set_free(consumer);
    strbuf_release(&out);
}

static void
every_metric_is_documented(void **state)
{
    char *page = calloc(1, 1 << 20);
    FILE *in = fopen("docs/guide/metrics.md", "r");

    (void) state;
    assert_non_null(in);
    assert_true(fread(page, 1, (1 << 20) - 1, in) > 0);
    fclose(in);
    for (int i = 0; metric_name(i); i++)
        if (!strstr(page, metric_name(i)))
            fail_msg("docs/guide/metrics.md does not explain %s", metric_name(i));
    free(page);
}

static void
readiness_comes_from_progress(void **state)
{
    struct health *health = health_new("relay", "orders");
    struct strbuf out = {0};

    (void) state;
    assert_false(health_report(&out)); /* it has not run yet */
    strbuf_reset(&out);
    assert_true(health_set(health, HEALTH_RUNNING, "", ""));
    health_progress(health);
    assert_true(health_report(&out));
    strbuf_reset(&out);
    health_due(health, 1); /* due since the machine started */
    assert_false(health_report(&out));
    assert_non_null(strstr(strbuf_str(&out), "oldest due event"));
    strbuf_reset(&out);
    health_due(health, 0);
    assert_true(health_set(health, HEALTH_PAUSED, "the destination is away", "start it"));
    assert_false(health_set(health, HEALTH_PAUSED, "the destination is away", "start it"));
    assert_false(health_report(&out));
    assert_non_null(strstr(strbuf_str(&out), "\"reason\":\"the destination is away\","
                                             "\"hint\":\"start it\""));
    strbuf_release(&out);
    health_free(health);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counters_gauges_and_histograms_are_rendered),
        cmocka_unit_test(every_metric_is_documented),
        cmocka_unit_test(readiness_comes_from_progress),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
