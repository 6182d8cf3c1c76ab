/*
 * poll.c DSN — the bare read of an outbox, every byte touched.  No lanes, no routing, no
 * messages.
 */
#include "ranges.h"

static uint64_t checksum;

static void
touch(const PGresult *res)
{
    for (int row = 0; row < PQntuples(res); row++)
        for (int col = 0; col < PQnfields(res); col++) {
            const unsigned char *at = (const unsigned char *) PQgetvalue(res, row, col);
            for (int i = PQgetlength(res, row, col); i > 0; i--)
                checksum = checksum * 31 + *at++;
        }
}

int
main(int argc, char **argv)
{
    if (argc != 2)
        fail("usage", "poll DSN");
    struct ranges ranges;
    double began = now_seconds();
    long count = 0;
    PGresult *res;

    ranges_open(&ranges, argv[1]);
    while ((res = ranges_take(&ranges))) {
        touch(res);
        count += PQntuples(res);
        PQclear(res);
    }
    ranges_close(&ranges);
    report(count, began);
    fprintf(stderr, "checksum %llx\n", (unsigned long long) checksum);
    return 0;
}
