/* One thread, one epoll: descriptors, signals, the dead, and the order in which things move on. */
#include "agent.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS = 64, REAP_AT_ONCE = 16, REAP_PAUSE_MS = 2, MAX_DRAINS = 512, DRAIN_PAUSE_MS = 10 };

static int epoll_fd = -1;
static struct watch signals = {-1, NULL};
static bool dead_left, busy;
static uint64_t reap_at;       /* not before this; 0: at once */

uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Watches live in fixed tables, never on the heap: an event that was already collected for one
 * that is closed meanwhile finds fd -1 or, at worst, wakes its successor for nothing. */
int watch_add(struct watch *w, uint32_t events)
{
    struct epoll_event e = {.events = events, .data.ptr = w};
    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, w->fd, &e) ? -errno : 0;
}

int watch_change(struct watch *w, uint32_t events)
{
    struct epoll_event e = {.events = events, .data.ptr = w};
    return epoll_ctl(epoll_fd, EPOLL_CTL_MOD, w->fd, &e) ? -errno : 0;
}

void watch_close(struct watch *w)
{
    if (w->fd >= 0)
        close(w->fd);
    w->fd = -1;
}

/* ---- output that nobody wants any more ---- */

static struct drain { struct watch w; bool paused; } drains[MAX_DRAINS];
static unsigned drains_used;
static uint64_t drains_due;    /* 0: none is paused */

/* One gulp, then a pause: a process that floods nobody must not cost us the processor. */
static void drain_ready(struct watch *w, uint32_t events)
{
    static char waste[65536];
    struct drain *d = (struct drain *)w;
    (void)events;
    ssize_t n = 0;
    for (int i = 0; i < 4 && (n = read(w->fd, waste, sizeof waste)) == sizeof waste; i++)
        ;
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
        watch_close(w);
        while (drains_used && drains[drains_used - 1].w.fd < 0)
            drains_used--;
        return;
    }
    d->paused = true;
    if (!drains_due)
        drains_due = now_ms() + DRAIN_PAUSE_MS;
}

void drain_take(struct watch *w)
{
    int fd = w->fd;
    w->fd = -1;
    if (fd < 0)
        return;
    unsigned i = 0;
    while (i < drains_used && drains[i].w.fd >= 0)
        i++;
    if (i == MAX_DRAINS) {
        close(fd);             /* its writer learns the hard way */
        return;
    }
    if (i == drains_used)
        drains_used++;
    drains[i] = (struct drain){.w = {fd, drain_ready}};
    if (watch_change(&drains[i].w, EPOLLIN | EPOLLONESHOT))
        watch_close(&drains[i].w);
}

static int drains_tick(void)
{
    if (!drains_due)
        return -1;
    uint64_t now = now_ms();
    if (now < drains_due)
        return (int)(drains_due - now);
    drains_due = 0;
    for (unsigned i = 0; i < drains_used; i++)
        if (drains[i].w.fd >= 0 && drains[i].paused) {
            drains[i].paused = false;
            watch_change(&drains[i].w, EPOLLIN | EPOLLONESHOT);
        }
    return -1;
}

/* ---- signals and the dead ---- */

/* A few at a time, then a pause: we run before everybody else, and with thousands of children a
 * wait is slow. The dead that wait hold their place in pids.max, which slows their maker down. */
static void reap(void)
{
    dead_left = false;
    reap_at = 0;
    for (int i = 0; i < REAP_AT_ONCE; i++) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid <= 0)
            return;
        if (!exec_reaped(pid, status))
            session_reaped(pid, status);
    }
    dead_left = true;
    reap_at = now_ms() + REAP_PAUSE_MS;
}

/* Milliseconds until the next of the dead are due; -1: there are none. */
static int reap_wait(void)
{
    uint64_t now = dead_left && reap_at ? now_ms() : 0;
    return !dead_left ? -1 : now < reap_at ? (int)(reap_at - now) : 0;
}

static void signal_came(int number)
{
    if (number == SIGCHLD)
        dead_left = true;
    else if (!is_init)
        _exit(0);
    else if (number == SIGUSR1 || number == SIGUSR2 || number == SIGPWR ||
             number == SIGRTMIN + 4 || number == SIGRTMIN + 3)
        power_request(POWER_OFF);
    else
        power_request(POWER_REBOOT);
}

static void signals_ready(struct watch *w, uint32_t events)
{
    struct signalfd_siginfo info[8];
    (void)events;
    ssize_t n = read(w->fd, info, sizeof info);
    for (ssize_t i = 0; i < n / (ssize_t)sizeof *info; i++)
        signal_came((int)info[i].ssi_signo);
}

static void no_op(int number)
{
    (void)number;
}

void loop_start(bool init)
{
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    for (unsigned i = 0; i < MAX_DRAINS; i++)
        drains[i].w.fd = -1;
    for (int i = 1; i < 65; i++)
        if (i != SIGSEGV && i != SIGBUS && i != SIGFPE && i != SIGILL) /* the sanitizers' own */
            signal(i, SIG_DFL);
    /* A handler that does nothing, not "ignore": it is gone in a child once that runs a command. */
    signal(SIGPIPE, no_op);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    if (init) {
        const int more[] = {SIGINT, SIGUSR1, SIGUSR2, SIGPWR, SIGRTMIN + 3, SIGRTMIN + 4,
                            SIGRTMIN + 5};
        for (unsigned i = 0; i < sizeof more / sizeof *more; i++)
            sigaddset(&set, more[i]);
    }
    sigprocmask(SIG_SETMASK, &set, NULL);
    signals = (struct watch){signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), signals_ready};
    if (epoll_fd < 0 || signals.fd < 0 || watch_add(&signals, EPOLLIN))
        abort();
}

/* ---- the loop ---- */

/* Input, processes, output: a few rounds, then a look at the descriptors again. */
static bool work(void)
{
    if (reap_wait() == 0)
        reap();
    for (int round = 0; round < 8; round++) {
        bool more = stream_parse();
        more |= sessions_pump();
        more |= channels_pump();
        more |= port_flush();
        if (!more)
            return false;
    }
    return true;
}

static int sooner(int a, int b)
{
    return a < 0 ? b : b < 0 ? a : a < b ? a : b;
}

void loop_once(int most_ms)
{
    struct epoll_event events[EVENTS];
    int wait = most_ms;
    if (busy) {
        wait = 0;
    } else {
        wait = sooner(wait, drains_tick());
        wait = sooner(wait, port_tick());
        wait = sooner(wait, reap_wait());
    }
    int n = epoll_wait(epoll_fd, events, EVENTS, wait);
    for (int i = 0; i < n; i++) {
        struct watch *w = events[i].data.ptr;
        if (w->fd >= 0)
            w->ready(w, events[i].events);
    }
    busy = work();
    port_rearm();
}

void loop_run(void)
{
    for (;;)
        loop_once(-1);
}
