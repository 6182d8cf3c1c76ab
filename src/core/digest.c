#include "core/digest.h"

#include <openssl/evp.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"

/* One context per thread: making one costs more than hashing a small event. */
static pthread_key_t context_key;
static pthread_once_t context_once = PTHREAD_ONCE_INIT;

static void
free_context(void *ctx)
{
    EVP_MD_CTX_free(ctx);
}

static void
make_key(void)
{
    PR_CHECK(pthread_key_create(&context_key, free_context) == 0);
}

static EVP_MD_CTX *
thread_context(void)
{
    EVP_MD_CTX *ctx;

    PR_CHECK(pthread_once(&context_once, make_key) == 0);
    ctx = pthread_getspecific(context_key);
    if (!ctx) {
        ctx = EVP_MD_CTX_new();
        PR_CHECK(ctx != NULL && pthread_setspecific(context_key, ctx) == 0);
    }
    PR_CHECK(EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) == 1);
    return ctx;
}

static void
add_part(EVP_MD_CTX *ctx, const void *data, size_t len)
{
    unsigned char prefix[8];

    for (int i = 0; i < 8; i++)
        prefix[i] = (unsigned char) ((uint64_t) len >> (56 - 8 * i));
    PR_CHECK(EVP_DigestUpdate(ctx, prefix, sizeof(prefix)) == 1);
    PR_CHECK(EVP_DigestUpdate(ctx, data, len) == 1);
}

void
event_digest(const char *aggregate_type, const char *aggregate_id, int64_t version,
             const char *event_type, const void *body, size_t body_len,
             unsigned char ret[DIGEST_BYTES])
{
    EVP_MD_CTX *ctx = thread_context();
    unsigned char whole[EVP_MAX_MD_SIZE];
    char number[24];

    snprintf(number, sizeof(number), "%lld", (long long) version);
    add_part(ctx, aggregate_type, strlen(aggregate_type));
    add_part(ctx, aggregate_id, strlen(aggregate_id));
    add_part(ctx, number, strlen(number));
    add_part(ctx, event_type, strlen(event_type));
    add_part(ctx, body, body_len);
    PR_CHECK(EVP_DigestFinal_ex(ctx, whole, NULL) == 1);
    memcpy(ret, whole, DIGEST_BYTES);
}

void
sha256_hex(const void *data, size_t len, char ret[65])
{
    EVP_MD_CTX *ctx = thread_context();
    unsigned char whole[EVP_MAX_MD_SIZE];

    PR_CHECK(EVP_DigestUpdate(ctx, data, len) == 1);
    PR_CHECK(EVP_DigestFinal_ex(ctx, whole, NULL) == 1);
    for (int i = 0; i < 32; i++)
        snprintf(ret + 2 * (size_t) i, 3, "%02x", whole[i]);
}

uint32_t
murmur2(const void *data, size_t len)
{
    const uint32_t m = 0x5bd1e995;
    const unsigned char *at = data;
    uint32_t h = 0x9747b28c ^ (uint32_t) len;

    for (; len >= 4; at += 4, len -= 4) {
        uint32_t k = (uint32_t) at[0] | (uint32_t) at[1] << 8 | (uint32_t) at[2] << 16 |
                     (uint32_t) at[3] << 24;
        k *= m;
        k ^= k >> 24;
        h = h * m ^ k * m;
    }
    for (size_t i = len; i > 0; i--)
        h ^= (uint32_t) at[i - 1] << (8 * (i - 1));
    if (len > 0)
        h *= m;
    h ^= h >> 13;
    h *= m;
    return h ^ h >> 15;
}
