/* Large files go to the disk past the page cache.
 *
 * Under software emulation a page in the cache costs more than the transfer of its bytes: a
 * hundred megabytes took 1.4 s through the cache and 0.24 s directly. One file at a time has the
 * buffer; others, and disks that cannot, use the cache as ever. */
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

enum { BULK = 256 * 1024, BULK_LEAST = 1024 * 1024 };

static uint8_t buffer[BULK] __attribute__((aligned(4096)));
static size_t used;
static const struct place *owner;

static bool write_all(int fd, const uint8_t *data, size_t length)
{
    while (length) {
        ssize_t n = write(fd, data, length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        data += n;
        length -= (size_t)n;
    }
    return true;
}

void bulk_begin(const struct place *p, uint64_t size)
{
    if (owner || size < BULK_LEAST || fcntl(p->file, F_SETFL, O_DIRECT))
        return;
    owner = p;
    used = 0;
}

bool bulk_end(const struct place *p, bool keep)
{
    if (owner != p)
        return true;
    owner = NULL;
    fcntl(p->file, F_SETFL, 0);
    return !keep || write_all(p->file, buffer, used);
}

/* A whole buffer, directly; what a disk does not take like that goes through the cache. */
static bool flush(const struct place *p)
{
    ssize_t n;
    do
        n = write(p->file, buffer, BULK);
    while (n < 0 && errno == EINTR);
    if (n == BULK) {
        used = 0;
        return true;
    }
    if (n < 0 && errno != EINVAL)
        return false;
    owner = NULL;
    size_t done = n > 0 ? (size_t)n : 0;
    fcntl(p->file, F_SETFL, 0);
    return write_all(p->file, buffer + done, BULK - done);
}

bool bulk_write(const struct place *p, const uint8_t *data, size_t length)
{
    while (length && owner == p) {
        size_t piece = BULK - used < length ? BULK - used : length;
        copy_bytes(buffer + used, data, piece);
        used += piece;
        data += piece;
        length -= piece;
        if (used == BULK && !flush(p))
            return false;
    }
    return write_all(p->file, data, length);
}
