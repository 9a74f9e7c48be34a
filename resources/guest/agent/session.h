/* A session and its viewers: session.c is what happens, terminal.c how one is made. */
#ifndef BOXGROVE_SESSION_H
#define BOXGROVE_SESSION_H

#include "agent.h"

#include <time.h>

#ifdef BOXGROVE_FUZZ
enum { RING_SIZE = 4096 };     /* so that it is often full */
#else
enum { RING_SIZE = 256 * 1024 };
#endif
enum { READ_SLICE = 64 * 1024, SESSION_NAME = 64 };

struct session {
    bool used, started, ready, reaped, drained;
    bool passing;              /* hung up on when its last viewer closes */
    bool over;                 /* nothing more will come; only its viewers keep it */
    struct watch terminal, status;
    pid_t pid;
    int wait_status;
    uint16_t columns, rows, viewers;
    uint8_t *ring;
    uint64_t total;            /* bytes ever printed; the ring holds the last of them */
    time_t created;
    char name[SESSION_NAME + 1], command[256];
};

struct viewer {
    struct session *session;   /* NULL: free */
    struct channel *channel;
    uint64_t at;               /* how far it has seen */
    bool created;
    struct pending input;
};

struct session *session_named(const char *name);
bool session_name_good(const char *name);
void session_describe(struct session *s, const char *name, char **argv);
int terminal_open(struct session *s, const struct user *u, int *slave);

#endif
