/* GET channels: a tree of the guest as a stream, walked with a bounded number of descriptors. */
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum {
    MAX_DEPTH = 256,
    NAMES_SIZE = 4096,         /* of one folder, at a time */
    STAGE_SIZE = ENTRY_MOST + 512,
    SMALL_PIECE = 256,
    ENTRIES_AT_ONCE = 64,
    MAX_HARD_LINKS = 4096,
};

struct level { int fd; int at, end; size_t path_length; uint8_t *names; };
struct hard_link { dev_t device; ino_t inode; char *path; };

struct get {
    bool listing, ended;
    int file;                  /* being sent, or -1 */
    uint64_t left;             /* of the file's size; no more than that, however it grows */
    bool sized;
    dev_t device;
    int depth;
    size_t stage_at, stage_end;
    unsigned link_count;
    struct hard_link *links;
    struct level levels[MAX_DEPTH];
    char path[MAX_PATH + 256];
    uint8_t stage[STAGE_SIZE];
};

static struct get *gets[MAX_CHANNELS];
static unsigned get_count;

uint8_t entry_type(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG: return 'f';
    case S_IFDIR: return 'd';
    case S_IFLNK: return 'l';
    case S_IFCHR: return 'c';
    case S_IFBLK: return 'b';
    case S_IFIFO: return 'p';
    default: return 's';
    }
}

static void pop(struct get *g)
{
    struct level *l = &g->levels[--g->depth];
    close(l->fd);
    free(l->names);
}

static void release(struct channel *c)
{
    struct get *g = gets[channel_slot(c)];
    gets[channel_slot(c)] = NULL;
    get_count--;
    if (g->file >= 0)
        close(g->file);
    while (g->depth)
        pop(g);
    for (unsigned i = 0; i < g->link_count; i++)
        free(g->links[i].path);
    free(g->links);
    free(g);
}

/* ---- what is staged: headers and other small things, sent as credit allows ---- */

static void stage_entry(struct get *g, uint8_t type, const struct stat *s, const char *path,
                        const char *target)
{
    static const struct stat nothing;
    s = s ? s : &nothing;
    bool device = S_ISCHR(s->st_mode) || S_ISBLK(s->st_mode);
    uint8_t *p = g->stage + g->stage_end;
    p = add_u8(p, type);
    p = add_u32(p, s->st_mode & 07777);
    p = add_u32(p, s->st_uid);
    p = add_u32(p, s->st_gid);
    p = add_u64(p, (uint64_t)s->st_mtim.tv_sec);
    p = add_u32(p, (uint32_t)s->st_mtim.tv_nsec);
    p = add_u64(p, device ? (uint64_t)major(s->st_rdev) << 32 | minor(s->st_rdev)
                          : type == 'f' ? (uint64_t)s->st_size : 0);
    p = add_str(p, path, strlen(path));
    p = add_str(p, target, strlen(target));
    g->stage_end = (size_t)(p - g->stage);
}

static void stage_u32(struct get *g, uint32_t value)
{
    put32(g->stage + g->stage_end, value);
    g->stage_end += 4;
}

static void stage_unreadable(struct get *g, int error)
{
    const char *why = strerror(error);
    stage_u32(g, UNREADABLE);
    g->stage_end = (size_t)(add_str(g->stage + g->stage_end, why, strlen(why)) - g->stage);
}

static void stage_warning(struct get *g, const char *what)
{
    char text[MAX_PATH];
    snprintf(text, sizeof text, "%.3500s: %s", g->path[0] ? g->path : ".", what);
    stage_entry(g, 'w', NULL, text, "");
}

/* ---- the walk ---- */

static const char *earlier_link(struct get *g, const struct stat *s)
{
    for (unsigned i = 0; i < g->link_count; i++)
        if (g->links[i].inode == s->st_ino && g->links[i].device == s->st_dev)
            return g->links[i].path;
    if (!g->links)
        g->links = malloc(MAX_HARD_LINKS * sizeof *g->links);
    if (!g->links || g->link_count == MAX_HARD_LINKS)
        return NULL;           /* then it is sent as a file of its own */
    char *path = strdup(g->path);
    if (path)
        g->links[g->link_count++] = (struct hard_link){s->st_dev, s->st_ino, path};
    return NULL;
}

