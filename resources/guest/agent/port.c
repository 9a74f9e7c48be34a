/* The descriptor to the host: reading, writing, and waiting while nobody is at the other end. */
#include "agent.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { READS = 32, FIRST_TRY_MS = 5, LAST_TRY_MS = 500 };

static struct watch port = {-1, NULL};
static uint32_t armed;
static bool ends_with_host;    /* a socket that is closed stays closed; a port is opened again */
static bool hung;              /* nobody is at the other end */
static unsigned try_ms;
static uint64_t try_at;

int port_find(const char *name, char *path, size_t size)
{
    DIR *folder = opendir("/sys/class/virtio-ports");
    int error = ENOENT;
    for (struct dirent *e; error && folder && (e = readdir(folder));) {
        char file[320], text[128];
        if (e->d_name[0] == '.')
            continue;
        snprintf(file, sizeof file, "/sys/class/virtio-ports/%s/name", e->d_name);
        if (!read_small(file, text, sizeof text) || strcmp(text, name) != 0)
            continue;
        snprintf(path, size, "/dev/%s", e->d_name);
        error = 0;
    }
    if (folder)
        closedir(folder);
    return error;
}

int port_open(const char *name_or_path, unsigned wait_ms)
{
    uint64_t until = now_ms() + wait_ms;
    for (;;) {
        char path[320];
        int fd = -1;
        if (strchr(name_or_path, '/'))
            fd = open(name_or_path, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
        else if (!port_find(name_or_path, path, sizeof path))
            fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
        if (fd >= 0 || now_ms() >= until)
            return fd;
        /* Devices appear without telling: there is nothing to wait on this early. */
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

/* ---- nobody there ---- */

/* A closed port reports a hang-up without end. Edge-triggered it reports each change once, so
 * a host that comes back is noticed at once; the timer is for drivers that forget to tell. */
static void hang(void)
{
    if (ends_with_host)
        _exit(0);
    if (!hung) {
        hung = true;
        try_ms = FIRST_TRY_MS;
        armed = EPOLLIN | EPOLLOUT | EPOLLET;
        watch_change(&port, armed);
    } else if (try_ms < LAST_TRY_MS) {
        try_ms = try_ms * 2 < LAST_TRY_MS ? try_ms * 2 : LAST_TRY_MS;
    }
    try_at = now_ms() + try_ms;
}

static void fill(void)
{
    for (int i = 0; i < READS; i++) {
        size_t room;
        uint8_t *at = in_room(&room);
        if (!room)
            return;
        ssize_t n = read(port.fd, at, room);
        if (n == 0) {
            hang();
            return;
        }
        if (n < 0) {
            if (errno == EAGAIN)
                hung = false;
            else if (errno != EINTR)
                hang();
            return;
        }
        hung = false;
        in_got((size_t)n);
        /* virtio hands out one page-sized buffer a read: a full page means that more may wait. */
        if ((size_t)n < room && n % 4096)
            return;
        stream_parse();
    }
}

static void port_ready(struct watch *w, uint32_t events)
{
    (void)w;
    if (hung || (events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
        fill();
}

int port_tick(void)
{
    if (!hung)
        return -1;
    uint64_t now = now_ms();
    if (now < try_at)
        return (int)(try_at - now);
    fill();
    port_rearm();
    return hung ? (int)try_ms : 0;
}

void port_use(int fd)
{
    struct stat s;
    port = (struct watch){fd, port_ready};
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    ends_with_host = !fstat(fd, &s) && !S_ISCHR(s.st_mode);
    armed = EPOLLIN;
    if (watch_add(&port, armed))
        _exit(1);
}

/* ---- output ---- */

static bool send_some(void)
{
    size_t length;
    const uint8_t *at = out_waiting(&length);
    if (!length)
        return false;
    ssize_t n = write(port.fd, at, length);
    /* The driver copies into one piece of kernel memory, which may not be there: ask for less. */
    if (n < 0 && errno == ENOMEM)
        n = write(port.fd, at, length < 2048 ? length : 2048);
    if (n < 0 && errno == ENOMEM)
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    if (n <= 0)
        return false;
    out_gone((size_t)n);
    return true;
}

bool port_flush(void)
{
    bool did = false;
    if (port.fd < 0 || hung)
        return false;
    while (send_some())
        did = true;
    return did;
}

void port_rearm(void)
{
    if (port.fd < 0 || hung)
        return;
    size_t waiting;
    out_waiting(&waiting);
    uint32_t want = (stream_stalled() ? 0 : EPOLLIN) | (waiting ? EPOLLOUT : 0);
    if (want != armed && watch_change(&port, want) == 0)
        armed = want;
}

void port_flush_within(unsigned ms)
{
    uint64_t until = now_ms() + ms, now;
    size_t waiting;
    while (port_flush(), out_waiting(&waiting), waiting && (now = now_ms()) < until) {
        struct pollfd p = {.fd = port.fd, .events = POLLOUT};
        if (poll(&p, 1, (int)(until - now)) <= 0 || (p.revents & (POLLHUP | POLLERR)))
            return;
    }
}
