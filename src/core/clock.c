#include "core/clock.h"

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

/* Decimal digits of a fixed count. */
static char *
put(char *at, uint32_t value, int digits)
{
    for (int i = digits - 1; i >= 0; i--, value /= 10)
        at[i] = (char) ('0' + value % 10);
    return at + digits;
}

static char *
put_time(char *at, const struct tm *tm)
{
    at = put(at, (uint32_t) tm->tm_hour, 2);
    *at++ = ':';
    at = put(at, (uint32_t) tm->tm_min, 2);
    *at++ = ':';
    return put(at, (uint32_t) tm->tm_sec, 2);
}

static char *
put_date(char *at, const struct tm *tm)
{
    int year = tm->tm_year + 1900;

    if (year < 0 || year > 9999)
        *at++ = year < 0 ? '-' : '+';
    year = year < 0 ? -year : year;
    at = put(at, (uint32_t) year, year > 99999 ? 6 : year > 9999 ? 5 : 4);
    *at++ = '-';
    at = put(at, (uint32_t) tm->tm_mon + 1, 2);
    *at++ = '-';
    return put(at, (uint32_t) tm->tm_mday, 2);
}

/* Written by hand since every message has a time: the library takes several times as long. */
void
clock_format_since(int64_t epoch_s, int64_t us, char *text)
{
    int64_t fraction = (us % 1000000 + 1000000) % 1000000;
    time_t whole = (time_t) (epoch_s + (us - fraction) / 1000000);
    struct tm tm;
    char *at;

    gmtime_r(&whole, &tm);
    at = put_date(text, &tm);
    *at++ = 'T';
    at = put_time(at, &tm);
    *at++ = '.';
    at = put(at, (uint32_t) fraction, 6);
    *at++ = 'Z';
    *at = '\0';
}

void
clock_format(int64_t wall_us, char *text)
{
    clock_format_since(0, wall_us, text);
}
