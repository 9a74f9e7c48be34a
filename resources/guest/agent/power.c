/* Ending the box: everybody is asked, then made, to leave; what is written is kept.
 * Nothing here forks or allocates, so it works when the guest has nothing left. */
#include "agent.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ASK_MS = 2000, MAKE_MS = 3000, STEP_MS = 20 };

/* As init every process ends up as our child, so "no child" means that nobody is left. */
static bool nobody_left(void)
{
    pid_t pid;
    while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
        ;
    return pid < 0 && errno == ECHILD;
}

static bool wait_for_all(unsigned ms, int again)
{
    sigset_t dead;
    sigemptyset(&dead);
    sigaddset(&dead, SIGCHLD);
    const struct timespec step = {.tv_nsec = STEP_MS * 1000000L};
    for (uint64_t until = now_ms() + ms; now_ms() < until;) {
        if (nobody_left())
            return true;
        if (again)
            sys_kill(-1, again);
        sigtimedwait(&dead, NULL, &step);
    }
    return nobody_left();
}

void power_now(enum power how)
{
    port_flush_within(300);
    sys_kill(-1, SIGTERM);
    sys_kill(-1, SIGCONT);
    sessions_hang_up();        /* shells at a prompt do not care for SIGTERM */
    if (!wait_for_all(ASK_MS, 0) && !wait_for_all(MAKE_MS, SIGKILL))
        say("boxgrove: some processes could not be ended");
    channels_drop_all();       /* closes what was being written */
    sync();
    if (mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY, NULL) && errno == EBUSY)
        write_small("/proc/sysrq-trigger", "u");
    say(how == POWER_REBOOT ? "boxgrove: rebooting" : "boxgrove: powering off");
    reboot(how == POWER_REBOOT ? RB_AUTOBOOT : RB_POWER_OFF);
    for (;;)
        pause();
}

#ifndef BOXGROVE_FUZZ
static void ask_init(enum power how)
{
    static char *arguments[2], *none[1];
    static struct user root = {.home = "/", .groups = {0}, .group_count = 1};
    arguments[0] = how == POWER_REBOOT ? "/sbin/reboot" : "/sbin/poweroff";
    struct launch l = {.user = &root, .cwd = "/", .file = arguments[0], .argv = arguments,
                       .env = none, .stdio = {null_fd, null_fd, null_fd}};
    int status_fd;
    if (spawn(&l, &status_fd) > 0)
        close(status_fd);
}

void power_request(enum power how)
{
    uint8_t what = how == POWER_REBOOT ? 1 : 2;
    out_frame(T_EVENT, 0, &what, 1);
    if (is_init)
        power_now(how);
    ask_init(how);
}
#endif

void power_open(struct channel *c, struct reader *r)
{
    unsigned how = read_u8(r);
    if (!read_done(r) || how > POWER_REBOOT) {
        channel_refuse(c, EPROTO, "malformed POWER");
        return;
    }
    out_begin(0);
    channel_reply(c, 0);
    power_request(how);
}
