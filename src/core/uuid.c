#include "core/uuid.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "core/clock.h"
#include "core/error.h"

struct uuid
uuid_v7(void)
{
    struct uuid id;
    int64_t ms = clock_wall_us() / 1000;

    PR_CHECK(getrandom(id.b, sizeof(id.b), 0) == (ssize_t) sizeof(id.b));
    for (int i = 0; i < 6; i++)
        id.b[i] = (unsigned char) (ms >> (40 - 8 * i));
    id.b[6] = (unsigned char) ((id.b[6] & 0x0f) | 0x70);
    id.b[8] = (unsigned char) ((id.b[8] & 0x3f) | 0x80);
    return id;
}

void
uuid_format(const struct uuid *id, char text[UUID_TEXT])
{
    static const char hex[] = "0123456789abcdef";
    char *at = text;

    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *at++ = '-';
        *at++ = hex[id->b[i] >> 4];
        *at++ = hex[id->b[i] & 15];
    }
    *at = '\0';
}

static int
nibble(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

bool
uuid_parse(const char *text, size_t len, struct uuid *ret)
{
    if (len != UUID_TEXT - 1)
        return false;
    for (int i = 0, at = 0; i < 16; i++) {
        if ((i == 4 || i == 6 || i == 8 || i == 10) && text[at++] != '-')
            return false;
        int high = nibble(text[at]), low = nibble(text[at + 1]);
        if (high < 0 || low < 0)
            return false;
        ret->b[i] = (unsigned char) (high << 4 | low);
        at += 2;
    }
    return true;
}

int
uuid_version(const struct uuid *id)
{
    return id->b[6] >> 4;
}

int64_t
uuid_v7_ms(const struct uuid *id)
{
    int64_t ms = 0;

    for (int i = 0; i < 6; i++)
        ms = ms << 8 | id->b[i];
    return ms;
}

bool
uuid_equal(const struct uuid *a, const struct uuid *b)
{
    return memcmp(a->b, b->b, sizeof(a->b)) == 0;
}
