/* EXEC channels: a command with its three streams, its credit, and an end that is told once. */
#include "agent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STDIN_WINDOW = 256 * 1024, PIPE_SIZE = 256 * 1024, MAX_ARGS = 4096 };

/* A pipe we read. Edge-triggered: `ready` stays up until a read comes back short. */
struct source { struct watch w; bool ready, hung, grown, finished; uint32_t left; };

struct exec {
    struct channel *channel;   /* NULL: free */
    pid_t pid;
    struct watch status, in;
    struct pending input;
    struct source out[2];
    bool started, reaped, in_watched;
    int wait_status;
};

static struct exec execs[MAX_CHANNELS];

static struct exec *of(struct channel *c)
{
    return &execs[channel_slot(c)];
}

static void release(struct exec *e)
{
    watch_close(&e->status);
    watch_close(&e->in);
    pending_free(&e->input);
    drain_take(&e->out[0].w);
    drain_take(&e->out[1].w);
    e->channel = NULL;
}

static void hang_up(struct exec *e)
{
    /* Just born, it may not lead a group yet. */
    if (!e->reaped && sys_kill(-e->pid, SIGHUP))
        sys_kill(e->pid, SIGHUP);
}

/* ---- input ---- */

static void feed(struct exec *e)
{
    if (e->in.fd < 0)
        return;
    if (e->input.length) {
        ssize_t n = pending_write(&e->input, e->in.fd);
        if (n > 0)
            channel_ate(e->channel, (uint32_t)n);
        if (n < 0 && n != -EAGAIN && n != -EINTR) {
            channel_ate(e->channel, e->input.length);
            pending_free(&e->input);
            watch_close(&e->in);
            return;
        }
    }
    if (!e->input.length && e->channel->host_eof)
        watch_close(&e->in);
}

static void in_ready(struct watch *w, uint32_t events)
{
    (void)events;
    feed((struct exec *)((char *)w - offsetof(struct exec, in)));
}

static void exec_data(struct channel *c, const uint8_t *data, uint32_t length)
{
    struct exec *e = of(c);
    uint32_t done = 0;
    if (e->in.fd >= 0 && !e->input.length) {
        ssize_t n = write(e->in.fd, data, length);
        if (n > 0)
            done = (uint32_t)n;
        else if (n < 0 && errno != EAGAIN && errno != EINTR)
            watch_close(&e->in);
    }
    if (e->in.fd < 0)
        done = length;         /* nobody reads it: swallowed, as a shell's pipe would */
    if (done < length) {
        if (!pending_put(&e->input, data + done, length - done, STDIN_WINDOW)) {
            hang_up(e);        /* better no command than one with half its input */
            release(e);
            channel_refuse(c, ENOMEM, "");
            return;
        }
        if (!e->in_watched) {
            e->in_watched = true;
            fcntl(e->in.fd, F_SETPIPE_SZ, PIPE_SIZE);
            watch_add(&e->in, EPOLLOUT | EPOLLET);
        }
    }
    if (done)
        channel_ate(c, done);
}

static void exec_eof(struct channel *c)
{
    feed(of(c));
}

static void exec_signal(struct channel *c, int number)
{
    struct exec *e = of(c);
    if (e->started && !e->reaped)
        sys_kill(-e->pid, number);
}

/* ---- output ---- */

static void out_ready(struct watch *w, uint32_t events)
{
    struct source *s = (struct source *)w;
    s->ready = true;
    s->hung |= (events & (EPOLLHUP | EPOLLERR)) != 0;
}

static void at_end(struct exec *e, int which)
{
    e->out[which].finished = true;
    watch_close(&e->out[which].w);
    if (which == 0)
        out_frame(T_EOF, e->channel->id, NULL, 0);
}

/* Without credit nothing may be read, but an end costs no credit. */
static bool end_without_credit(struct exec *e, int which)
{
    struct source *s = &e->out[which];
    struct pollfd p = {.fd = s->w.fd, .events = POLLIN};
    if ((!s->hung && !e->reaped) || poll(&p, 1, 0) < 0 || (p.revents & POLLIN))
        return false;
    if (p.revents & POLLHUP)
        at_end(e, which);
    else
        s->finished = e->reaped;
    return s->finished;
}

static bool send_piece(struct exec *e, int which)
{
    struct source *s = &e->out[which];
    struct channel *c = e->channel;
    if (s->finished || !s->ready || !out_takes_data())
        return false;
    if (!c->credit)
        return end_without_credit(e, which);
    size_t want = c->credit < MAX_PAYLOAD ? c->credit : MAX_PAYLOAD;
    if (e->reaped && want > s->left)
        want = s->left;
    uint8_t *at = out_begin(want);
    ssize_t n = want ? read(s->w.fd, at, want) : -1;
    if (n > 0) {
        out_end(which ? T_DATA2 : T_DATA, c->id, (size_t)n);
        c->credit -= (uint64_t)n;
        if (e->reaped)
            s->left -= (uint32_t)n;
        if (n == MAX_PAYLOAD && !s->grown) {
            s->grown = true;
            fcntl(s->w.fd, F_SETPIPE_SZ, PIPE_SIZE);
        }
        if ((size_t)n < want && !s->hung && !e->reaped)
            s->ready = false;
        return true;
    }
    if (n < 0 && want && errno == EINTR)
        return true;
    if (n < 0 && want && errno == EAGAIN && !e->reaped) {
        s->ready = s->hung = false;
        return false;
    }
    if (n == 0)
        at_end(e, which);
    s->finished = true;
    return true;
}

