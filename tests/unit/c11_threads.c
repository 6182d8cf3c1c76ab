/*
 * C11's threads and locks by way of POSIX's, for the thread sanitizer alone.
 *
 * librdkafka uses the former, which gcc 12's sanitizer does not know: a thread begun by
 * thrd_create() has no state of its, and its first intercepted call ends in SIGSEGV.  In
 * glibc both are the same objects, so the names need only lead through the known functions.
 */
#pragma GCC visibility push(default) /* the library must find them */

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <threads.h>

struct start {
    thrd_start_t run;
    void *arg;
};

static void *
begin(void *data)
{
    struct start start = *(struct start *) data;

    free(data);
    return (void *) (intptr_t) start.run(start.arg);
}

static int
answer(int error)
{
    return error == 0           ? thrd_success
           : error == EBUSY     ? thrd_busy
           : error == ETIMEDOUT ? thrd_timedout
                                : thrd_error;
}

int
thrd_create(thrd_t *ret, thrd_start_t run, void *arg)
{
    struct start *start = malloc(sizeof(*start));

    if (!start)
        return thrd_nomem;
    *start = (struct start){.run = run, .arg = arg};
    int error = pthread_create(ret, NULL, begin, start);
    if (error != 0)
        free(start);
    return answer(error);
}

int
thrd_join(thrd_t thread, int *ret)
{
    void *result;
    int error = pthread_join(thread, &result);

    if (error == 0 && ret)
        *ret = (int) (intptr_t) result;
    return answer(error);
}

int
mtx_lock(mtx_t *mutex)
{
    return answer(pthread_mutex_lock((pthread_mutex_t *) mutex));
}

int
mtx_unlock(mtx_t *mutex)
{
    return answer(pthread_mutex_unlock((pthread_mutex_t *) mutex));
}

int
cnd_wait(cnd_t *condition, mtx_t *mutex)
{
    return answer(pthread_cond_wait((pthread_cond_t *) condition, (pthread_mutex_t *) mutex));
}

int
cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex,
              const struct timespec *restrict until)
{
    return answer(
        pthread_cond_timedwait((pthread_cond_t *) condition, (pthread_mutex_t *) mutex, until));
}

int
cnd_signal(cnd_t *condition)
{
    return answer(pthread_cond_signal((pthread_cond_t *) condition));
}

int
cnd_broadcast(cnd_t *condition)
{
    return answer(pthread_cond_broadcast((pthread_cond_t *) condition));
}
