#include "daemon/daemon.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
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
#include "daemon/reconciler.h"
#include "http/server.h"
#include "relay/worker.h"

enum { STOP_LIMIT_S = 15, BEAT_MS = 1000 };

struct thread {
    pthread_t id;
    bool running;
    int stop_fd, ended_fd;
    struct relay_worker *relay; /* one of these four */
    struct consumer *consumer;
    const struct config *janitor;
    const struct config *reconciler;
    struct error why; /* code "": it was told to end */
};

struct daemon {
    const struct daemon_choice *choice;
    const struct config *config;
    struct config *reloaded; /* owned, where config is not the one we were started with */
    struct thread *threads;
    size_t count;
    int stop_fd;  /* eventfd: readable for all threads once they shall stop */
    int ended_fd; /* eventfd: a worker has ended by itself */
    int signal_fd;
    struct http_server *http;
};

static void *
thread_main(void *arg)
{
    struct thread *thread = arg;
    uint64_t one = 1;
    bool ok = true;

    if (thread->relay)
        ok = relay_run(thread->relay, thread->stop_fd, &thread->why);
    else if (thread->consumer)
        ok = consumer_run(thread->consumer, thread->stop_fd, &thread->why);
    else if (thread->janitor)
        janitor_run(thread->janitor, thread->stop_fd);
    else
        reconciler_run(thread->reconciler, thread->stop_fd);
    if (!ok)
        PR_CHECK(write(thread->ended_fd, &one, sizeof(one)) == sizeof(one));
    return NULL;
}

static bool
start_thread(struct daemon *d, struct thread thread, struct error *err)
{
    struct thread *slot = &d->threads[d->count++];
    int failed;

    *slot = thread;
    slot->stop_fd = d->stop_fd;
    slot->ended_fd = d->ended_fd;
    failed = pthread_create(&slot->id, NULL, thread_main, slot);
    slot->running = failed == 0;
    if (failed)
        return error_set(err, ERR_STOP, "daemon.thread", "cannot start a thread: %s",
                         strerror(failed));
    return true;
}

static bool
start_threads(struct daemon *d, struct error *err)
{
    const struct daemon_choice *choice = d->choice;
    const struct config *c = d->config;

    d->threads = xcalloc(c->relay_count + c->consumer_count + 2, sizeof(*d->threads));
    for (size_t i = 0; choice->relays && i < c->relay_count; i++)
        if (!start_thread(d, (struct thread){.relay = relay_new(&c->relays[i])}, err))
            return false;
    for (size_t i = 0; choice->consumers && i < c->consumer_count; i++)
        if (!start_thread(d, (struct thread){.consumer = consumer_new(&c->consumers[i])}, err))
            return false;
    if (c->reconcile_every_us > 0 && !start_thread(d, (struct thread){.reconciler = c}, err))
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
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    sigdelset(&set, SIGPIPE);
    d->signal_fd = signalfd(-1, &set, SFD_CLOEXEC);
    d->stop_fd = eventfd(0, EFD_CLOEXEC);
    d->ended_fd = eventfd(0, EFD_CLOEXEC);
    if (d->signal_fd < 0 || d->stop_fd < 0 || d->ended_fd < 0)
        return error_set(err, ERR_STOP, "daemon.fd", "cannot watch for signals: %s",
                         strerror(errno));
    return true;
}

/* ------------------------------------------------------------------ reloading */

/* The file as it is now, if it is good and its servers can be worked with. */
static struct config *
read_again(const struct daemon *d)
{
    struct config *config = NULL;
    struct error err;
    char *mistakes = NULL;
    size_t size;
    FILE *report = open_memstream(&mistakes, &size);

    PR_CHECK(report != NULL);
    bool ok = config_load(d->config->path, report, &config, &err) &&
              preflight(config, d->choice->relays, d->choice->consumers, &err);
    fclose(report);
    if (!ok) {
        log_failure(LOG_ERROR, "daemon.reload_refused", &err);
        if (size > 0)
            log_error("daemon.reload_mistakes", F_STR("mistakes", mistakes));
        config_free(config);
        config = NULL;
    }
    free(mistakes);
    return config;
}

