/*
 * file.c — JSON lines, appended to a file or to standard output ("-").
 *
 * A confirm means that the lines have been written and, for a regular file, synced to
 * disk.  A crash may leave half a line at the end; opening the file again cuts it off,
 * since its event was never confirmed and comes once more.
 */
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/failpoint.h"
#include "core/jsonw.h"
#include "transport/transport.h"

enum { MAX_QUEUE = 16384, MAX_BYTES = 8 * 1024 * 1024 };

struct file_transport {
    struct transport base;
    int fd;
    char *path;
    bool regular;
    off_t end; /* of the last line that was written whole */
    struct strbuf lines;
    uint32_t sent[MAX_QUEUE];
    size_t count;
};

static bool
file_error(struct file_transport *t, const char *what, struct error *err)
{
    enum exit_code exit = errno == EACCES || errno == EPERM ? EXIT_RIGHTS : EXIT_FULL;

    error_set_exit(err, ERR_DESTINATION, exit, "file.io", "file %s: cannot %s: %s", t->path, what,
                   strerror(errno));
    return error_hint(err, "make room or correct `path`, its folder and their rights; nothing is "
                           "lost, the relay goes on by itself");
}

static void
file_close(struct transport *base)
{
    struct file_transport *t = (struct file_transport *) base;

    if (t->fd > STDOUT_FILENO)
        close(t->fd);
    strbuf_release(&t->lines);
    free(t->path);
    free(t);
}

/* Position behind the last line end; what follows was never confirmed. */
static bool
find_end(struct file_transport *t, struct error *err)
{
    char block[4096];
    off_t at = lseek(t->fd, 0, SEEK_END);

    t->end = 0;
    while (at > 0 && t->end == 0) {
        off_t from = at > (off_t) sizeof(block) ? at - (off_t) sizeof(block) : 0;
        ssize_t n = pread(t->fd, block, (size_t) (at - from), from);
        if (n < 0)
            return file_error(t, "read", err);
        for (ssize_t i = n; i > 0 && t->end == 0; i--)
            if (block[i - 1] == '\n')
                t->end = from + i;
        at = from;
    }
    return ftruncate(t->fd, t->end) == 0 || file_error(t, "cut the half line at the end", err);
}

static bool
file_open(const struct destination_config *config, const char *purpose, const struct uuid *writer,
          struct transport **ret, struct error *err)
{
    struct file_transport *t = xcalloc(1, sizeof(*t));
    struct stat st;

    (void) purpose;
    (void) writer;
    t->base.ops = &transport_file;
    t->path = xstrdup(config->path);
    t->fd = strcmp(config->path, "-") == 0
                ? STDOUT_FILENO
                : open(config->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
    if (t->fd < 0 || fstat(t->fd, &st) != 0) {
        file_error(t, "open", err);
        goto fail;
    }
    t->regular = S_ISREG(st.st_mode) && t->fd != STDOUT_FILENO;
    if (t->regular && !find_end(t, err))
        goto fail;
    t->base.caps = (struct transport_caps){
        .fail_model = TRANSPORT_PREFIX,
        .durability = t->regular ? DURABLE_FSYNC : DURABLE_NOT,
        .max_queue = MAX_QUEUE,
        .max_bytes = MAX_BYTES,
    };
    *ret = &t->base;
    return true;

fail:
    file_close(&t->base);
    return false;
}

static bool
file_topic(struct transport *base, const char *topic, int *partitions, struct error *err)
{
    (void) base;
    (void) topic;
    (void) partitions;
    (void) err;
    return true;
}

static void
add_base64(struct jsonw *w, const char *key, const struct slice *bytes)
{
    char *text = xmalloc((bytes->len + 2) / 3 * 4 + 1);
    int len = EVP_EncodeBlock((unsigned char *) text, bytes->data, (int) bytes->len);

    jsonw_strn(w, key, text, (size_t) len);
    free(text);
}

static bool
is_json(const struct message *m)
{
    for (int i = 0; i < m->header_count; i++)
        if (strcmp(m->headers[i].name, "content-type") == 0)
            return m->headers[i].value.len == strlen("application/json") &&
                   memcmp(m->headers[i].value.data, "application/json", m->headers[i].value.len) ==
                       0;
    return false;
}

/*
 * A JSON body stands as a string, so that its bytes stay what they were; any other
 * body is base64.
 */
static bool
file_send(struct transport *base, const struct message *m, struct error *err)
{
    struct file_transport *t = (struct file_transport *) base;
    struct jsonw w = {.out = &t->lines};

    (void) err;
    PR_CHECK(t->count < MAX_QUEUE);
    jsonw_object(&w, NULL);
    jsonw_str(&w, "topic", m->topic);
    jsonw_i64(&w, "partition", m->part);
    jsonw_strn(&w, "key", m->key.data, m->key.len);
    jsonw_object(&w, "headers");
    for (int i = 0; i < m->header_count; i++)
        jsonw_strn(&w, m->headers[i].name, m->headers[i].value.data, m->headers[i].value.len);
    jsonw_end(&w);
    if (is_json(m))
        jsonw_strn(&w, "body", m->body.data, m->body.len);
    else
        add_base64(&w, "body_base64", &m->body);
    jsonw_end(&w);
    strbuf_addc(&t->lines, '\n');
    t->sent[t->count++] = m->cookie;
    return true;
}

static bool
write_lines(struct file_transport *t, struct error *err)
{
    for (size_t done = 0; done < t->lines.len;) {
        ssize_t n = write(t->fd, t->lines.data + done, t->lines.len - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return file_error(t, "write", err);
        done += (size_t) n;
    }
    if (t->regular && fdatasync(t->fd) != 0)
        return file_error(t, "sync", err);
    t->end += (off_t) t->lines.len;
    return true;
}

static bool
file_settle(struct transport *base, int64_t until_us, struct receipts *ret, struct error *err)
{
    struct file_transport *t = (struct file_transport *) base;
    bool ok = t->count == 0 || write_lines(t, err);

    (void) until_us;
    if (!ok && t->regular && ftruncate(t->fd, t->end) != 0)
        error_wrap(err, "after a failed cut-back");
    if (ok && t->count > 0)
        FAILPOINT("relay.confirmed");
    for (size_t i = 0; i < t->count; i++)
        ret->list[ret->count++] =
            (struct receipt){.cookie = t->sent[i], .cls = ok ? ERR_NONE : ERR_DESTINATION};
    t->count = 0;
    strbuf_reset(&t->lines);
    return ok;
}

const struct transport_ops transport_file = {
    .kind = "file",
    .open = file_open,
    .topic = file_topic,
    .send = file_send,
    .settle = file_settle,
    .close = file_close,
};
