/* What every unit test includes: cmocka and its prerequisites. */
#ifndef PR_T_H
#define PR_T_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#endif
