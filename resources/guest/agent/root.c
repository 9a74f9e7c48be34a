/* From the ramdisk to the disk of the box: mount, grow, and give the memory of the ramdisk back. */
#include "agent.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#define NEW_ROOT "/newroot"

enum { WAIT_MS = 10000, SUPERBLOCK = 1024 };
#define AT_ONCE (32ull << 30)  /* bytes */

static int wait_for(const char *device)
{
    for (uint64_t until = now_ms() + WAIT_MS;;) {
        int fd = open(device, O_RDONLY | O_CLOEXEC);
        if (fd >= 0 || now_ms() >= until)
            return fd;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

/* The filesystem's size is compared first: asking ext4 to grow by nothing is not free. */
static void grow(int device)
{
    const unsigned long get_size = 0x80081272, resize = 0x40086610; /* BLKGETSIZE64, EXT4_IOC_… */
    uint8_t super[512];
    uint64_t bytes = 0;
    if (pread(device, super, sizeof super, SUPERBLOCK) != sizeof super ||
        get16(super + 56) != 0xEF53 || get32(super + 24) > 6 || ioctl(device, get_size, &bytes))
        return;
    unsigned shift = 10 + get32(super + 24);
    uint64_t now = get32(super + 4) | (uint64_t)get32(super + 0x150) << 32;
    uint64_t blocks = bytes >> shift;
    if (blocks < now + 1024)
        return;
    int fd = open(NEW_ROOT, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    /* What a box will need soon is there before it greets; a terabyte takes half a minute. */
    uint64_t soon = AT_ONCE >> shift, first = blocks < soon ? blocks : soon;
    if (now < first && ioctl(fd, resize, &first))
        say("boxgrove: cannot grow the disk: %s", strerror(errno));
    if (first < blocks && fork() == 0)
        _exit(ioctl(fd, resize, &blocks) ? 1 : 0);
    close(fd);
}

static void empty_folder(int fd, dev_t device)
{
    DIR *folder = fdopendir(fd);
    if (!folder) {
        close(fd);
        return;
    }
    for (struct dirent *e; (e = readdir(folder));) {
        struct stat s;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
            fstatat(fd, e->d_name, &s, AT_SYMLINK_NOFOLLOW) || s.st_dev != device)
            continue;
        if (!S_ISDIR(s.st_mode)) {
            unlinkat(fd, e->d_name, 0);
            continue;
        }
        int below = openat(fd, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (below >= 0)
            empty_folder(below, device);
        unlinkat(fd, e->d_name, AT_REMOVEDIR);
    }
    closedir(folder);
}

/* Only ever a ramdisk: if we are started from something else, nothing is deleted. */
static void empty_ramdisk(void)
{
    struct statfs kind;
    struct stat s;
    int fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstatfs(fd, &kind) || fstat(fd, &s) ||
        ((uint32_t)kind.f_type != 0x858458f6 && (uint32_t)kind.f_type != 0x01021994)) {
        close(fd);
        return;
    }
    empty_folder(fd, s.st_dev);
}

static void move_over(const char *path, const char *to)
{
    mkdir(to, 0755);
    if (mount(path, to, NULL, MS_MOVE, NULL))
        say("boxgrove: cannot move %s: %s", path, strerror(errno));
}

int root_mount(const char *device)
{
    int fd = wait_for(device);
    if (fd < 0) {
        say("boxgrove: cannot mount %s: it did not appear", device);
        return -1;
    }
    mkdir(NEW_ROOT, 0755);
    if (mount(device, NEW_ROOT, "ext4", MS_NOATIME, "discard,errors=remount-ro")) {
        say("boxgrove: cannot mount %s: %s", device, strerror(errno));
        close(fd);
        return -1;
    }
    grow(fd);
    close(fd);
    move_over("/dev", NEW_ROOT "/dev");
    move_over("/proc", NEW_ROOT "/proc");
    move_over("/sys", NEW_ROOT "/sys");
    if (chdir(NEW_ROOT))
        return -1;
    empty_ramdisk();
    if (mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/")) {
        say("boxgrove: cannot switch to %s: %s", device, strerror(errno));
        return -1;
    }
    return 0;
}
