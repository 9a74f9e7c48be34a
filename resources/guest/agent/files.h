/* The archive's numbers, and what files_put.c (which reads one) asks of placing.c (the disk). */
#ifndef BOXGROVE_FILES_H
#define BOXGROVE_FILES_H

#include "agent.h"

enum {
    ENTRY_FIXED = 33,          /* type, mode, uid, gid, mtime s, mtime ns, size */
    ENTRY_MOST = ENTRY_FIXED + 4 + MAX_PATH + 4 + MAX_PATH,
    MAX_TRANSFERS = 32,        /* each of GET and PUT: they hold descriptors and some memory */
    PUT_DEPTH = 256,
};
#define UNREADABLE 0xFFFFFFFFu

struct entry {
    uint8_t type;
    uint32_t mode, uid, gid;
    int64_t seconds;
    uint32_t nanoseconds;
    uint64_t size;
    char *path, *target;       /* NUL-terminated, checked by nobody yet */
};

/* Attributes that a folder gets once nothing more is put into it. */
struct later { size_t path_length; uint32_t mode, uid, gid, nanoseconds; int64_t seconds; };

/* Where an archive goes: a root below which no link is followed, and one file being written. */
struct place {
    bool keep_owner, set_owner;
    uint32_t uid, gid;
    int above;                 /* the folder that holds the root entry */
    int root, parent;          /* the root itself if it is a folder; the last folder used */
    int file;                  /* being written, or -1 */
    int file_folder;           /* where its temporary name is */
    struct entry pending;      /* what the file is to become (no path) */
    int depth;
    struct later folders[PUT_DEPTH];
    char root_name[256], temporary[40], file_name[256];
    char parent_path[MAX_PATH], folder_path[MAX_PATH];
    char message[512];         /* why it failed */
};

int place_start(struct place *p, const char *path);      /* 0 or an errno */
bool place_entry(struct place *p, struct entry *e);      /* false: see message */
bool place_bytes(struct place *p, const uint8_t *data, size_t length);
bool place_file_done(struct place *p, bool keep);
bool place_finish(struct place *p);
void place_release(struct place *p);
void bulk_begin(const struct place *p, uint64_t size);   /* p->file was opened for so much */
bool bulk_write(const struct place *p, const uint8_t *data, size_t length); /* false: errno */
bool bulk_end(const struct place *p, bool keep);
bool place_failed(struct place *p, const char *path, const char *why);

#endif