/* What a running process keeps is said, not silently ignored. */
static void
keep_address(const struct daemon *d, const struct config *config)
{
    const char *now = d->config->http_listen ? d->config->http_listen : "";

    if (strcmp(now, config->http_listen ? config->http_listen : "") != 0)
        log_warn("daemon.not_reloaded", F_STR("option", "http.listen"),
                 F_STR("hint", "restart the process to change it"));
}

enum wish { WISH_STOP, WISH_RELOAD };

static enum wish
take_signal(struct daemon *d)
{
    struct signalfd_siginfo info;

    if (read(d->signal_fd, &info, sizeof(info)) != sizeof(info))
        return WISH_STOP;
    if (info.ssi_signo == SIGHUP)
        return WISH_RELOAD;
    log_info("daemon.stopping", F_STR("signal", strsignal((int) info.ssi_signo)));
    return WISH_STOP;
}

static enum wish
wait_for_wish(struct daemon *d)
{
    struct pollfd fds[] = {{.fd = d->signal_fd, .events = POLLIN},
                           {.fd = d->ended_fd, .events = POLLIN}};

    while (poll(fds, PR_LENGTH(fds), BEAT_MS) <= 0)
        if (d->http)
            http_server_beat(d->http);
    return fds[1].revents ? WISH_STOP : take_signal(d);
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

/* Why a worker ended by itself; NULL: none did. */
static const struct error *
find_reason(const struct daemon *d)
{
    for (size_t i = 0; i < d->count; i++)
        if (d->threads[i].why.code[0])
            return &d->threads[i].why;
    return NULL;
}

static void
free_threads(struct daemon *d)
{
    uint64_t told;

    for (size_t i = 0; i < d->count; i++) {
        relay_free(d->threads[i].relay);
        consumer_free(d->threads[i].consumer);
    }
    free(d->threads);
    d->threads = NULL;
    d->count = 0;
    if (d->stop_fd >= 0) { /* for those that are started next */
        struct pollfd fd = {.fd = d->stop_fd, .events = POLLIN};
        if (poll(&fd, 1, 0) > 0)
            PR_CHECK(read(d->stop_fd, &told, sizeof(told)) == sizeof(told));
    }
}

static void
use(struct daemon *d, struct config *config)
{
    free_threads(d);
    config_free(d->reloaded);
    d->config = d->reloaded = config;
    log_setup(config->log_level, config->log_format);
    log_info("daemon.reloaded");
}

/* Workers run until told to stop, or until one ends by itself.  A reload is a new round. */
static bool
run_rounds(struct daemon *d, struct error *err)
{
    for (;;) {
        struct config *next = NULL;
        bool ok = start_threads(d, err);
        while (ok && !next && wait_for_wish(d) == WISH_RELOAD)
            next = read_again(d);
        if (next)
            keep_address(d, next);
        stop_threads(d);
        const struct error *reason = find_reason(d);
        if (reason) {
            *err = *reason;
            ok = false;
        }
        if (!ok || !next) {
            config_free(next);
            return ok;
        }
        use(d, next);
    }
}

bool
daemon_run(const struct config *config, const struct daemon_choice *choice, struct error *err)
{
    struct daemon d = {
        .config = config, .choice = choice, .stop_fd = -1, .ended_fd = -1, .signal_fd = -1};
    bool ok = false;

    log_setup(config->log_level, config->log_format);
    if (!preflight(config, choice->relays, choice->consumers, err) || !take_signals(&d, err))
        goto out;
    if (config->http_listen && !http_server_start(config->http_listen, &d.http, err))
        goto out;
    if (d.http)
        log_info("daemon.listening", F_I64("port", http_server_port(d.http)));
    ok = run_rounds(&d, err);
    log_info("daemon.stopped");

out:
    http_server_stop(d.http);
    free_threads(&d);
    config_free(d.reloaded);
    for (int i = 0; i < 3; i++) {
        int fd = (int[]){d.stop_fd, d.ended_fd, d.signal_fd}[i];
        if (fd >= 0)
            close(fd);
    }
    return ok;
}
