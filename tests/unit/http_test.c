#include "tests/unit/t.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "http/server.h"

static char *
ask(int port, const char *request, char *answer, size_t size)
{
    struct sockaddr_in addr = {.sin_family = AF_INET,
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                               .sin_port = htons((uint16_t) port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    size_t len = 0;
    ssize_t n;

    assert_int_equal(connect(fd, (struct sockaddr *) &addr, sizeof(addr)), 0);
    assert_int_equal(write(fd, request, strlen(request)), strlen(request));
    while (len < size - 1 && (n = read(fd, answer + len, size - 1 - len)) > 0)
        len += (size_t) n;
    answer[len] = '\0';
    close(fd);
    return answer;
}

static void
the_server_answers_its_routes_only(void **state)
{
    struct http_server *server;
    struct error err;
    char answer[65536];

    (void) state;
    assert_true(http_server_start("127.0.0.1:0", &server, &err));
    int port = http_server_port(server);
    assert_true(port > 0);
    ask(port, "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", answer,
        sizeof(answer));
    assert_non_null(strstr(answer, "HTTP/1.1 200"));
    assert_non_null(strstr(answer, "alive"));
    ask(port, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", answer,
        sizeof(answer));
    assert_non_null(strstr(answer, "postrider_build_info"));
    ask(port, "GET /etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", answer,
        sizeof(answer));
    assert_non_null(strstr(answer, "HTTP/1.1 404"));
    ask(port, "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        answer, sizeof(answer));
    assert_non_null(strstr(answer, "HTTP/1.1 405"));
    assert_non_null(strstr(answer, "Allow: GET, HEAD"));
    http_server_stop(server);
}

static void
a_port_in_use_is_told(void **state)
{
    struct http_server *server, *second;
    struct error err;
    char address[32];

    (void) state;
    assert_true(http_server_start("127.0.0.1:0", &server, &err));
    snprintf(address, sizeof(address), "127.0.0.1:%d", http_server_port(server));
    assert_false(http_server_start(address, &second, &err));
    assert_string_equal(err.code, "http.listen");
    assert_non_null(strstr(err.text, address));
    assert_true(err.hint[0]);
    http_server_stop(server);
}

static void
liveness_ends_with_the_main_threads_beat(void **state)
{
    struct strbuf body = {0};
    const char *type;

    (void) state;
    assert_int_equal(http_route("/healthz", clock_mono_us(), &body, &type), 200);
    assert_int_equal(http_route("/healthz", clock_mono_us() - 31000000, &body, &type), 503);
    strbuf_release(&body);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_server_answers_its_routes_only),
        cmocka_unit_test(a_port_in_use_is_told),
        cmocka_unit_test(liveness_ends_with_the_main_threads_beat),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
