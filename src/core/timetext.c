#include "core/timetext.h"

#include <string.h>
#include <time.h>

/* What PostgreSQL can store, in microseconds since 2000. */
static const int64_t FIRST = -211813488000000000; /* 4714-11-24 BC */
static const int64_t END = 9223371331200000000;   /* 294277-01-01, not a time any more */

/* `count` digits as a number; -1 if they are not there. */
static int
digits(const char **at, int count)
{
    int value = 0;

    for (int i = 0; i < count; i++, (*at)++) {
        if (**at < '0' || **at > '9')
            return -1;
        value = value * 10 + (**at - '0');
    }
    return value;
}

static bool
skip(const char **at, char c)
{
    if (**at != c)
        return false;
    (*at)++;
    return true;
}

/* "Z" or "+02:00", in seconds east of UTC. */
static bool
zone_from(const char **at, int *ret)
{
    int sign = **at == '-' ? -1 : 1;

    *ret = 0;
    if (skip(at, 'Z'))
        return true;
    if (!skip(at, '+') && !skip(at, '-'))
        return false;
    int hours = digits(at, 2);
    if (hours < 0 || hours > 15 || !skip(at, ':'))
        return false;
    int minutes = digits(at, 2);
    *ret = sign * (hours * 3600 + minutes * 60);
    return minutes >= 0 && minutes < 60;
}

static int
fraction_us(const char **at)
{
    int us = 0, scale = 100000;

    for (; **at >= '0' && **at <= '9'; (*at)++, scale /= 10)
        us += (**at - '0') * scale; /* digits beyond the sixth count as nothing */
    return us;
}

/* Four digits, or a sign and four to six, as ISO 8601 expands them. */
static bool
year_from(const char **at, int *ret)
{
    bool before = **at == '-', expanded = before || **at == '+';

    *at += expanded;
    *ret = digits(at, 4);
    if (*ret < 0)
        return false;
    for (int more = 0; expanded && more < 2 && **at >= '0' && **at <= '9'; more++)
        *ret = *ret * 10 + digits(at, 1);
    if (before)
        *ret = -*ret;
    return true;
}

static bool
date_from(const char **at, struct tm *tm)
{
    int year;

    if (!year_from(at, &year))
        return false;
    tm->tm_year = year - 1900;
    return skip(at, '-') && (tm->tm_mon = digits(at, 2) - 1) >= 0 && skip(at, '-') &&
           (tm->tm_mday = digits(at, 2)) > 0;
}

static bool
clock_from(const char **at, struct tm *tm)
{
    return (tm->tm_hour = digits(at, 2)) >= 0 && tm->tm_hour <= 23 && skip(at, ':') &&
           (tm->tm_min = digits(at, 2)) >= 0 && tm->tm_min <= 59 && skip(at, ':') &&
           (tm->tm_sec = digits(at, 2)) >= 0 && tm->tm_sec <= 60;
}

bool
time_parse(const char *text, int64_t *ret_2000_us)
{
    const char *at = text;
    struct tm tm = {0}, back;
    int zone;

    if (!text)
        return false;
    if (strcmp(text, "infinity") == 0 || strcmp(text, "-infinity") == 0) {
        *ret_2000_us = *text == '-' ? INT64_MIN : INT64_MAX;
        return true;
    }
    if (!date_from(&at, &tm) || !(skip(&at, 'T') || skip(&at, ' ')) || !clock_from(&at, &tm))
        return false;
    int us = skip(&at, '.') ? fraction_us(&at) : 0;
    if (!zone_from(&at, &zone) || *at)
        return false;
    back = tm;
    int64_t seconds = (int64_t) timegm(&back) - zone - EPOCH_2000_US / 1000000;
    if (back.tm_mon != tm.tm_mon && tm.tm_sec < 60)
        return false; /* 31 February */
    if (seconds < FIRST / 1000000 || seconds >= END / 1000000)
        return false;
    *ret_2000_us = seconds * 1000000 + us;
    return true;
}
