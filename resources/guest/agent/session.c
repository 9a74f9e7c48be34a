/* SESSION channels: terminals that live in the guest, and the viewers that come and go. */
#include "agent.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "session.h"

enum { INPUT_WINDOW = 64 * 1024, MAX_ARGS = 4096 };

static struct session sessions[MAX_SESSIONS];
static struct viewer viewers[MAX_CHANNELS];

static struct viewer *of(struct channel *c)
{
    return &viewers[channel_slot(c)];
}

static uint64_t oldest(const struct session *s)
{
    return s->total > RING_SIZE ? s->total - RING_SIZE : 0;
}

static void forget(struct session *s)
{
    watch_close(&s->terminal);
    watch_close(&s->status);
    if (s->ring)
        buffer_free(s->ring, RING_SIZE);
    memset(s, 0, sizeof *s);
    s->terminal.fd = s->status.fd = -1;
}

/* ---- viewers ---- */

static void leave(struct viewer *v)
{
    struct session *s = v->session;
    pending_free(&v->input);
    v->session = NULL;
    if (--s->viewers == 0 && s->over)
        forget(s);
}

static void session_drop(struct channel *c, bool closed)
{
    struct session *s = of(c)->session;
    if (closed && s->passing && s->viewers == 1 && !s->reaped)
        sys_kill(-s->pid, SIGHUP);
    leave(of(c));
}

static void type_in(struct viewer *v)
{
    struct session *s = v->session;
    if (!v->input.length)
        return;
    ssize_t n = s->over ? -EIO : pending_write(&v->input, s->terminal.fd);
    if (n > 0)
        channel_ate(v->channel, (uint32_t)n);
    if (n < 0 && n != -EAGAIN && n != -EINTR)
        pending_free(&v->input);
}

static void session_data(struct channel *c, const uint8_t *data, uint32_t length)
{
    struct viewer *v = of(c);
    if (!v->session->over && pending_put(&v->input, data, length, INPUT_WINDOW))
        type_in(v);
}

static void session_signal(struct channel *c, int number)
{
    struct session *s = of(c)->session;
    pid_t group = 0;
    if (s->over || !s->started)
        return;
    if (ioctl(s->terminal.fd, TIOCGPGRP, &group) || group <= 1)
        group = s->reaped ? 0 : s->pid;
    if (group > 1)
        sys_kill(-group, number);
}

static void resize(struct session *s, unsigned columns, unsigned rows)
{
    if (!columns || !rows || s->over || (s->columns == columns && s->rows == rows))
        return;
    struct winsize size = {.ws_col = (unsigned short)columns, .ws_row = (unsigned short)rows};
    if (ioctl(s->terminal.fd, TIOCSWINSZ, &size) == 0) {
        s->columns = (uint16_t)columns;
        s->rows = (uint16_t)rows;
    }
}

static void session_resize(struct channel *c, unsigned columns, unsigned rows)
{
    resize(of(c)->session, columns, rows);
}

static bool show_piece(struct viewer *v)
{
    struct session *s = v->session;
    struct channel *c = v->channel;
    if (v->at == s->total || !c->credit || !out_takes_data())
        return false;
    if (v->at < oldest(s)) {
        uint8_t missed[8];
        put64(missed, oldest(s) - v->at);
        out_frame(T_GAP, c->id, missed, sizeof missed);
        v->at = oldest(s);
    }
    size_t from = v->at % RING_SIZE;
    uint64_t length = s->total - v->at;
    if (length > RING_SIZE - from)
        length = RING_SIZE - from;
    if (length > c->credit)
        length = c->credit;
    if (length > MAX_PAYLOAD)
        length = MAX_PAYLOAD;
    out_frame(T_DATA, c->id, s->ring + from, (size_t)length);
    c->credit -= length;
    v->at += length;
    return true;
}

static bool session_pump(struct channel *c)
{
    struct viewer *v = of(c);
    struct session *s = v->session;
    if (!s->started)
        return false;
    bool did = show_piece(v);
    if (!s->over || v->at != s->total)
        return did;
    int status = WIFSIGNALED(s->wait_status) ? -WTERMSIG(s->wait_status)
                                             : WEXITSTATUS(s->wait_status);
    leave(v);
    channel_exit(c, status, "");
    return true;
}

static const struct channel_ops session_ops = {
    .data = session_data, .signal = session_signal, .resize = session_resize,
    .pump = session_pump, .drop = session_drop,
};

