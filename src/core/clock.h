/*
 * clock.h — the two clocks of the program.
 *
 * Deadlines are counted on CLOCK_BOOTTIME: it never jumps and it goes on while a
 * machine sleeps, so a lease cannot look fresh after a suspend.  Wall-clock time
 * is for log lines and for the date in a UUIDv7 only.  Whatever decides who owns
 * what is the database's clock, in SQL.
 *
 * Threads: any.
 */
#ifndef PR_CLOCK_H
#define PR_CLOCK_H

#include <stddef.h>
#include <stdint.h>

int64_t clock_mono_us(void); /* since some point before the process started */
int64_t clock_wall_us(void); /* since 1970-01-01 UTC */

/*
 * "2026-12-01T05:34:30.123456Z"; `text` has at least CLOCK_TEXT bytes.  Years before 0 or after
 * 9999 have a sign and at least four digits, as ISO 8601 expands them: "-0043-03-15T…".
 */
enum { CLOCK_TEXT = 40 };
void clock_format(int64_t wall_us, char *text);
/* The same of a time that is `us` after `epoch_s`, seconds since 1970. */
void clock_format_since(int64_t epoch_s, int64_t us, char *text);

#endif
