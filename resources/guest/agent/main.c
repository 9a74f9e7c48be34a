/* Where the agent starts: as init of a box, or as a service on a port or descriptor. */
#include "agent.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

bool is_init;
int null_fd = -1;
uint8_t agent_epoch[16];

void say(const char *format, ...)
{
    char line[256];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    if (n < 0)
        return;
    if (n > (int)sizeof line - 2)
        n = (int)sizeof line - 2;
    line[n++] = '\n';
    (void)!write(2, line, (size_t)n);
}

bool read_small(const char *path, char *into, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    ssize_t n = fd < 0 ? -1 : read(fd, into, size - 1);
    if (fd >= 0)
        close(fd);
    if (n < 0)
        return false;
    while (n && into[n - 1] == '\n')
        n--;
    into[n] = 0;
    return true;
}

bool write_small(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return false;
    bool ok = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    return close(fd) == 0 && ok;
}

void machine_random(void *into, size_t length)
{
    const unsigned no_wait = 4 /* GRND_INSECURE */, old_no_wait = 1 /* GRND_NONBLOCK */;
    if (syscall(SYS_getrandom, into, length, no_wait) == (long)length ||
        syscall(SYS_getrandom, into, length, old_no_wait) == (long)length)
        return;
    /* So early that the kernel has nothing yet: different is all that is asked for here. */
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t mixed = (uint64_t)t.tv_nsec * 0x9E3779B97F4A7C15u + (uint64_t)t.tv_sec;
    for (size_t i = 0; i < length; i++) {
        mixed = mixed * 6364136223846793005u + 1442695040888963407u;
        ((uint8_t *)into)[i] = (uint8_t)(mixed >> 56);
    }
}

/* Everything that keeps us answering while the guest around us is in trouble. */
void protect_self(void)
{
    bool protected = write_small("/proc/self/oom_score_adj", "-1000");
    spawn_setup(NULL, protected);
    /* Pages are locked as they are touched: no more memory than before, but never paged out. */
    if (geteuid() == 0)
        mlockall(MCL_CURRENT | MCL_FUTURE | 4 /* MCL_ONFAULT */);
    /* By number: musl's own function of that name only says ENOSYS. */
    const int priority = 1, reset_on_fork = 0x40000000;
    syscall(SYS_sched_setscheduler, 0, SCHED_RR | reset_on_fork, &priority);
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        if (is_init)
            files.rlim_max = 524288;
        files.rlim_cur = files.rlim_max < 16384 ? files.rlim_max : 16384;
        setrlimit(RLIMIT_NOFILE, &files);
    }
}

#ifndef BOXGROVE_FUZZ
/* 0, 1 and 2 are always taken, so that no pipe of ours ever gets one of these numbers. */
static void fill_stdio(void)
{
    int fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= 2)
        fd = open("/dev/null", O_RDWR);
    null_fd = fd;
    if (fd >= 0)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
}

static void start(int port)
{
    umask(022);
    fill_stdio();
    machine_random(agent_epoch, sizeof agent_epoch);
    stream_start();
    protect_self();
    loop_start(is_init);
    if (is_init) {
        int folders[2];
        limits_setup(folders);
        spawn_setup(folders, true);
    }
    if (port >= 0)
        port_use(port);
}

static int usage(void)
{
    say("usage: boxgrove-agent --fd NUMBER | --port NAME-OR-PATH");
    return 2;
}

static int serve(int argc, char **argv)
{
    int port = -1;
    if (argc != 3)
        return usage();
    if (strcmp(argv[1], "--fd") == 0) {
        port = atoi(argv[2]);
        if (port < 3 || fcntl(port, F_GETFD) < 0)
            return usage();
    } else if (strcmp(argv[1], "--port") == 0) {
        port = port_open(argv[2], 10000);
        if (port < 0) {
            say("boxgrove-agent: no port %s", argv[2]);
            return 1;
        }
    } else {
        return usage();
    }
    (void)!chdir("/");
    start(port);
    loop_run();
}

int main(int argc, char **argv)
{
    if (getpid() != 1)
        return serve(argc, argv);
    is_init = true;
    int port = boot();
    start(port);
    say("boxgrove: ready");
    loop_run();
}
#endif
