#include "cli/devserver.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/alloc.h"
#include "pg/pgconn.h"

enum { START_LIMIT_MS = 30000, STOP_LIMIT_MS = 20000 };

/* ------------------------------------------------------------------ folder */

static bool
folder_error(const struct devserver *s, const char *what, struct error *err)
{
    error_set_exit(err, ERR_STOP, EXIT_FULL, "dev.folder", "cannot %s %s: %s", what, s->folder,
                   strerror(errno));
    return error_hint(err, "choose a folder that the user %s can enter and write",
                      getuid() == 0 ? "postgres" : "running this");
}

static bool
choose_user(struct devserver *s, struct error *err)
{
    const struct passwd *user;

    s->uid = getuid();
    s->gid = getgid();
    if (s->uid != 0)
        return true;
    user = getpwnam("postgres");
    if (!user)
        user = getpwnam("nobody");
    if (!user)
        return error_set(err, ERR_STOP, "dev.user",
                         "there is neither a user postgres nor nobody to run the server as");
    s->uid = user->pw_uid;
    s->gid = user->pw_gid;
    return true;
}

static bool
make_folder(struct devserver *s, const char *folder, struct error *err)
{
    const char *tmp = getenv("TMPDIR");

    if (folder) {
        s->folder = xstrdup(folder);
        if (mkdir(s->folder, 0700) != 0 && errno != EEXIST)
            return folder_error(s, "make", err);
        char *full = realpath(s->folder, NULL);
        if (full) {
            free(s->folder);
            s->folder = full;
        }
    } else {
        s->folder = xasprintf("%s/postrider-dev.XXXXXX", tmp && *tmp ? tmp : "/tmp");
        if (!mkdtemp(s->folder))
            return folder_error(s, "make", err);
    }
    if (getuid() == 0 && chown(s->folder, s->uid, s->gid) != 0)
        return folder_error(s, "give away", err);
    return true;
}

/* One dev per folder; the lock ends with the process. */
static bool
lock_folder(struct devserver *s, struct error *err)
{
    char *path = xasprintf("%s/dev.lock", s->folder);
    char pid[16] = "";

    s->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    free(path);
    if (s->lock_fd < 0)
        return folder_error(s, "write in", err);
    if (flock(s->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        ssize_t n = pread(s->lock_fd, pid, sizeof(pid) - 1, 0);
        pid[n > 0 ? n : 0] = '\0';
        error_set_exit(err, ERR_STOP, EXIT_DIFFERS, "dev.busy",
                       "another `postrider dev` (process %s) runs in %s", pid, s->folder);
        return error_hint(err, "use that one, end it, or name another folder with --keep");
    }
    snprintf(pid, sizeof(pid), "%d", (int) getpid());
    return (ftruncate(s->lock_fd, 0) == 0 && pwrite(s->lock_fd, pid, strlen(pid), 0) > 0) ||
           folder_error(s, "write in", err);
}

static int
remove_entry(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void) st;
    (void) type;
    (void) at;
    return remove(path);
}

void
devserver_remove(const char *folder)
{
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* A small file of the folder that outlives the process: port, password. */
static bool
remember(struct devserver *s, const char *name, char *value, size_t size, struct error *err)
{
    char *path = xasprintf("%s/%s", s->folder, name);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    char kept[64] = "";
    bool ok = fd >= 0;
    ssize_t n;

    if (ok && (n = read(fd, kept, sizeof(kept) - 1)) > 0)
        snprintf(value, size, "%.*s", (int) n, kept);
    else if (ok)
        ok = write(fd, value, strlen(value)) == (ssize_t) strlen(value);
    if (ok && getuid() == 0)
        ok = fchown(fd, s->uid, s->gid) == 0;
    if (fd >= 0)
        close(fd);
    free(path);
    return ok || folder_error(s, "write in", err);
}

/* ------------------------------------------------------------------ server */

static bool
find_server(struct devserver *s, const char *bin, struct error *err)
{
    const char *from_env = getenv("POSTRIDER_PG_BIN");
    glob_t found;

    if (bin || (from_env && *from_env)) {
        s->bin = xstrdup(bin ? bin : from_env);
    } else if (glob("/usr/lib/postgresql/*/bin/postgres", 0, NULL, &found) == 0) {
        s->bin = xstrdup(found.gl_pathv[found.gl_pathc - 1]);
        *strrchr(s->bin, '/') = '\0';
        globfree(&found);
    }
    char *path = xasprintf("%s/postgres", s->bin ? s->bin : "");
    bool ok = access(path, X_OK) == 0;
    free(path);
    if (ok)
        return true;
    error_set_exit(err, ERR_STOP, EXIT_CONFIG, "dev.no_server", "there is no PostgreSQL server%s%s",
                   s->bin ? " in " : "", s->bin ? s->bin : "");
    return error_hint(err, "apt-get install postgresql-15, or name its bin folder with --postgres");
}

static int
free_port(int wanted)
{
    struct sockaddr_in addr = {.sin_family = AF_INET,
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                               .sin_port = htons((uint16_t) wanted)};
    socklen_t len = sizeof(addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = -1, one = 1;

    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, (struct sockaddr *) &addr, sizeof(addr)) == 0 &&
        getsockname(fd, (struct sockaddr *) &addr, &len) == 0)
        port = ntohs(addr.sin_port);
    close(fd);
    return port;
}

