/*
 * checks.h — a check of the user's own: two queries in two databases, one key; rows that
 * one side lacks or that have another value are differences.
 *
 * Threads: one at a time per call; connections are its own, and only read.
 * Memory:  flat: both sides are read in key order through cursors.  check_release() frees.
 */
#ifndef PR_CHECKS_H
#define PR_CHECKS_H

#include "config/config.h"
#include "core/arena.h"
#include "core/error.h"

enum { CHECK_LISTED = 1000, CHECK_MOST = 100000 };

struct check_difference {
    const char *key;
    bool on_left, on_right;
    const char *left, *right; /* NULL: null, or not there */
};

struct check_report {
    struct arena arena;
    int64_t keys;    /* on either side */
    int64_t differs; /* seen twice with the same values */
    int64_t moving;  /* differed both times, with other values: events are on their way */
    bool more;       /* than CHECK_MOST differed at first: the others were not looked at again */
    struct check_difference *list;
    size_t count, cap;
};

bool check_run(const struct check_config *check, int stop_fd, struct check_report *ret,
               struct error *err) PR_MUSTCHECK;
void check_release(struct check_report *report);

#endif
