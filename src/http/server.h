/*
 * server.h — the HTTP server of a running program: /metrics, /healthz, /readyz.
 *
 * Threads: libmicrohttpd's one internal thread answers; handlers only read atomics.
 * Memory:  http_server_stop() frees.
 */
#ifndef PR_HTTP_SERVER_H
#define PR_HTTP_SERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/error.h"
#include "core/strbuf.h"

struct http_server;

/* "127.0.0.1:9187"; port 0 takes a free one.  Errors: http.listen. */
bool http_server_start(const char *listen, struct http_server **ret,
                       struct error *err) PR_MUSTCHECK;
void http_server_stop(struct http_server *server); /* NULL is fine */
int http_server_port(const struct http_server *server);

/* The main thread is alive: /healthz answers 503 when the last beat is older than 30 s. */
void http_server_beat(struct http_server *server);

/* Body, type and status of a path; the status is 404 for an unknown one. */
int http_route(const char *path, int64_t beat_us, struct strbuf *body, const char **ret_type);

#endif
