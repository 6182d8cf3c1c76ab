#include "tests/unit/t.h"

#include <stdio.h>

#include "core/attr.h"
#include "core/digest.h"
#include "relay/router.h"

/* Kafka's Java client gives the same; the last column is modulo 12. */
static void
murmur2_agrees_with_kafka(void **state)
{
    static const struct {
        const char *key;
        uint32_t hash;
        int part;
    } golden[] = {
        {"a", 2731586172u, 4},
        {"abc", 479470107u, 3},
        {"order-1", 1221710326u, 10},
        {"order-42", 501153024u, 0},
        {"customer:0190a0b0", 4283370037u, 5},
        {"7f3c1f0e-9d3a-4b61-8f7f-2d5a6e1c0b11", 1530978794u, 2},
        {"ünicöde", 4281065748u, 4},
        {"aggregate/日本", 1174512612u, 0},
        {"", 275646681u, 9},
    };

    (void) state;
    for (size_t i = 0; i < PR_LENGTH(golden); i++) {
        assert_int_equal(murmur2(golden[i].key, strlen(golden[i].key)), golden[i].hash);
        assert_int_equal(route_partition(golden[i].key, strlen(golden[i].key), 12), golden[i].part);
    }
}

/* tests/system/test_emit.py holds postrider.event_digest() to the same value. */
static void
event_digest_agrees_with_sql(void **state)
{
    static const unsigned char golden[DIGEST_BYTES] = {0xb1, 0xfa, 0xd4, 0xda, 0xf6, 0x52,
                                                       0x82, 0xca, 0x4f, 0x95, 0x15, 0x38,
                                                       0x76, 0xfe, 0x07, 0xc7};
    unsigned char digest[DIGEST_BYTES];

    (void) state;
    event_digest("a", "b", 1, "t", "xyz", 3, digest);
    assert_memory_equal(digest, golden, DIGEST_BYTES);
}

static void
event_digest_tells_neighbouring_texts_apart(void **state)
{
    unsigned char one[DIGEST_BYTES], two[DIGEST_BYTES];

    (void) state;
    event_digest("ab", "c", 1, "t", "", 0, one);
    event_digest("a", "bc", 1, "t", "", 0, two);
    assert_memory_not_equal(one, two, DIGEST_BYTES);
}

static void
sha256_is_hexadecimal(void **state)
{
    char hex[65];

    (void) state;
    sha256_hex("abc", 3, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(murmur2_agrees_with_kafka),
        cmocka_unit_test(event_digest_agrees_with_sql),
        cmocka_unit_test(event_digest_tells_neighbouring_texts_apart),
        cmocka_unit_test(sha256_is_hexadecimal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
