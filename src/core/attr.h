/*
 * attr.h — compiler attributes under our own names, so that a header says what
 * it means and builds with gcc and clang alike.
 */
#ifndef PR_ATTR_H
#define PR_ATTR_H

#define PR_MUSTCHECK __attribute__((warn_unused_result))
#define PR_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define PR_NORETURN __attribute__((noreturn))
#define PR_UNUSED __attribute__((unused))

/* Elements of an array (never of a pointer). */
#define PR_LENGTH(array) (sizeof(array) / sizeof((array)[0]))

#endif