/* Starts a program as the server's user, its output in FOLDER/log. */
static pid_t
spawn(const struct devserver *s, char *const argv[])
{
    char *log = xasprintf("%s/log", s->folder);
    pid_t parent = getpid(), pid = fork();

    if (pid != 0) {
        free(log);
        return pid;
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0); /* a Ctrl-C is for us; the server is stopped in order */
    if (getuid() == 0 && (setgroups(0, NULL) != 0 || setgid(s->gid) != 0 || setuid(s->uid) != 0))
        _exit(126);
    prctl(PR_SET_PDEATHSIG, SIGINT); /* a dev that is killed leaves no server behind */
    if (getppid() != parent)
        _exit(126);
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600), null = open("/dev/null", O_RDONLY);
    if (fd < 0 || null < 0 || chdir(s->folder) != 0)
        _exit(126);
    dup2(null, STDIN_FILENO);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    execv(argv[0], argv);
    _exit(127);
}

static bool
start_error(const struct devserver *s, const char *what, struct error *err)
{
    error_set_exit(err, ERR_STOP, EXIT_FAULT, "dev.start", "%s failed", what);
    return error_hint(err, "its own words are in %s/log", s->folder);
}

/* argv holds pointers that execv() promises not to write through. */
static char *
arg(const char *text)
{
    union {
        const char *in;
        char *out;
    } u = {text};
    return u.out;
}

static bool
make_cluster(struct devserver *s, struct error *err)
{
    char *version = xasprintf("%s/data/PG_VERSION", s->folder);
    char *program = xasprintf("%s/initdb", s->bin), *data = xasprintf("%s/data", s->folder);
    char *pwfile = xasprintf("--pwfile=%s/password", s->folder);
    char *const argv[] = {program,
                          arg("-D"),
                          data,
                          arg("-U"),
                          arg("dev"),
                          arg("-A"),
                          arg("scram-sha-256"),
                          pwfile,
                          arg("-E"),
                          arg("UTF8"),
                          arg("--locale=C"),
                          arg("--no-sync"),
                          NULL};
    int status = 0;

    s->fresh = access(version, F_OK) != 0;
    if (s->fresh) {
        pid_t pid = spawn(s, argv);
        if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
            start_error(s, "initdb", err);
        else
            status = 0;
    }
    free(version);
    free(program);
    free(data);
    free(pwfile);
    return status == 0;
}

char *
devserver_dsn(const struct devserver *s, const char *database)
{
    return xasprintf("postgresql://dev:%s@127.0.0.1:%d/%s", s->password, s->port, database);
}

static bool
wait_ready(struct devserver *s, struct error *err)
{
    struct pgconn_options options = {.purpose = "dev", .system_search_path = true};
    char *dsn = devserver_dsn(s, "postgres");
    bool ok = false;

    for (int waited = 0; !ok && waited < START_LIMIT_MS; waited += 50) {
        struct pgconn *conn = NULL;
        if (waitpid(s->pid, NULL, WNOHANG) == s->pid) {
            s->pid = 0;
            break;
        }
        ok = pgconn_open(dsn, &options, &conn, err);
        pgconn_close(conn);
        if (!ok)
            poll(NULL, 0, 50);
    }
    free(dsn);
    return ok || start_error(s, "the PostgreSQL server's start", err);
}

static bool
start_server(struct devserver *s, struct error *err)
{
    char *program = xasprintf("%s/postgres", s->bin), *data = xasprintf("%s/data", s->folder);
    char port[16];
    char *const argv[] = {program,
                          arg("-D"),
                          data,
                          arg("-p"),
                          port,
                          arg("-c"),
                          arg("listen_addresses=127.0.0.1"),
                          arg("-c"),
                          arg("unix_socket_directories="),
                          arg("-c"),
                          arg("max_prepared_transactions=10"),
                          NULL};

    snprintf(port, sizeof(port), "%d", s->port);
    s->pid = spawn(s, argv);
    free(program);
    free(data);
    if (s->pid < 0)
        return start_error(s, "fork", err);
    return wait_ready(s, err);
}

static bool
choose_port(struct devserver *s, int wanted, struct error *err)
{
    char port[16];

    snprintf(port, sizeof(port), "%d", wanted ? wanted : free_port(0));
    if (!remember(s, "port", port, sizeof(port), err))
        return false;
    s->port = (int) strtol(port, NULL, 10);
    if (free_port(s->port) == s->port)
        return true;
    error_set_exit(err, ERR_STOP, EXIT_AWAY, "dev.port", "port %d of 127.0.0.1 is in use", s->port);
    return error_hint(
        err, "free it; or delete port and postrider.yaml in %s, and another is chosen", s->folder);
}

bool
devserver_start(struct devserver *s, const char *folder, const char *bin, int port,
                struct error *err)
{
    unsigned char random[16];

    *s = (struct devserver){.lock_fd = -1};
    PR_CHECK(getrandom(random, sizeof(random), 0) == sizeof(random));
    for (size_t i = 0; i < sizeof(random); i++)
        snprintf(s->password + 2 * i, 3, "%02x", random[i]);
    return choose_user(s, err) && find_server(s, bin, err) && make_folder(s, folder, err) &&
           lock_folder(s, err) && remember(s, "password", s->password, sizeof(s->password), err) &&
           choose_port(s, port, err) && make_cluster(s, err) && start_server(s, err);
}

void
devserver_stop(struct devserver *s)
{
    if (s->pid > 0) {
        kill(s->pid, SIGINT);
        for (int waited = 0; waitpid(s->pid, NULL, WNOHANG) == 0; waited += 20) {
            if (waited == STOP_LIMIT_MS)
                kill(s->pid, SIGQUIT);
            poll(NULL, 0, 20);
        }
    }
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    free(s->folder);
    free(s->bin);
    *s = (struct devserver){.lock_fd = -1};
}