static void announce(struct viewer *v)
{
    struct session *s = v->session;
    v->at = oldest(s);
    channel_window(v->channel, INPUT_WINDOW);
    uint8_t *start = out_begin(32 + sizeof s->name), *p = start;
    p = add_u32(p, INPUT_WINDOW);
    p = add_u8(p, v->created);
    p = add_u32(p, (uint32_t)s->pid);
    p = add_u32(p, (uint32_t)(s->total - v->at));
    p = add_str(p, s->name, strlen(s->name));
    out_end(T_OPENED, v->channel->id, (size_t)(p - start));
}

static void view(struct channel *c, struct session *s, bool created)
{
    struct viewer *v = of(c);
    *v = (struct viewer){.session = s, .channel = c, .created = created};
    s->viewers++;
    channel_opened(c, &session_ops);
    if (s->started)
        announce(v);
}

/* ---- the terminal ---- */

/* How much may be read: up to the viewer that is furthest, or everything when nobody looks. */
static size_t room(const struct session *s)
{
    uint64_t behind = s->viewers ? RING_SIZE : 0;
    for (unsigned i = 0; i < MAX_CHANNELS && behind; i++)
        if (viewers[i].session == s && s->total - viewers[i].at < behind)
            behind = s->total - viewers[i].at;
    return RING_SIZE - (size_t)behind;
}

static bool read_terminal(struct session *s)
{
    bool did = false;
    for (size_t left = READ_SLICE; s->ready && left;) {
        size_t want = room(s), to_end = RING_SIZE - s->total % RING_SIZE;
        want = want < to_end ? want : to_end;
        want = want < left ? want : left;
        if (!want)
            return did;
        ssize_t n = read(s->terminal.fd, s->ring + s->total % RING_SIZE, want);
        if (n > 0) {
            s->total += (uint64_t)n;
            left -= (size_t)n;
            did = true;
        } else if (n < 0 && errno == EINTR) {
            continue;
        } else {
            s->ready = false;
            s->drained = n == 0 || errno != EAGAIN || s->reaped;
        }
    }
    return did;
}

/* Its process is gone and all it printed is in the ring: the name is free, viewers catch up. */
static void finish(struct session *s)
{
    s->over = true;
    s->name[0] = 0;
    watch_close(&s->terminal);
    if (!s->viewers)
        forget(s);
}

bool sessions_pump(void)
{
    bool did = false;
    for (unsigned i = 0; i < MAX_SESSIONS; i++) {
        struct session *s = &sessions[i];
        if (!s->used || !s->started || s->over)
            continue;
        if (s->ready)
            did |= read_terminal(s);
        if (s->reaped && s->drained) {
            finish(s);
            did = true;
        }
    }
    return did;
}

