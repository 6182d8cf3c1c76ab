#include "daemon/daemon.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "consume/consumer.h"
#include "core/alloc.h"
#include "core/log.h"
#include "daemon/janitor.h"
#include "daemon/preflight.h"
#include "http/server.h"
#include "relay/worker.h"

enum { STOP_LIMIT_S = 15, BEAT_MS = 1000 };

struct thread {
    pthread_t id;
    bool running;
    int stop_fd;
    struct relay_worker *relay; /* one of these three */
    struct consumer *consumer;
    const struct config *janitor;
};

struct daemon {
    const struct config *config;
    struct thread *threads;
    size_t count;
    int stop_fd; /* eventfd: readable for all threads once we stop */
    int signal_fd;
    struct http_server *http;
};

static void *
thread_main(void *arg)
{
    struct thread *thread = arg;

    if (thread->relay)
        relay_run(thread->relay, thread->stop_fd);
    else if (thread->consumer)
        consumer_run(thread->consumer, thread->stop_fd);
    else
        janitor_run(thread->janitor, thread->stop_fd);
    return NULL;
}

static bool
start_thread(struct daemon *d, struct thread thread, struct error *err)
{
    struct thread *slot = &d->threads[d->count++];
    int failed;

    *slot = thread;
    slot->stop_fd = d->stop_fd;
    failed = pthread_create(&slot->id, NULL, thread_main, slot);
    slot->running = failed == 0;
    if (failed)
        return error_set(err, ERR_STOP, "daemon.thread", "cannot start a thread: %s",
                         strerror(failed));
    return true;
}

static bool
start_threads(struct daemon *d, const struct daemon_choice *choice, struct error *err)
{
    const struct config *c = d->config;

    d->threads = xcalloc(c->relay_count + c->consumer_count + 1, sizeof(*d->threads));
    for (size_t i = 0; choice->relays && i < c->relay_count; i++)
        if (!start_thread(d, (struct thread){.relay = relay_new(&c->relays[i])}, err))
            return false;
    for (size_t i = 0; choice->consumers && i < c->consumer_count; i++)
        if (!start_thread(d, (struct thread){.consumer = consumer_new(&c->consumers[i])}, err))
            return false;
    return start_thread(d, (struct thread){.janitor = c}, err);
}

/* Blocked here and so in every thread started later; the signalfd takes them. */
static bool
take_signals(struct daemon *d, struct error *err)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    sigdelset(&set, SIGPIPE);
    d->signal_fd = signalfd(-1, &set, SFD_CLOEXEC);
    d->stop_fd = eventfd(0, EFD_CLOEXEC);
    if (d->signal_fd < 0 || d->stop_fd < 0)
        return error_set(err, ERR_STOP, "daemon.fd", "cannot watch for signals: %s",
                         strerror(errno));
    return true;
}

static void
wait_for_signal(struct daemon *d)
{
    struct pollfd fd = {.fd = d->signal_fd, .events = POLLIN};
    struct signalfd_siginfo info;

    while (poll(&fd, 1, BEAT_MS) <= 0)
        if (d->http)
            http_server_beat(d->http);
    if (read(d->signal_fd, &info, sizeof(info)) == sizeof(info))
        log_info("daemon.stopping", F_STR("signal", strsignal((int) info.ssi_signo)));
}

/* Every worker bounds its own stopping; one that does not is a fault of ours. */
static void
stop_threads(struct daemon *d)
{
    uint64_t one = 1;
    struct timespec until;

    PR_CHECK(write(d->stop_fd, &one, sizeof(one)) == sizeof(one));
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += STOP_LIMIT_S;
    for (size_t i = 0; i < d->count; i++) {
        if (!d->threads[i].running)
            continue;
        if (pthread_timedjoin_np(d->threads[i].id, NULL, &until) != 0) {
            log_error("daemon.stuck",
                      F_STR("hint", "a worker did not stop in 15 s; what it had under "
                                    "way is done again after the next start"));
            _exit(EXIT_FAULT);
        }
    }
}

static void
free_threads(struct daemon *d)
{
    for (size_t i = 0; i < d->count; i++) {
        relay_free(d->threads[i].relay);
        consumer_free(d->threads[i].consumer);
    }
    free(d->threads);
}

bool
daemon_run(const struct config *config, const struct daemon_choice *choice, struct error *err)
{
    struct daemon d = {.config = config, .stop_fd = -1, .signal_fd = -1};
    bool ok = false;

    log_setup(config->log_level, config->log_format);
    if (!preflight(config, choice->relays, choice->consumers, err) || !take_signals(&d, err))
        goto out;
    if (config->http_listen && !http_server_start(config->http_listen, &d.http, err))
        goto out;
    if (d.http)
        log_info("daemon.listening", F_I64("port", http_server_port(d.http)));
    ok = start_threads(&d, choice, err);
    if (ok)
        wait_for_signal(&d);
    stop_threads(&d);
    log_info("daemon.stopped");

out:
    http_server_stop(d.http);
    free_threads(&d);
    if (d.stop_fd >= 0)
        close(d.stop_fd);
    if (d.signal_fd >= 0)
        close(d.signal_fd);
    return ok;
}
