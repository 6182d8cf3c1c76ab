#include "core/failpoint.h"

#ifdef PR_FAILPOINTS

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_POINTS = 16 };

static struct point {
    char name[48];
    long at; /* acts on this visit */
    char act[32];
    long visits;
} points[MAX_POINTS];
static int count;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void
parse(void)
{
    const char *spec = getenv("POSTRIDER_FAILPOINT");
    char *copy = spec ? strdup(spec) : NULL, *save = NULL;

    for (char *one = copy ? strtok_r(copy, ",", &save) : NULL; one;
         one = strtok_r(NULL, ",", &save)) {
        struct point *p = &points[count];
        if (count == MAX_POINTS || sscanf(one, "%47[^@]@%ld=%31s", p->name, &p->at, p->act) != 3) {
            fprintf(stderr, "postrider: POSTRIDER_FAILPOINT: cannot read \"%s\"\n", one);
            abort();
        }
        count++;
    }
    free(copy);
}

static void
act(const struct point *p)
{
    fprintf(stderr, "postrider: failpoint %s: %s\n", p->name, p->act);
    if (strcmp(p->act, "kill") == 0) {
        raise(SIGKILL);
    } else if (strcmp(p->act, "stop") == 0) {
        raise(SIGSTOP);
    } else if (strncmp(p->act, "sleep:", 6) == 0) {
        long ms = strtol(p->act + 6, NULL, 10);
        struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
        nanosleep(&ts, NULL);
    } else {
        abort();
    }
}

void
failpoint_visit(const char *name)
{
    struct point hit = {0};

    pthread_once(&once, parse);
    if (count == 0)
        return;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count; i++)
        if (strcmp(points[i].name, name) == 0 && ++points[i].visits == points[i].at)
            hit = points[i];
    pthread_mutex_unlock(&lock);
    if (hit.act[0])
        act(&hit);
}

#else
typedef int failpoint_none; /* a translation unit may not be empty */
#endif
