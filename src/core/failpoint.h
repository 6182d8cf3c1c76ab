/*
 * failpoint.h — named places where a test makes the program die, stop, wait or fail.
 *
 * Compiled in only with -Dfailpoints=true; a release binary holds neither names nor
 * code.  Driven by POSTRIDER_FAILPOINT=name@n=kill|stop|sleep:ms, several
 * separated by commas; n counts the visits from 1.  docs/internals/failpoints.md
 * lists them.
 *
 * Threads: any.
 */
#ifndef PR_FAILPOINT_H
#define PR_FAILPOINT_H

#ifdef PR_FAILPOINTS
#define FAILPOINT(name) failpoint_visit(name)
void failpoint_visit(const char *name);
#else
#define FAILPOINT(name) ((void) 0)
#endif

#endif
