#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/devserver.h"
#include "config/values.h"
#include "core/alloc.h"
#include "core/jsonw.h"
#include "pg/pgconn.h"
#include "pg/schema.h"
#include "pg/schema_files.h"

struct dev {
    const struct command_env *env;
    struct devserver server;
    char *config_path;
    pid_t run; /* the child that runs relay and consumer; 0: none */
    int signal_fd;
};

static const char *const databases[] = {"shop", "bus", "rewards"};

/* ------------------------------------------------------------------ databases */

static bool
create_database(struct dev *dev, const char *name, struct error *err)
{
    struct pgconn_options options = {.purpose = "dev", .system_search_path = true};
    char *dsn = devserver_dsn(&dev->server, "postgres"),
         *sql = xasprintf("CREATE DATABASE %s", name);
    struct pgconn *conn = NULL;
    bool ok = pgconn_open(dsn, &options, &conn, err) &&
              (pgconn_exec(conn, sql, err) || strcmp(err->sqlstate, "42P04") == 0);

    pgconn_close(conn);
    free(dsn);
    free(sql);
    return ok;
}

static bool
prepare_database(struct dev *dev, const char *name, const char *tables, struct error *err)
{
    struct pgconn_options options = {.purpose = "dev"};
    char *dsn = devserver_dsn(&dev->server, name);
    struct pgconn *conn = NULL;
    bool changed, ok = create_database(dev, name, err) && pgconn_open(dsn, &options, &conn, err) &&
                       schema_install(conn, &changed, err) &&
                       (!tables || pgconn_exec(conn, tables, err));

    pgconn_close(conn);
    free(dsn);
    return ok;
}

/* What `postrider init` would do with the sample configuration. */
static bool
register_all(struct dev *dev, struct error *err)
{
    static const char *const statements[][2] = {
        {"shop", "SELECT postrider.register_relay('registrations-to-events', 'postrider.outbox', "
                 "'earliest', NULL)"},
        {"bus", "SELECT postrider.log_create_topic('registration', 16)"},
        {"rewards", "SELECT postrider.register_consumer('rewards')"},
    };
    struct pgconn_options options = {.purpose = "dev", .system_search_path = true};

    for (size_t i = 0; i < PR_LENGTH(statements); i++) {
        char *dsn = devserver_dsn(&dev->server, statements[i][0]);
        struct pgconn *conn = NULL;
        bool ok =
            pgconn_open(dsn, &options, &conn, err) && pgconn_exec(conn, statements[i][1], err);
        pgconn_close(conn);
        free(dsn);
        if (!ok)
            return false;
    }
    return true;
}

/* ------------------------------------------------------------------ configuration */

static bool
write_config(struct dev *dev, struct error *err)
{
    dev->config_path = xasprintf("%s/postrider.yaml", dev->server.folder);
    int fd = open(dev->config_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 && errno == EEXIST)
        return true; /* kept from last time, with whatever was changed in it */
    FILE *out = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!out)
        return error_set_exit(err, ERR_STOP, EXIT_FULL, "dev.folder", "cannot write %s: %s",
                              dev->config_path, strerror(errno));
    char *shop = devserver_dsn(&dev->server, "shop"), *bus = devserver_dsn(&dev->server, "bus");
    char *rewards = devserver_dsn(&dev->server, "rewards");
    fprintf(
        out,
        "# Made by `postrider dev`.  `postrider config sample` explains every option.\n"
        "outboxes:\n  registrations: {database: \"%s\"}\n"
        "destinations:\n  events: {transport: postgres, database: \"%s\", topic: "
        "\"{aggregate_type}\"}\n"
        "relays:\n  registrations-to-events: {outbox: registrations, destination: events, lease: "
        "2s}\n"
        "consumers:\n  rewards:\n    database: \"%s\"\n"
        "    from: {destination: events, topic: registration}\n    order: stream\n    lease: 2s\n"
        "    handlers:\n      RegistrationConfirmed: {sql: \"SELECT apply_reward_event(:consumer, "
        ":event_id, :payload.playerId, :payload.points)\"}\n    ignore: [RegistrationReopened]\n"
        "http: {listen: \"127.0.0.1:0\"}\n",
        shop, bus, rewards);
    free(shop);
    free(bus);
    free(rewards);
    return fclose(out) == 0 ||
           error_set_exit(err, ERR_STOP, EXIT_FULL, "dev.folder", "cannot write %s: %s",
                          dev->config_path, strerror(errno));
}

/* ------------------------------------------------------------------ running */

