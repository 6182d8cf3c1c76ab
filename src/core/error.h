/*
 * error.h — an error that tells the caller what to do next.
 *
 * A function that can fail returns bool and takes a `struct error *` last.  The
 * error lives on the caller's stack: no allocation, so it also works when memory
 * is short.  Code that returns an error does not log it; worker, admin and cli do.
 *
 * Threads: an error belongs to the thread whose stack it lies on.
 * Memory:  plain data, nothing to free.
 */
#ifndef PR_ERROR_H
#define PR_ERROR_H

#include <stdarg.h>
#include <stdbool.h>

#include "core/attr.h"

/* What the caller should do. */
enum error_class {
    ERR_NONE = 0,
    ERR_DESTINATION, /* the other side cannot take anything now: pause it, charge no event */
    ERR_TRANSIENT,   /* not done, the same again later may work: retry with back-off */
    ERR_PERMANENT,   /* this event can never be done: dead letter */
    ERR_UNKNOWN,     /* may have been done: find out, or do it again with the same id */
    ERR_REJECTED,    /* the business said no: an outcome, not a failure */
    ERR_STOP,        /* a person must act first: stop */
};

/* Whom the error is about, where PostgreSQL speaks (docs/internals/errors.md). */
enum error_scope {
    SCOPE_EVENT = 0,
    SCOPE_HANDLER,
    SCOPE_SERVER,
};

/* Process exit codes; the manual page postrider(1) lists them.  Stable. */
enum exit_code {
    EXIT_OK = 0,
    EXIT_DIFFERS = 1,  /* the answer is no, or things differ */
    EXIT_USAGE = 2,    /* the command line */
    EXIT_REFUSED = 65, /* refused input */
    EXIT_AWAY = 69,    /* a server is away */
    EXIT_FAULT = 70,   /* our own fault */
    EXIT_FULL = 73,    /* disk full, or a file cannot be made */
    EXIT_NEWER = 75,   /* schema newer than this program, try later */
    EXIT_RIGHTS = 77,  /* rights or password */
    EXIT_CONFIG = 78,  /* configuration */
};

struct error {
    enum error_class cls;
    enum error_scope scope;
    bool proven;         /* by its nature about this event's own bytes or name, and nothing else */
    enum exit_code exit; /* how the process ends if this ends it */
    char code[32];       /* stable and dotted: "pg.auth"; metric label, doc anchor */
    char sqlstate[6];    /* when PostgreSQL spoke, else "" */
    char text[768];      /* what happened, one line */
    char hint[384];      /* what to do, "" if the text says it all */
};

/* Sets class, code and text, with the exit code EXIT_FAULT; returns false. */
bool error_set(struct error *err, enum error_class cls, const char *code, const char *fmt, ...)
    PR_PRINTF(4, 5);

/* The same with the exit code; returns false. */
bool error_set_exit(struct error *err, enum error_class cls, enum exit_code exit, const char *code,
                    const char *fmt, ...) PR_PRINTF(5, 6);

/* Adds what to do; returns false. */
bool error_hint(struct error *err, const char *fmt, ...) PR_PRINTF(2, 3);

/* Puts "while …: " in front of the text; returns false. */
bool error_wrap(struct error *err, const char *fmt, ...) PR_PRINTF(2, 3);

/* The word used in logs, tables and metrics: "transient", "permanent", … */
const char *error_class_name(enum error_class cls);
const char *error_scope_name(enum error_scope scope);

/*
 * A broken invariant: prints file, line and the condition with a backtrace and
 * aborts, in every build.  For our own mistakes, never for bad input.
 */
#define PR_CHECK(cond) ((cond) ? (void) 0 : check_failed(__FILE__, __LINE__, #cond))
void check_failed(const char *file, int line, const char *cond) PR_NORETURN;

#endif
