/* METRICS and STAT: what the guest is doing, and what lies at a path. */
#include "agent.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { UPTIME, CPUS, BUSY, TOTAL, MEMORY, AVAILABLE, DISK, FREE, PROCESSES, LOAD, COUNT };

static void read_cpu(uint64_t *values)
{
    static char text[32768];
    char *at = text;
    if (!read_small("/proc/stat", text, sizeof text) || strncmp(at, "cpu ", 4) != 0)
        return;
    uint64_t ticks[8] = {0}, all = 0;
    at += 4;
    for (int i = 0; i < 8; i++) {
        ticks[i] = strtoull(at, &at, 10);
        all += ticks[i];
    }
    uint64_t idle = ticks[3] + ticks[4];
    long a_second = sysconf(_SC_CLK_TCK);
    uint64_t ms = 1000 / (uint64_t)(a_second > 0 && a_second <= 1000 ? a_second : 100);
    values[BUSY] = (all - idle) * ms;
    values[TOTAL] = all * ms;
    for (char *line = at; (line = strstr(line, "\ncpu")); line += 4)
        values[CPUS]++;
}

static uint64_t kib_after(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    return at ? strtoull(at + strlen(key), NULL, 10) * 1024 : 0;
}

static uint64_t count_processes(void)
{
    uint64_t count = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *e; proc && (e = readdir(proc));)
        count += e->d_name[0] >= '1' && e->d_name[0] <= '9';
    if (proc)
        closedir(proc);
    return count;
}

void metrics_open(struct channel *c, struct reader *r)
{
    static char text[4096];
    uint64_t values[COUNT] = {0};
    struct statvfs disk;
    if (!read_done(r)) {
        channel_refuse(c, EPROTO, "malformed METRICS");
        return;
    }
    if (read_small("/proc/uptime", text, sizeof text))
        values[UPTIME] = (uint64_t)(strtod(text, NULL) * 1000);
    read_cpu(values);
    if (read_small("/proc/meminfo", text, sizeof text)) {
        values[MEMORY] = kib_after(text, "MemTotal:");
        values[AVAILABLE] = kib_after(text, "MemAvailable:");
    }
    if (statvfs("/", &disk) == 0) {
        values[DISK] = (uint64_t)disk.f_blocks * disk.f_frsize;
        values[FREE] = (uint64_t)disk.f_bavail * disk.f_frsize;
    }
    values[PROCESSES] = count_processes();
    if (read_small("/proc/loadavg", text, sizeof text))
        values[LOAD] = (uint64_t)(strtod(text, NULL) * 100 + 0.5);
    uint8_t *start = out_begin(4 + sizeof values), *p = add_u32(start, COUNT);
    memcpy(p, values, sizeof values);
    channel_reply(c, 4 + sizeof values);
}

void stat_open(struct channel *c, struct reader *r)
{
    static char target[MAX_PATH];
    unsigned flags = read_u8(r);
    const char *path = read_str(r);
    struct stat s;
    if (!read_done(r) || flags & ~1u) {
        channel_refuse(c, EPROTO, "malformed STAT");
        return;
    }
    if (*path != '/') {
        channel_refuse(c, EINVAL, "the path is not absolute");
        return;
    }
    path = sys_path(path);
    if (fstatat(AT_FDCWD, path, &s, flags & 1 ? 0 : AT_SYMLINK_NOFOLLOW)) {
        channel_refuse(c, errno, "");
        return;
    }
    ssize_t length = S_ISLNK(s.st_mode) ? readlink(path, target, sizeof target) : 0;
    uint64_t size = S_ISCHR(s.st_mode) || S_ISBLK(s.st_mode)
                        ? (uint64_t)major(s.st_rdev) << 32 | minor(s.st_rdev)
                        : (uint64_t)s.st_size;
    uint8_t *start = out_begin(64 + sizeof target), *p = start;
    p = add_u8(p, entry_type(s.st_mode));
    p = add_u32(p, s.st_mode & 07777);
    p = add_u32(p, s.st_uid);
    p = add_u32(p, s.st_gid);
    p = add_u64(p, size);
    p = add_u64(p, (uint64_t)s.st_mtim.tv_sec);
    p = add_u32(p, (uint32_t)s.st_mtim.tv_nsec);
    p = add_str(p, target, length > 0 ? (size_t)length : 0);
    channel_reply(c, (size_t)(p - start));
}
