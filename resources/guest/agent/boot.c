/* The first process: filesystems, drivers, the box's disk, its name; then either the agent goes
 * on as init, or it steps aside for the image's own. */
#include "agent.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PORT_NAME "boxgrove.agent"

static char command_line[4096];

static void mount_at(const char *path, const char *kind, unsigned long flags, const char *data)
{
    mkdir(path, 0755);
    if (mount(kind, path, kind, flags, data) && errno != EBUSY)
        say("boxgrove: cannot mount %s: %s", path, strerror(errno));
}

/* The value of `key` on the kernel's command line; NULL: not there. */
static const char *option(const char *key, char *value, size_t size)
{
    size_t length = strlen(key);
    for (const char *at = command_line; *at;) {
        at += strspn(at, " ");
        size_t word = strcspn(at, " ");
        if (word > length && strncmp(at, key, length) == 0 && at[length] == '=' &&
            word - length - 1 < size) {
            memcpy(value, at + length + 1, word - length - 1);
            value[word - length - 1] = 0;
            return value;
        }
        at += word;
    }
    return NULL;
}

static void load_module(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t length = strlen(path);
    bool plain = length > 3 && strcmp(path + length - 3, ".ko") == 0;
    const int compressed = 4; /* MODULE_INIT_COMPRESSED_FILE */
    if (fd < 0 || (syscall(SYS_finit_module, fd, "", plain ? 0 : compressed) && errno != EEXIST))
        say("boxgrove: cannot load %s: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
}

static void load_modules(void)
{
    static char list[16384];
    if (!read_small("/modules.list", list, sizeof list))
        return;
    for (char *rest = list, *path; (path = strsep(&rest, "\n"));)
        if (*path && *path != '#')
            load_module(path);
}

static void open_console(void)
{
    int fd = open("/dev/console", O_RDWR | O_NOCTTY);
    if (fd < 0)
        return;
    for (int i = 0; i < 3; i++)
        if (fd != i)
            dup2(fd, i);
    if (fd > 2)
        close(fd);
}

static void loopback_up(void)
{
    struct ifreq request = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    if (ioctl(fd, SIOCGIFFLAGS, &request) == 0) {
        request.ifr_flags |= IFF_UP | IFF_RUNNING;
        ioctl(fd, SIOCSIFFLAGS, &request);
    }
    close(fd);
}

static void new_machine_id(void)
{
    struct stat s;
    if (stat("/etc/machine-id", &s) || s.st_size > 0)
        return;
    uint8_t random[16];
    char id[33];
    machine_random(random, sizeof random);
    for (int i = 0; i < 16; i++)
        snprintf(id + 2 * i, 3, "%02x", random[i]);
    machine_id(id);
}

static void settle(void)
{
    char name[256];
    mount_at("/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "gid=5,mode=620,ptmxmode=666");
    mount_at("/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777");
    mount_at("/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=20%");
    mount_at("/sys/fs/cgroup", "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    if (option("boxgrove.hostname", name, sizeof name))
        machine_name(name);
    new_machine_id();
    loopback_up();
}

/* The image's own init becomes process 1 and the agent its first child, on the port as before.
 * If that init cannot run after all we stay what we are: a box that answers can be mended. */
static void step_aside(const char *init)
{
    if (access(init, X_OK)) {
        say("boxgrove: cannot run %s: %s", init, strerror(errno));
        return;
    }
    pid_t agent = fork();
    if (agent == 0) {
        setsid();
        is_init = false;
        return;
    }
    execl(init, init, (char *)NULL);
    say("boxgrove: cannot run %s: %s", init, strerror(errno));
    if (agent > 0) {
        kill(agent, SIGKILL);
        waitpid(agent, NULL, 0);
    }
}

int boot(void)
{
    char value[256];
    umask(022);
    mount_at("/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    mount_at("/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    mount_at("/dev", "devtmpfs", MS_NOSUID, "mode=755");
    open_console();
    reboot(RB_DISABLE_CAD);
    read_small("/proc/cmdline", command_line, sizeof command_line);
    load_modules();
    int port = port_open(PORT_NAME, 0);
    bool wanted = option("boxgrove.root", value, sizeof value);
    bool rooted = wanted && root_mount(value) == 0;
    if (wanted && !rooted)
        reboot(RB_POWER_OFF);  /* no box without its disk; the host reads why on the console */
    settle();
    if (port < 0)
        port = port_open(PORT_NAME, 10000);
    if (port < 0)
        say("boxgrove: no port " PORT_NAME);
    if (rooted && option("boxgrove.init", value, sizeof value))
        step_aside(value);
    return port;
}