static void terminal_ready(struct watch *w, uint32_t events)
{
    struct session *s = (struct session *)((char *)w - offsetof(struct session, terminal));
    s->ready |= (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0;
    if (events & EPOLLOUT)
        for (unsigned i = 0; i < MAX_CHANNELS; i++)
            if (viewers[i].session == s)
                type_in(&viewers[i]);
}

static void started(struct session *s)
{
    char message[128];
    int error = spawn_result(s->status.fd, message, sizeof message);
    if (error == EAGAIN)
        return;
    watch_close(&s->status);
    s->started = !error;
    s->over = error != 0;
    s->viewers++;              /* so that it outlives its last viewer until we are done here */
    for (unsigned i = 0; i < MAX_CHANNELS; i++) {
        struct viewer *v = &viewers[i];
        if (v->session != s)
            continue;
        if (error) {
            struct channel *c = v->channel;
            leave(v);
            channel_refuse(c, error, message);
        } else {
            announce(v);
        }
    }
    if (--s->viewers == 0 && error)
        forget(s);
}

static void status_ready(struct watch *w, uint32_t events)
{
    (void)events;
    started((struct session *)((char *)w - offsetof(struct session, status)));
}

bool session_reaped(pid_t pid, int status)
{
    for (unsigned i = 0; i < MAX_SESSIONS; i++) {
        struct session *s = &sessions[i];
        if (!s->used || s->pid != pid || s->reaped)
            continue;
        s->reaped = s->ready = true;
        s->wait_status = status;
        if (!s->started && s->status.fd >= 0)
            started(s);
        return true;
    }
    return false;
}

void sessions_hang_up(void)
{
    for (unsigned i = 0; i < MAX_SESSIONS; i++)
        if (sessions[i].used)
            watch_close(&sessions[i].terminal);
}

/* ---- opening ---- */

struct session *session_named(const char *name)
{
    for (unsigned i = 0; i < MAX_SESSIONS; i++)
        if (sessions[i].used && !sessions[i].over && strcmp(sessions[i].name, name) == 0)
            return &sessions[i];
    return NULL;
}

static int create(struct session **made, const char *name, struct launch *l, unsigned columns,
                  unsigned rows)
{
    struct session *s = NULL;
    for (unsigned i = 0; i < MAX_SESSIONS && !s; i++)
        if (!sessions[i].used)
            s = &sessions[i];
    if (!s)
        return EMFILE;
    memset(s, 0, sizeof *s);
    s->used = true;
    s->terminal = (struct watch){-1, terminal_ready};
    s->status = (struct watch){-1, status_ready};
    s->created = time(NULL);
    s->columns = (uint16_t)(columns ? columns : 80);
    s->rows = (uint16_t)(rows ? rows : 24);
    session_describe(s, name, l->argv);
    int slave, error = terminal_open(s, l->user, &slave);
    if (!error) {
        l->stdio[0] = l->stdio[1] = l->stdio[2] = slave;
        s->pid = spawn(l, &s->status.fd);
        error = s->pid < 0 ? -s->pid : -watch_add(&s->status, EPOLLIN | EPOLLET);
        close(slave);
    }
    if (!error)
        error = -watch_add(&s->terminal, EPOLLIN | EPOLLOUT | EPOLLET);
    if (error)
        forget(s);
    *made = s;
    return error;
}

void session_open(struct channel *c, struct reader *r)
{
    static char *env[MAX_ARGS], *argv[MAX_ARGS], dashed[264];
    static struct user user;
    launch_keep(r);
    unsigned flags = read_u8(r);
    char *name = read_str(r), *as = read_str(r), *cwd = read_str(r);
    read_list(r, env, MAX_ARGS);
    size_t count = read_list(r, argv, MAX_ARGS);
    unsigned columns = read_u16(r), rows = read_u16(r);
    if (!read_done(r) || flags & ~7u) {
        channel_refuse(c, EPROTO, "malformed SESSION");
        return;
    }
    if (!session_name_good(name)) {
        channel_refuse(c, EINVAL, "a session's name has at most 64 bytes, none of them a control");
        return;
    }
    struct session *s = *name ? session_named(name) : NULL;
    if (s && !(flags & 2)) {
        view(c, s, false);
        resize(s, columns, rows);
        return;
    }
    if (s || !(flags & 3)) {
        channel_refuse(c, s ? EEXIST : ENOENT, s ? "that session exists" : "no such session");
        return;
    }
    int error = user_find(as, &user);
    if (error) {
        channel_refuse(c, error, "no such user");
        return;
    }
    struct launch l = {.user = &user, .cwd = cwd, .file = argv[0], .argv = argv,
                       .terminal = true};
    if (!count) {
        const char *slash = strrchr(user.shell, '/');
        snprintf(dashed, sizeof dashed, "-%s", slash ? slash + 1 : user.shell);
        l.file = user.shell;
        argv[0] = dashed;
        argv[1] = NULL;
    }
    l.env = environment(&user, true, env);
    error = l.env ? create(&s, name, &l, columns, rows) : E2BIG;
    if (error)
        channel_refuse(c, error, "");
    else {
        s->passing = flags & 4;
        view(c, s, true);
    }
}

void sessions_list(struct channel *c, struct reader *r)
{
    if (!read_done(r)) {
        channel_refuse(c, EPROTO, "malformed SESSIONS");
        return;
    }
    uint32_t count = 0;
    uint8_t *start = out_begin(4 + MAX_SESSIONS * (sizeof(struct session) + 64)), *p = start + 4;
    for (unsigned i = 0; i < MAX_SESSIONS; i++) {
        struct session *s = &sessions[i];
        if (!s->used || !s->started || s->over)
            continue;
        p = add_str(p, s->name, strlen(s->name));
        p = add_u32(p, (uint32_t)s->pid);
        p = add_u16(p, s->columns);
        p = add_u16(p, s->rows);
        p = add_u16(p, s->viewers);
        p = add_u64(p, (uint64_t)s->created);
        p = add_str(p, s->command, strlen(s->command));
        count++;
    }
    put32(start, count);
    channel_reply(c, (size_t)(p - start));
}