static void stage_file(struct get *g, int folder, const char *name, const struct stat *s)
{
    const char *earlier = s->st_nlink > 1 && !g->listing ? earlier_link(g, s) : NULL;
    if (earlier) {
        stage_entry(g, 'h', s, g->path, earlier);
        return;
    }
    stage_entry(g, 'f', s, g->path, "");
    if (g->listing) {
        stage_u32(g, 0);
        return;
    }
    g->file = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    struct stat now;
    if (g->file >= 0 && (fstat(g->file, &now) || !S_ISREG(now.st_mode))) {
        close(g->file);
        g->file = -1;
        errno = ESTALE;
    }
    if (g->file < 0) {
        stage_unreadable(g, errno);
        return;
    }
    g->sized = now.st_size > 0;
    g->left = (uint64_t)now.st_size;
}

static void enter(struct get *g, int folder, const char *name, const struct stat *s)
{
    stage_entry(g, 'd', s, g->path, "");
    if (g->listing && g->depth)
        return;
    if (s->st_dev != g->device) {
        stage_warning(g, "another filesystem, not copied");
        return;
    }
    if (g->depth == MAX_DEPTH) {
        stage_warning(g, "too deep, not copied");
        return;
    }
    struct level l = {.path_length = strlen(g->path), .names = malloc(NAMES_SIZE)};
    l.fd = openat(folder, name,
                  O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (l.fd < 0 || !l.names) {
        stage_warning(g, l.fd < 0 ? strerror(errno) : strerror(ENOMEM));
        if (l.fd >= 0)
            close(l.fd);
        free(l.names);
        return;
    }
    g->levels[g->depth++] = l;
}

/* Stages what is at `name` in `folder`; its path in the archive is g->path already. */
static void visit(struct get *g, int folder, const char *name, const struct stat *s)
{
    static char target[MAX_PATH];
    ssize_t length;
    switch (s->st_mode & S_IFMT) {
    case S_IFREG:
        stage_file(g, folder, name, s);
        break;
    case S_IFDIR:
        enter(g, folder, name, s);
        break;
    case S_IFLNK:
        length = readlinkat(folder, name, target, sizeof target - 1);
        if (length < 0) {
            stage_warning(g, strerror(errno));
            break;
        }
        target[length] = 0;
        stage_entry(g, 'l', s, g->path, target);
        break;
    default:
        stage_entry(g, entry_type(s->st_mode), s, g->path, "");
        break;
    }
}

/* One name of the deepest folder: it is staged, or skipped, or the folder is done. */
static void next_name(struct get *g)
{
    struct level *l = &g->levels[g->depth - 1];
    g->path[l->path_length] = 0;
    if (l->at >= l->end) {
        long n = syscall(SYS_getdents64, l->fd, l->names, NAMES_SIZE);
        if (n <= 0) {
            if (n < 0)
                stage_warning(g, strerror(errno));
            pop(g);
            return;
        }
        l->at = 0;
        l->end = (int)n;
    }
    const uint8_t *record = l->names + l->at;   /* u64 inode, u64 offset, u16 size, u8 type */
    const char *name = (const char *)record + 19;
    l->at += get16(record + 16);
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return;
    size_t length = strlen(name);
    if (l->path_length + 1 + length >= MAX_PATH) {
        stage_warning(g, "a name below it is too long, not copied");
        return;
    }
    if (l->path_length)
        g->path[l->path_length] = '/';
    memcpy(g->path + l->path_length + (l->path_length != 0), name, length + 1);
    struct stat s;
    if (fstatat(l->fd, name, &s, AT_SYMLINK_NOFOLLOW)) {
        if (errno != ENOENT)
            stage_warning(g, strerror(errno));
        return;
    }
    visit(g, l->fd, name, &s);
}

/* ---- sending ---- */

static void file_done(struct get *g, int error)
{
    if (error)
        stage_unreadable(g, error);
    else
        stage_u32(g, 0);
    close(g->file);
    g->file = -1;
}

/* A chunk straight into the frame, or, where only a few bytes fit, by way of the stage. */
static size_t file_piece(struct get *g, uint8_t *into, size_t size)
{
    bool direct = size >= 4 + SMALL_PIECE;
    uint8_t *at = direct ? into : g->stage;
    size_t want = direct ? size - 4 : SMALL_PIECE;
    if (g->sized && want > g->left)
        want = g->left;
    ssize_t n = want ? read(g->file, at + 4, want) : 0;
    if (n <= 0) {
        if (n < 0 && errno == EINTR)
            return 0;
        file_done(g, n < 0 ? errno : 0);
        return 0;
    }
    g->left -= g->sized ? (uint64_t)n : 0;
    put32(at, (uint32_t)n);
    if (direct)
        return 4 + (size_t)n;
    g->stage_end = 4 + (size_t)n;
    return 0;
}

static size_t produce(struct get *g, uint8_t *into, size_t size)
{
    size_t done = 0;
    for (int steps = 0; done < size && steps < ENTRIES_AT_ONCE;) {
        if (g->stage_at < g->stage_end) {
            size_t piece = g->stage_end - g->stage_at;
            piece = piece < size - done ? piece : size - done;
            memcpy(into + done, g->stage + g->stage_at, piece);
            g->stage_at += piece;
            done += piece;
            continue;
        }
        g->stage_at = g->stage_end = 0;
        steps++;
        if (g->file >= 0)
            done += file_piece(g, into + done, size - done);
        else if (g->depth)
            next_name(g);
        else if (!g->ended) {
            stage_entry(g, 'e', NULL, "", "");
            g->ended = true;
        } else {
            break;
        }
    }
    return done;
}

static bool get_pump(struct channel *c)
{
    struct get *g = gets[channel_slot(c)];
    if (g->ended && g->stage_at == g->stage_end) {
        release(c);
        channel_exit(c, 0, "");
        return true;
    }
    if (!c->credit || !out_takes_data())
        return false;
    size_t size = c->credit < MAX_PAYLOAD ? c->credit : MAX_PAYLOAD;
    uint8_t *into = out_begin(size);
    size_t done = produce(g, into, size);
    if (done) {
        out_end(T_DATA, c->id, done);
        c->credit -= done;
    }
    return true;
}

static void get_drop(struct channel *c, bool closed)
{
    (void)closed;
    release(c);
}

static const struct channel_ops get_ops = {.pump = get_pump, .drop = get_drop};

void get_open(struct channel *c, struct reader *r)
{
    unsigned flags = read_u8(r);
    const char *path = read_str(r);
    if (!read_done(r) || flags & ~1u) {
        channel_refuse(c, EPROTO, "malformed GET");
        return;
    }
    if (*path != '/') {
        channel_refuse(c, EINVAL, "the path is not absolute");
        return;
    }
    path = sys_path(path);
    bool follow = path[strlen(path) - 1] == '/';
    struct stat s;
    if (fstatat(AT_FDCWD, path, &s, follow ? 0 : AT_SYMLINK_NOFOLLOW)) {
        channel_refuse(c, errno, "");
        return;
    }
    struct get *g = get_count < MAX_TRANSFERS ? calloc(1, sizeof *g) : NULL;
    if (!g) {
        channel_refuse(c, EMFILE, "too many copies at once");
        return;
    }
    get_count++;
    gets[channel_slot(c)] = g;
    g->file = -1;
    g->listing = flags & 1;
    g->device = s.st_dev;
    channel_opened(c, &get_ops);
    uint8_t none[4] = {0};
    out_frame(T_OPENED, c->id, none, sizeof none);
    visit(g, AT_FDCWD, path, &s);
}