static bool
start_run(struct dev *dev, struct error *err)
{
    dev->run = fork();
    if (dev->run < 0) {
        dev->run = 0;
        return error_set(err, ERR_STOP, "dev.start", "cannot start: %s", strerror(errno));
    }
    if (dev->run > 0)
        return true;
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0);
    execl("/proc/self/exe", "postrider", "run", "--config", dev->config_path, (char *) NULL);
    _exit(127);
}

static void
stop_run(struct dev *dev)
{
    if (dev->run <= 0)
        return;
    kill(dev->run, SIGTERM);
    waitpid(dev->run, NULL, 0);
    dev->run = 0;
}

static void
announce(struct dev *dev)
{
    struct strbuf out = {0};
    struct jsonw w = {.out = &out};

    if (dev->env->json) {
        jsonw_object(&w, NULL);
        jsonw_str(&w, "folder", dev->server.folder);
        jsonw_str(&w, "config", dev->config_path);
        jsonw_i64(&w, "port", dev->server.port);
        jsonw_i64(&w, "server_pid", dev->server.pid);
    } else {
        printf("postrider dev is ready (Ctrl-C ends it%s)\n\n  configuration  %s\n",
               command_option("keep") ? "; the folder stays" : " and removes everything",
               dev->config_path);
    }
    for (size_t i = 0; i < PR_LENGTH(databases); i++) {
        char *dsn = devserver_dsn(&dev->server, databases[i]);
        if (dev->env->json)
            jsonw_str(&w, databases[i], dsn);
        else
            printf("  %-14s %s\n", databases[i], dsn);
        free(dsn);
    }
    if (dev->env->json) {
        jsonw_end(&w);
        puts(strbuf_str(&out));
    } else {
        printf("\nTry:\n  export POSTRIDER_CONFIG=%s\n"
               "  postrider emit --aggregate registration:r1 --aggregate-version 1 --type "
               "RegistrationConfirmed \\\n"
               "      --payload '{\"playerId\": \"p1\", \"points\": 10}'\n"
               "  postrider tail --follow\n  postrider status\n",
               dev->config_path);
    }
    strbuf_release(&out);
    fflush(stdout);
}

/* Until a signal comes, or the server or the run ends by itself. */
static bool
wait_for_end(struct dev *dev, struct error *err)
{
    struct pollfd fd = {.fd = dev->signal_fd, .events = POLLIN};

    for (;;) {
        if (poll(&fd, 1, 200) > 0)
            return true;
        if (waitpid(dev->server.pid, NULL, WNOHANG) == dev->server.pid) {
            dev->server.pid = 0;
            return error_set_exit(err, ERR_STOP, EXIT_AWAY, "dev.server",
                                  "the PostgreSQL server ended");
        }
        if (dev->run > 0 && waitpid(dev->run, NULL, WNOHANG) == dev->run) {
            dev->run = 0;
            return error_set_exit(err, ERR_STOP, EXIT_FAULT, "dev.run",
                                  "`postrider run` ended; see above");
        }
    }
}

static void
take_signals(struct dev *dev)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    dev->signal_fd = signalfd(-1, &set, SFD_CLOEXEC);
    PR_CHECK(dev->signal_fd >= 0);
}

int
cmd_dev(const struct command_env *env, int argc, char **argv)
{
    struct dev dev = {.env = env};
    const char *keep = command_option("keep"), *port_text = command_option("port");
    int64_t port = 0;
    struct error err;

    (void) argc;
    (void) argv;
    if (port_text && (!value_integer(port_text, &port) || port < 1 || port > 65535))
        return cli_usage("--port takes 1 to 65535, not \"%s\"", port_text);
    take_signals(&dev);
    bool ok = devserver_start(&dev.server, keep, command_option("postgres"), (int) port, &err) &&
              prepare_database(&dev, "shop", schema_demo_shop.text, &err) &&
              prepare_database(&dev, "bus", NULL, &err) &&
              prepare_database(&dev, "rewards", schema_demo_rewards.text, &err) &&
              register_all(&dev, &err) && write_config(&dev, &err) &&
              (command_option("no-run") || start_run(&dev, &err));
    if (ok) {
        announce(&dev);
        ok = wait_for_end(&dev, &err);
    }
    int code = ok ? EXIT_OK : cli_fail(env, &err);
    bool ours = dev.server.lock_fd >= 0 && strcmp(ok ? "" : err.code, "dev.busy") != 0;
    char *folder = !keep && ours ? xstrdup(dev.server.folder) : NULL;
    stop_run(&dev);
    devserver_stop(&dev.server);
    if (folder)
        devserver_remove(folder);
    free(folder);
    free(dev.config_path);
    return code;
}
