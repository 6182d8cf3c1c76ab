#include "core/clock.h"

#include <stdio.h>
#include <time.h>

static int64_t
now_us(clockid_t id)
{
    struct timespec ts;

    clock_gettime(id, &ts);
    return (int64_t) ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

int64_t
clock_mono_us(void)
{
    return now_us(CLOCK_BOOTTIME);
}

int64_t
clock_wall_us(void)
{
    return now_us(CLOCK_REALTIME);
}

void
clock_format(int64_t wall_us, char *text, size_t size)
{
    time_t seconds = (time_t) (wall_us / 1000000);
    struct tm tm;
    char date[24];

    gmtime_r(&seconds, &tm);
    strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(text, size, "%s.%06dZ", date, (int) (wall_us % 1000000));
}