/* Both streams at their end (or, once the child is gone, empty): it is over. */
static bool finish(struct exec *e)
{
    if (!e->reaped || !e->started || !e->out[0].finished || !e->out[1].finished)
        return false;
    int status = WIFSIGNALED(e->wait_status) ? -WTERMSIG(e->wait_status)
                                             : WEXITSTATUS(e->wait_status);
    struct channel *c = e->channel;
    release(e);
    channel_exit(c, status, "");
    return true;
}

static bool exec_pump(struct channel *c)
{
    struct exec *e = of(c);
    if (!e->started)
        return false;
    bool did = send_piece(e, 0);
    did |= send_piece(e, 1);
    return finish(e) || did;
}

/* ---- start and end ---- */

static void started(struct exec *e)
{
    char message[128];
    int error = spawn_result(e->status.fd, message, sizeof message);
    struct channel *c = e->channel;
    if (error == EAGAIN)
        return;
    watch_close(&e->status);
    if (error) {
        release(e);
        channel_refuse(c, error, message);
        return;
    }
    e->started = true;
    channel_window(c, e->in.fd >= 0 ? STDIN_WINDOW : 0);
    uint8_t result[8];
    put32(result, c->window);
    put32(result + 4, (uint32_t)e->pid);
    out_frame(T_OPENED, c->id, result, sizeof result);
}

static void status_ready(struct watch *w, uint32_t events)
{
    (void)events;
    started((struct exec *)((char *)w - offsetof(struct exec, status)));
}

bool exec_reaped(pid_t pid, int status)
{
    for (unsigned i = 0; i < MAX_CHANNELS; i++) {
        struct exec *e = &execs[i];
        if (!e->channel || e->pid != pid || e->reaped)
            continue;
        e->reaped = true;
        e->wait_status = status;
        for (int k = 0; k < 2; k++) {
            e->out[k].ready = true;
            e->out[k].left = 1024 * 1024;  /* no pipe holds more: later writers are not awaited */
        }
        if (!e->started)
            started(e);
        return true;
    }
    return false;
}

static void exec_drop(struct channel *c, bool closed)
{
    struct exec *e = of(c);
    if (closed)
        hang_up(e);
    release(e);
}

static const struct channel_ops exec_ops = {
    .data = exec_data, .eof = exec_eof, .signal = exec_signal, .pump = exec_pump,
    .drop = exec_drop,
};

static int pipe_to(struct watch *ours, int *theirs, bool we_read)
{
    int ends[2], error = pipe_pair(ends);
    if (error)
        return error;
    ours->fd = ends[!we_read];
    *theirs = ends[we_read];
    fcntl(ours->fd, F_SETFL, O_NONBLOCK);
    return we_read ? watch_add(ours, EPOLLIN | EPOLLET) : 0;
}

static int run(struct exec *e, struct launch *l, bool no_input)
{
    int theirs[3] = {null_fd, -1, -1}, error = 0;
    if (!no_input)
        error = pipe_to(&e->in, &theirs[0], false);
    for (int i = 0; i < 2 && !error; i++)
        error = pipe_to(&e->out[i].w, &theirs[i + 1], true);
    if (!error) {
        memcpy(l->stdio, theirs, sizeof theirs);
        pid_t pid = spawn(l, &e->status.fd);
        if (pid < 0)
            error = (int)pid;
        else
            e->pid = pid;
    }
    for (int i = 0; i < 3; i++)
        if (theirs[i] >= 0 && theirs[i] != null_fd)
            close(theirs[i]);
    return error ? error : watch_add(&e->status, EPOLLIN | EPOLLET);
}

void exec_open(struct channel *c, struct reader *r)
{
    static char *env[MAX_ARGS], *argv[MAX_ARGS];
    static struct user user;
    launch_keep(r);
    unsigned flags = read_u8(r);
    char *name = read_str(r), *cwd = read_str(r);
    read_list(r, env, MAX_ARGS);
    size_t count = read_list(r, argv, MAX_ARGS);
    if (!read_done(r) || !count || flags & ~1u) {
        channel_refuse(c, EPROTO, "malformed EXEC");
        return;
    }
    int error = user_find(name, &user);
    if (error) {
        channel_refuse(c, error, "no such user");
        return;
    }
    struct launch l = {.user = &user, .cwd = cwd, .file = argv[0], .argv = argv};
    l.env = environment(&user, false, env);
    if (!l.env) {
        channel_refuse(c, E2BIG, "the environment is too large");
        return;
    }
    struct exec *e = of(c);
    *e = (struct exec){
        .channel = c, .pid = -1, .status = {-1, status_ready}, .in = {-1, in_ready},
        .out = {{.w = {-1, out_ready}}, {.w = {-1, out_ready}}},
    };
    channel_opened(c, &exec_ops);
    error = run(e, &l, flags & 1);
    if (error) {
        release(e);
        channel_refuse(c, -error, "");
    }
}
