/*
 * devserver.h — a private PostgreSQL server in a folder, for `postrider dev`.
 *
 * Started as root it runs as postgres, else as nobody: a server refuses to be root.
 * It ends when this process ends, however that happens.
 *
 * Threads: main.
 * Memory:  devserver_stop() frees; the folder stays unless devserver_remove() is called.
 */
#ifndef PR_DEVSERVER_H
#define PR_DEVSERVER_H

#include <stdbool.h>
#include <sys/types.h>

#include "core/error.h"

struct devserver {
    char *folder;
    char *bin; /* folder of initdb and postgres */
    char password[40];
    int port;
    uid_t uid;
    gid_t gid;
    int lock_fd;
    pid_t pid;
    bool fresh; /* the cluster was made just now */
};

/*
 * `folder` NULL makes one in the temporary directory; `bin` NULL looks for the newest
 * installed server; port 0 takes a free one.  Errors: dev.busy (another dev is in this
 * folder), dev.no_server, dev.folder, dev.port, dev.start.
 */
bool devserver_start(struct devserver *server, const char *folder, const char *bin, int port,
                     struct error *err) PR_MUSTCHECK;
void devserver_stop(struct devserver *server);

/* Deletes the folder and everything in it. */
void devserver_remove(const char *folder);

/* Connection string of a database; the caller frees. */
char *devserver_dsn(const struct devserver *server, const char *database);

#endif
