/* SETUP: what a machine must be told after a boot, a restore or a fork: time, name, randomness. */
#include "agent.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define OUR_ADDRESS "127.0.1.1"

/* Whole or not at all: written beside the file, then renamed over it. */
static void replace_file(const char *path, const char *text, size_t length)
{
    char other[64];
    snprintf(other, sizeof other, "%s.boxgrove", path);
    int fd = open(other, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        return;
    bool ok = write(fd, text, length) == (ssize_t)length;
    if ((close(fd) || !ok) || rename(other, path))
        unlink(other);
}

/* Programs such as sudo look their own host up and wait when nobody knows it. */
static void hosts_entry(const char *name)
{
    static char old[16384], text[16384 + 256];
    size_t length = 0;
    bool there = false;
    if (!read_small("/etc/hosts", old, sizeof old)) {
        if (errno != ENOENT)
            return;
        strcpy(old, "127.0.0.1 localhost\n::1 localhost");
    } else if (strlen(old) == sizeof old - 1) {
        return;                /* not all of it: leave it alone */
    }
    char wanted[128];
    int n = snprintf(wanted, sizeof wanted, OUR_ADDRESS " %s", name);
    if (n < 0 || n >= (int)sizeof wanted)
        return;
    for (char *rest = old, *line; (line = strsep(&rest, "\n"));) {
        if (strcmp(line, wanted) == 0)
            there = true;
        else if (strncmp(line, OUR_ADDRESS, strlen(OUR_ADDRESS)) == 0 &&
                 strchr(" \t", line[strlen(OUR_ADDRESS)]))
            continue;
        length += (size_t)sprintf(text + length, "%s\n", line);
    }
    if (there)
        return;
    length += (size_t)sprintf(text + length, "%s\n", wanted);
    replace_file("/etc/hosts", text, length);
}

void machine_name(const char *name)
{
    if (sethostname(name, strlen(name)) == 0)
        hosts_entry(name);
}

void machine_id(const char *id)
{
    char line[33];
    memcpy(line, id, 32);
    line[32] = '\n';
    replace_file("/etc/machine-id", line, sizeof line);
}

static bool good_name(const char *name)
{
    size_t length = strlen(name);
    return length <= 63 && name[0] != '-' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._") ==
               length;
}

static bool good_id(const char *id)
{
    return !*id || (strlen(id) == 32 && strspn(id, "0123456789abcdef") == 32);
}

#ifndef BOXGROVE_FUZZ
static void mix_in(const char *entropy)
{
    size_t length = strlen(entropy);
    if (!length)
        return;
    int fd = open("/dev/urandom", O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return;
    const unsigned long reseed = 0x5207; /* RNDRESEEDCRNG: use it now, not some minutes later */
    (void)!write(fd, entropy, length);
    ioctl(fd, reseed);
    close(fd);
}
#endif

void setup_open(struct channel *c, struct reader *r)
{
    int64_t clock = (int64_t)read_u64(r);
    const char *name = read_str(r), *id = read_str(r), *entropy = read_str(r);
    (void)entropy;
    if (!read_done(r) || clock < 0 || !good_name(name) || !good_id(id)) {
        channel_refuse(c, EPROTO, "malformed SETUP");
        return;
    }
#ifndef BOXGROVE_FUZZ
    struct timespec t = {.tv_sec = clock / 1000000000, .tv_nsec = clock % 1000000000};
    if (clock && clock_settime(CLOCK_REALTIME, &t)) {
        channel_refuse(c, errno, "the clock cannot be set");
        return;
    }
    if (*name)
        machine_name(name);
    if (*id)
        machine_id(id);
    mix_in(entropy);
#endif
    out_begin(0);
    channel_reply(c, 0);
}
