#include "core/backoff.h"

#include <sys/random.h>

#include "core/error.h"

int64_t
backoff_us(int failures)
{
    int64_t most = 50000LL << (failures < 8 ? failures : 8);
    uint32_t random;

    if (most > 10000000)
        most = 10000000;
    PR_CHECK(getrandom(&random, sizeof(random), 0) == sizeof(random));
    return 10000 + (int64_t) (random % (uint64_t) most);
}
