/* The fence around everything that runs for the user: its processes cannot take the last of
 * the memory or of the process numbers, which the agent needs to stop the box. */
#include "agent.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#define CGROUP "/sys/fs/cgroup"

static void set_number(const char *path, unsigned long long value)
{
    char text[32];
    snprintf(text, sizeof text, "%llu", value);
    write_small(path, text);
}

/* Memory is bounded for all of them together; processes in `main`, with some spare ones beside it
 * so that a command can still be run when `main` is full. Only leaves may hold processes. */
void limits_setup(int folders[2])
{
    char text[32];
    struct sysinfo info;
    folders[0] = folders[1] = -1;
    /* Every command and terminal is a session: one that floods the processor leaves the others
     * their share. */
    write_small("/proc/sys/kernel/sched_autogroup_enabled", "1");
    if (mkdir(CGROUP "/work", 0755) && access(CGROUP "/work", F_OK))
        return;
    write_small(CGROUP "/cgroup.subtree_control", "+pids");
    write_small(CGROUP "/cgroup.subtree_control", "+memory");
    write_small(CGROUP "/work/cgroup.subtree_control", "+pids");
    mkdir(CGROUP "/work/main", 0755);
    mkdir(CGROUP "/work/spare", 0755);
    sysinfo(&info);
    unsigned long long total = (unsigned long long)info.totalram * info.mem_unit;
    unsigned long long spared = total * 6 / 100, least = 24ull << 20;
    spared = spared < least ? least : spared;
    if (total > spared * 2)
        set_number(CGROUP "/work/memory.max", total - spared);
    unsigned long long processes = (total >> 20) * 4; /* each costs 100 KiB and more */
    if (read_small("/proc/sys/kernel/threads-max", text, sizeof text)) {
        unsigned long long most = strtoull(text, NULL, 10) * 8 / 10;
        processes = most < processes ? most : processes;
    }
    set_number(CGROUP "/work/main/pids.max", processes < 30000 ? processes : 30000);
    set_number(CGROUP "/work/spare/pids.max", 64);
    folders[0] = open(CGROUP "/work/main", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    folders[1] = open(CGROUP "/work/spare", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}
