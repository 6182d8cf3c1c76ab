/*
 * digest.h — the hashes that others must be able to compute too.
 *
 * The event digest tells a repeated message from another one that carries the same
 * id; it is computed the same way in SQL (postrider.event_digest) and both are
 * held together by golden vectors.
 *
 * Threads: any.
 */
#ifndef PR_DIGEST_H
#define PR_DIGEST_H

#include <stddef.h>
#include <stdint.h>

enum { DIGEST_BYTES = 16 };

/*
 * First 16 bytes of SHA-256 over the four texts and the body, each with its length
 * as 8 bytes big-endian in front.  The version is its decimal text.
 */
void event_digest(const char *aggregate_type, const char *aggregate_id, int64_t version,
                  const char *event_type, const void *body, size_t body_len,
                  unsigned char ret[DIGEST_BYTES]);

/* SHA-256 as 64 lower-case hexadecimal digits and a NUL. */
void sha256_hex(const void *data, size_t len, char ret[65]);

/* The hash of Kafka's Java client (seed 0x9747b28c): partition = (h & 0x7fffffff) % n. */
uint32_t murmur2(const void *data, size_t len);

#endif
