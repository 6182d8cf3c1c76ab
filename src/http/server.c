#include "http/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "metrics/health.h"
#include "metrics/metrics.h"

enum { BEAT_LIMIT_US = 30000000, CONNECTIONS = 32, IDLE_SECONDS = 10 };

struct http_server {
    struct MHD_Daemon *daemon;
    int port;
    _Atomic int64_t beat_us;
};

int
http_route(const char *path, int64_t beat_us, struct strbuf *body, const char **ret_type)
{
    *ret_type = "text/plain; charset=utf-8";
    if (strcmp(path, "/metrics") == 0) {
        *ret_type = "text/plain; version=0.0.4; charset=utf-8";
        metrics_render(body);
        return MHD_HTTP_OK;
    }
    if (strcmp(path, "/readyz") == 0) {
        *ret_type = "application/json";
        bool ready = health_report(body);
        strbuf_addc(body, '\n');
        return ready ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE;
    }
    if (strcmp(path, "/healthz") == 0) {
        bool alive = clock_mono_us() - beat_us < BEAT_LIMIT_US;
        strbuf_adds(body,
                    alive ? "alive\n" : "the main thread gives no sign: restart the process\n");
        return alive ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE;
    }
    if (strcmp(path, "/") == 0) {
        strbuf_adds(body, "postrider " PR_VERSION "\n/metrics\n/healthz\n/readyz\n");
        return MHD_HTTP_OK;
    }
    strbuf_adds(body, "not found; there are /metrics, /healthz and /readyz\n");
    return MHD_HTTP_NOT_FOUND;
}

static enum MHD_Result
respond(struct MHD_Connection *connection, int status, const char *type, struct strbuf *body)
{
    size_t len = body->len;
    struct MHD_Response *response =
        MHD_create_response_from_buffer(len, strbuf_take(body), MHD_RESPMEM_MUST_FREE);
    enum MHD_Result result = MHD_NO;

    if (response && MHD_add_response_header(response, "Content-Type", type) == MHD_YES) {
        if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
            MHD_add_response_header(response, "Allow", "GET, HEAD");
        result = MHD_queue_response(connection, (unsigned) status, response);
    }
    if (response)
        MHD_destroy_response(response);
    return result;
}

static enum MHD_Result
on_request(void *arg, struct MHD_Connection *connection, const char *url, const char *method,
           const char *version, const char *upload, size_t *upload_size, void **state)
{
    struct http_server *server = arg;
    struct strbuf body = {0};
    const char *type = "text/plain; charset=utf-8";
    int status = MHD_HTTP_METHOD_NOT_ALLOWED;

    (void) version;
    (void) upload;
    (void) state;
    *upload_size = 0;
    if (strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0)
        status = http_route(url, atomic_load(&server->beat_us), &body, &type);
    else
        strbuf_adds(&body, "only GET and HEAD are answered\n");
    return respond(connection, status, type, &body);
}

/* A bound and listening socket, or -1 with errno or a resolver's message. */
static int
listen_on(const char *host, const char *port, const char **ret_why)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list;
    int fd = -1, one = 1;
    int failed = getaddrinfo(host, port, &hints, &list);

    if (failed) {
        *ret_why = gai_strerror(failed);
        return -1;
    }
    fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
        if (bind(fd, list->ai_addr, list->ai_addrlen) != 0 || listen(fd, 64) != 0) {
            *ret_why = strerror(errno);
            close(fd);
            fd = -1;
        }
    } else {
        *ret_why = strerror(errno);
    }
    freeaddrinfo(list);
    return fd;
}

static int
port_of(int fd)
{
    struct sockaddr_storage addr;
    socklen_t len = sizeof(addr);
    char port[16] = "0";

    if (getsockname(fd, (struct sockaddr *) &addr, &len) == 0)
        getnameinfo((struct sockaddr *) &addr, len, NULL, 0, port, sizeof(port), NI_NUMERICSERV);
    return (int) strtol(port, NULL, 10);
}

bool
http_server_start(const char *listen, struct http_server **ret, struct error *err)
{
    struct http_server *server = xcalloc(1, sizeof(*server));
    char *host = xstrdup(listen), *port = strrchr(host, ':');
    const char *why = "no address:port";
    char *bare = host;
    int fd = -1;

    *ret = NULL;
    if (port) {
        *port++ = '\0';
        if (*bare == '[' && bare[strlen(bare) - 1] == ']') { /* [::1]:9187 */
            bare[strlen(bare) - 1] = '\0';
            bare++;
        }
        fd = listen_on(bare, port, &why);
    }
    free(host);
    http_server_beat(server);
    if (fd >= 0)
        server->daemon = MHD_start_daemon(
            MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL, 0, NULL, NULL, on_request, server,
            MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned) CONNECTIONS,
            MHD_OPTION_CONNECTION_TIMEOUT, (unsigned) IDLE_SECONDS, MHD_OPTION_END);
    if (!server->daemon) {
        if (fd >= 0)
            close(fd);
        free(server);
        error_set_exit(err, ERR_STOP, EXIT_AWAY, "http.listen", "cannot listen on %s: %s", listen,
                       why);
        return error_hint(err, "is another postrider running? Else choose another http.listen");
    }
    server->port = port_of(fd);
    *ret = server;
    return true;
}

void
http_server_stop(struct http_server *server)
{
    if (!server)
        return;
    MHD_stop_daemon(server->daemon);
    free(server);
}

int
http_server_port(const struct http_server *server)
{
    return server->port;
}

void
http_server_beat(struct http_server *server)
{
    atomic_store(&server->beat_us, clock_mono_us());
}
