#include "core/utf8.h"

#include <string.h>

/* The length of the character at `at`; 0: there is none; -1: it is cut off by `end`. */
static int
character(const unsigned char *at, const unsigned char *end)
{
    unsigned char c = *at;
    int len = c == 0                   ? 0
              : c < 0x80               ? 1
              : c >= 0xc2 && c <= 0xdf ? 2
              : (c & 0xf0) == 0xe0     ? 3
              : c >= 0xf0 && c <= 0xf4 ? 4
                                       : 0;

    for (int i = 1; i < len; i++) {
        if (at + i == end)
            return -1;
        /* The second byte alone tells overlong forms, surrogates and what lies beyond U+10FFFF. */
        unsigned char least = i > 1 ? 0x80 : c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
        unsigned char most = i > 1 ? 0xbf : c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
        if (at[i] < least || at[i] > most)
            return 0;
    }
    return len;
}

bool
utf8_is_text(const void *data, size_t len)
{
    const unsigned char *at = data, *end = at + len;

    for (int n; at < end; at += n) {
        n = character(at, end);
        if (n <= 0)
            return false;
    }
    return true;
}

void
utf8_mend(char *text)
{
    unsigned char *at = (unsigned char *) text, *end = at + strlen(text);

    for (int n; at<end; at += n> 0 ? n : 1) {
        n = character(at, end);
        if (n < 0) {
            *at = '\0';
            return;
        }
        if (n == 0)
            *at = '?';
    }
}
