/* Putting entries of an archive on the disk: never outside its root, never half a file. */
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { FOLDER = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC };

bool place_failed(struct place *p, const char *path, const char *why)
{
    snprintf(p->message, sizeof p->message, "%.300s: %s", *path ? path : p->root_name, why);
    return false;
}

static bool failed(struct place *p, const char *path)
{
    return place_failed(p, path, strerror(errno));
}

int place_start(struct place *p, const char *path)
{
    static char folder[MAX_PATH];
    size_t length = strlen(path);
    p->above = p->root = p->parent = p->file = p->file_folder = -1;
    while (length > 1 && path[length - 1] == '/')
        length--;
    if (length >= sizeof folder)
        return ENAMETOOLONG;
    memcpy(folder, path, length);
    folder[length] = 0;
    char *slash = strrchr(folder, '/');
    const char *name = slash + 1;
    if (strlen(name) >= sizeof p->root_name)
        return ENAMETOOLONG;
    strcpy(p->root_name, *name ? name : ".");
    if (strcmp(name, "..") == 0)
        return EINVAL;
    slash[slash == folder] = 0;
    p->above = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return p->above < 0 ? errno : 0;
}

void place_release(struct place *p)
{
    if (p->file >= 0)
        place_file_done(p, false);
    if (p->parent >= 0 && p->parent != p->root)
        close(p->parent);
    if (p->root >= 0)
        close(p->root);
    if (p->above >= 0)
        close(p->above);
    p->parent = p->root = p->above = -1;
}

/* ---- finding the way ---- */

static bool good_path(const char *path)
{
    for (const char *part = path;; part++) {
        size_t length = strcspn(part, "/");
        if (!length || length > 255 || strncmp(part, ".", length) == 0 ||
            (length == 2 && strncmp(part, "..", 2) == 0))
            return false;
        part += length;
        if (!*part)
            return true;
    }
}

static int walk(int from, const char *path)
{
    static char part[256];
    int at = from;
    while (*path) {
        size_t length = strcspn(path, "/");
        memcpy(part, path, length);
        part[length] = 0;
        path += length + (path[length] == '/');
        int next = openat(at, part, FOLDER);
        int error = errno;
        if (at != from)
            close(at);
        errno = error;
        if (next < 0)
            return -1;
        at = next;
    }
    return at == from ? dup(from) : at;
}

/* The folder that holds `path` (kept for the next entry: they come in bunches) and its name. */
static int folder_of(struct place *p, const char *path, const char **name)
{
    static char above[MAX_PATH];
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) : 0;
    *name = slash ? slash + 1 : path;
    if (!*path) {
        *name = p->root_name;
        return p->above;
    }
    if (p->root < 0) {
        errno = ENOTDIR;
        return -1;
    }
    if (p->parent >= 0 && strlen(p->parent_path) == length &&
        memcmp(p->parent_path, path, length) == 0)
        return p->parent;
    memcpy(above, path, length);
    above[length] = 0;
    size_t known = p->parent >= 0 ? strlen(p->parent_path) : 0;
    bool below = known && known < length && above[known] == '/' &&
                 memcmp(above, p->parent_path, known) == 0;
    int found = below ? walk(p->parent, above + known + 1) : walk(p->root, above);
    if (found < 0)
        return -1;
    if (p->parent >= 0)
        close(p->parent);
    p->parent = found;
    memcpy(p->parent_path, above, length + 1);
    return found;
}

/* ---- attributes ---- */

static void owner_of(const struct place *p, uint32_t *uid, uint32_t *gid)
{
    if (p->keep_owner)
        return;
    *uid = p->set_owner ? p->uid : geteuid();
    *gid = p->set_owner ? p->gid : getegid();
}

static bool give(int fd, uint32_t uid, uint32_t gid, uint32_t mode)
{
    struct stat s;
    if (fstat(fd, &s))
        return false;
    if ((s.st_uid != uid || s.st_gid != gid) && fchown(fd, uid, gid))
        return false;
    return fchmod(fd, mode & 07777) == 0;
}

static void set_time(int fd, int64_t seconds, uint32_t nanoseconds)
{
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT},
                                {.tv_sec = (time_t)seconds, .tv_nsec = (long)nanoseconds}};
    futimens(fd, times);
}

static bool folder_finish(struct place *p)
{
    struct later *l = &p->folders[--p->depth];
    const char *name;
    p->folder_path[l->path_length] = 0;
    int folder = folder_of(p, p->folder_path, &name);
    /* The root may be reached through a link: that is what its path says. */
    int follow = l->path_length ? O_NOFOLLOW : 0;
    int fd = folder < 0 ? -1 : openat(folder, name, O_RDONLY | O_DIRECTORY | follow | O_CLOEXEC);
    if (fd < 0)
        return failed(p, p->folder_path);
    bool ok = give(fd, l->uid, l->gid, l->mode);
    if (!ok)
        failed(p, p->folder_path);
    set_time(fd, l->seconds, l->nanoseconds);
    close(fd);
    return ok;
}

/* Folders that `path` is not in are complete, as far as an archive in order goes. */
static bool leave_folders(struct place *p, const char *path)
{
    while (p->depth) {
        size_t length = p->folders[p->depth - 1].path_length;
        if (!length || (strncmp(path, p->folder_path, length) == 0 && path[length] == '/'))
            return true;
        if (!folder_finish(p))
            return false;
    }
    return true;
}

/* ---- entries ---- */

