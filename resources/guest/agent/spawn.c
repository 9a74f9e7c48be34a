/* Starting a process as somebody, somewhere, and finding out for certain whether it started. */
#include "agent.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <termios.h>
#include <unistd.h>

#ifndef SYS_clone3
#define SYS_clone3 435
#endif

enum stage { AT_USER = 1, AT_CWD, AT_EXEC, AT_TERMINAL };

/* What a child that could not become its command says through the status pipe. */
struct failure { int32_t stage, error; };

static int cgroups[2] = {-1, -1};
static bool was_protected;

void spawn_setup(const int folders[2], bool protected)
{
    if (folders)
        memcpy(cgroups, folders, sizeof cgroups);
    was_protected = protected;
}

/* The child reads its arguments from here: the stream's own buffer does not exist in it. */
void launch_keep(struct reader *r)
{
    static uint8_t kept[MAX_PAYLOAD];
    size_t length = (size_t)(r->end - r->at);
    memcpy(kept, r->at, length);
    *r = (struct reader){kept, kept + length, r->bad};
}

int pipe_pair(int ends[2])
{
    return pipe2(ends, O_CLOEXEC) ? -errno : 0;
}

#ifndef BOXGROVE_FUZZ
/* Straight into its cgroup: moving there later waits for an RCU grace period, which takes seconds
 * just when the guest is busiest. */
static pid_t fork_for_work(bool *move)
{
    static bool lacking;
    *move = false;
    for (int i = 0; i < 2 && cgroups[i] >= 0 && !lacking; i++) {
        const uint64_t into_cgroup = 0x200000000ull;
        uint64_t args[11] = {[0] = into_cgroup, [4] = SIGCHLD, [10] = (uint64_t)cgroups[i]};
        long pid = syscall(SYS_clone3, args, sizeof args);
        if (pid >= 0)
            return (pid_t)pid;
        lacking = errno == ENOSYS || errno == EINVAL || errno == E2BIG;
    }
    *move = lacking && cgroups[0] >= 0;
    return fork();
}

static void become_ordinary(bool move)
{
    int fd;
    if (move && (fd = openat(cgroups[0], "cgroup.procs", O_WRONLY | O_CLOEXEC)) >= 0) {
        (void)!write(fd, "0", 1);
        close(fd);
    }
    if (was_protected && (fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC)) >= 0) {
        (void)!write(fd, "0", 1);
        close(fd);
    }
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur > 1024) {
        files.rlim_cur = 1024;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static int become_user(const struct user *u)
{
    if (geteuid() != 0)
        return u->uid == geteuid() ? 0 : EPERM;
    if (setgroups(u->group_count, u->groups) || setgid(u->gid) || setuid(u->uid))
        return errno;
    return 0;
}

static int go_to(const struct launch *l)
{
    if (*l->cwd)
        return chdir(l->cwd) ? errno : 0;
    if (chdir(l->user->home) && chdir("/"))
        return errno;
    return 0;
}

/* Like execvpe, but with the PATH of the new environment and no shell for unknown formats. */
static int become_command(const struct launch *l)
{
    if (!*l->file)
        return ENOENT;
    if (strchr(l->file, '/')) {
        execve(l->file, l->argv, l->env);
        return errno;
    }
    static char candidate[MAX_PATH * 2];
    const char *path = environment_get(l->env, "PATH");
    int error = ENOENT;
    for (path = path ? path : "/bin:/usr/bin"; path; path = strchr(path, ':')) {
        path += *path == ':';
        int length = (int)strcspn(path, ":");
        int n = snprintf(candidate, sizeof candidate, "%.*s%s%s", length, path,
                         length ? "/" : "./", l->file);
        if (n < (int)sizeof candidate) {
            execve(candidate, l->argv, l->env);
            if (errno == EACCES)
                error = EACCES;
            else if (errno != ENOENT && errno != ENOTDIR)
                return errno;
        }
    }
    return error;
}

static void child(const struct launch *l, int status_fd, bool move)
{
    struct failure f = {0};
    setsid();
    become_ordinary(move);
    for (int i = 0; i < 3; i++)
        dup2(l->stdio[i], i);
    if (l->terminal && ioctl(0, TIOCSCTTY, 0))
        f = (struct failure){AT_TERMINAL, errno};
    if (!f.error && (f.error = become_user(l->user)))
        f.stage = AT_USER;
    if (!f.error && (f.error = go_to(l)))
        f.stage = AT_CWD;
    if (!f.error) {
        f.error = become_command(l);
        f.stage = AT_EXEC;
    }
    (void)!write(status_fd, &f, sizeof f);
    _exit(127);
}
#endif

pid_t spawn(const struct launch *l, int *status_fd)
{
    int ends[2], error = pipe_pair(ends);
    if (error)
        return error;
#ifdef BOXGROVE_FUZZ
    pid_t pid = fuzz_fork(l, ends[1]);
#else
    bool move;
    pid_t pid = fork_for_work(&move);
    if (pid == 0)
        child(l, ends[1], move);
#endif
    error = errno;
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return -error;
    }
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    *status_fd = ends[0];
    return pid;
}

int spawn_result(int status_fd, char *message, size_t size)
{
    struct failure f;
    ssize_t n = read(status_fd, &f, sizeof f);
    message[0] = 0;
    if (n < 0)
        return errno;
    if (n < (ssize_t)sizeof f)
        return 0;
    const char *where = f.stage == AT_USER ? "cannot become that user: "
                        : f.stage == AT_CWD ? "cannot go to the working folder: "
                        : f.stage == AT_TERMINAL ? "no terminal: " : "";
    snprintf(message, size, "%s%s", where, strerror(f.error));
    return f.error && f.error != EAGAIN ? f.error : EIO;
}
