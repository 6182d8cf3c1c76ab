#include "core/bytes.h"

#include <string.h>

const void *
bytes_take(struct bytes *in, size_t len)
{
    if (in->bad || in->left < len) {
        in->bad = true;
        return NULL;
    }
    const char *at = in->at;
    in->at = at + len;
    in->left -= len;
    return at;
}

uint8_t
bytes_u8(struct bytes *in)
{
    const unsigned char *at = bytes_take(in, 1);

    return at ? *at : 0;
}

uint16_t
bytes_u16(struct bytes *in)
{
    const unsigned char *at = bytes_take(in, 2);

    return at ? (uint16_t) (at[0] << 8 | at[1]) : 0;
}

uint32_t
bytes_u32(struct bytes *in)
{
    uint32_t high = bytes_u16(in);

    return high << 16 | bytes_u16(in);
}

uint64_t
bytes_u64(struct bytes *in)
{
    uint64_t high = bytes_u32(in);

    return high << 32 | bytes_u32(in);
}

const char *
bytes_cstr(struct bytes *in)
{
    const char *end = in->bad || !in->left ? NULL : memchr(in->at, '\0', in->left);

    if (!end) {
        in->bad = true;
        return "";
    }
    return bytes_take(in, (size_t) (end - (const char *) in->at) + 1);
}