static void temporary_name(struct place *p)
{
    static uint64_t number;
    if (!number)
        machine_random(&number, sizeof number);
    snprintf(p->temporary, sizeof p->temporary, ".boxgrove-%016llx", (unsigned long long)++number);
}

static bool start_file(struct place *p, const struct entry *e, int folder, const char *name)
{
    temporary_name(p);
    p->file = openat(folder, p->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                     0600);
    if (p->file < 0)
        return failed(p, e->path);
    p->file_folder = folder;   /* stays open: the next entry comes only after this file */
    p->pending = *e;
    strcpy(p->file_name, name);
    bulk_begin(p, e->size);
    return true;
}

bool place_bytes(struct place *p, const uint8_t *data, size_t length)
{
    return bulk_write(p, data, length) || failed(p, p->file_name);
}

bool place_file_done(struct place *p, bool keep)
{
    struct entry *e = &p->pending;
    bool ok = bulk_end(p, keep);
    if (keep && !ok)
        failed(p, p->file_name);
    if (keep && ok) {
        owner_of(p, &e->uid, &e->gid);
        ok = give(p->file, e->uid, e->gid, e->mode);
        if (ok) {
            set_time(p->file, e->seconds, e->nanoseconds);
            ok = renameat(p->file_folder, p->temporary, p->file_folder, p->file_name) == 0;
        }
        if (!ok)
            failed(p, p->file_name);
    }
    close(p->file);
    p->file = -1;
    if (!keep || !ok)
        unlinkat(p->file_folder, p->temporary, 0);
    return ok;
}

/* A folder that was there keeps its own attributes, unless the archive is an image of a system. */
static bool make_folder(struct place *p, const struct entry *e, int folder, const char *name)
{
    struct stat s;
    bool new = mkdirat(folder, name, 0700) == 0;
    if (!new) {
        if (errno != EEXIST)
            return failed(p, e->path);
        int look = *e->path ? AT_SYMLINK_NOFOLLOW : 0;
        if (fstatat(folder, name, &s, look))
            return failed(p, e->path);
        if (S_ISLNK(s.st_mode)) {
            if (unlinkat(folder, name, 0) || mkdirat(folder, name, 0700))
                return failed(p, e->path);
            new = true;
        } else if (!S_ISDIR(s.st_mode)) {
            errno = ENOTDIR;
            return failed(p, e->path);
        }
    }
    if (p->depth == PUT_DEPTH)
        return place_failed(p, e->path, "too deep");
    if (new || p->keep_owner) {
        struct later l = {strlen(e->path), e->mode, e->uid, e->gid, e->nanoseconds, e->seconds};
        owner_of(p, &l.uid, &l.gid);
        p->folders[p->depth++] = l;
        strcpy(p->folder_path, e->path);
    }
    if (!*e->path) {
        p->root = openat(folder, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (p->root < 0)
            return failed(p, e->path);
    }
    return true;
}

/* Links and devices: made under another name, then renamed over what is there. */
static bool make_other(struct place *p, const struct entry *e, int folder, const char *name)
{
    uint32_t uid = e->uid, gid = e->gid;
    const char *other;
    int made, from;
    owner_of(p, &uid, &gid);
    temporary_name(p);
    if (e->type == 'l') {
        made = sys_symlinkat(e->target, folder, p->temporary);
    } else if (e->type == 'h') {
        folder = dup(folder);  /* looking the target up may let go of it */
        from = good_path(e->target) ? folder_of(p, e->target, &other) : (errno = EINVAL, -1);
        made = from < 0 ? -1 : linkat(from, other, folder, p->temporary, 0);
    } else {
        mode_t kind = e->type == 'c' ? S_IFCHR : e->type == 'b' ? S_IFBLK : S_IFIFO;
        dev_t device = makedev((unsigned)(e->size >> 32), (unsigned)e->size);
        mode_t mask = umask(0);
        made = mknodat(folder, p->temporary, kind | (e->mode & 07777),
                       kind == S_IFIFO ? 0 : device);
        umask(mask);
    }
    bool ok = made == 0;
    if (ok && e->type != 'h') {
        const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT},
                                          {(time_t)e->seconds, (long)e->nanoseconds}};
        ok = fchownat(folder, p->temporary, uid, gid, AT_SYMLINK_NOFOLLOW) == 0 || geteuid();
        utimensat(folder, p->temporary, times, AT_SYMLINK_NOFOLLOW);
    }
    ok = ok && renameat(folder, p->temporary, folder, name) == 0;
    if (!ok)
        failed(p, e->path);
    if (made == 0)
        unlinkat(folder, p->temporary, 0); /* also left behind when both were the same file */
    if (e->type == 'h')
        close(folder);
    return ok;
}

bool place_entry(struct place *p, struct entry *e)
{
    const char *name;
    if (*e->path && !good_path(e->path))
        return place_failed(p, e->path, "not a path inside the archive");
    if (e->nanoseconds > 999999999)
        e->nanoseconds = 0;
    if (!leave_folders(p, e->path))
        return false;
    int folder = folder_of(p, e->path, &name);
    if (folder < 0)
        return failed(p, e->path);
    switch (e->type) {
    case 'f': return start_file(p, e, folder, name);
    case 'd': return make_folder(p, e, folder, name);
    case 'l': case 'h': return make_other(p, e, folder, name);
    case 'c': case 'b': case 'p': return !p->keep_owner || make_other(p, e, folder, name);
    default: return true;
    }
}

bool place_finish(struct place *p)
{
    while (p->depth)
        if (!folder_finish(p))
            return false;
    return true;
}
