/* Fields of a payload, read without trust and written without copies. */
#include "agent.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static uint8_t *take(struct reader *r, size_t size)
{
    if (r->bad || (size_t)(r->end - r->at) < size) {
        r->bad = true;
        return NULL;
    }
    uint8_t *p = r->at;
    r->at += size;
    return p;
}

uint8_t read_u8(struct reader *r)
{
    uint8_t *p = take(r, 1);
    return p ? *p : 0;
}

uint16_t read_u16(struct reader *r)
{
    uint8_t *p = take(r, 2);
    return p ? get16(p) : 0;
}

uint32_t read_u32(struct reader *r)
{
    uint8_t *p = take(r, 4);
    return p ? get32(p) : 0;
}

uint64_t read_u64(struct reader *r)
{
    uint8_t *p = take(r, 8);
    return p ? get64(p) : 0;
}

/* Sixteen bytes at a time. libc uses the processor's string instructions, which an emulator steps
 * through one word after the other: more than twice the time. Forward: `to` may overlap below. */
typedef uint8_t sixteen __attribute__((vector_size(16), aligned(1), may_alias));

void copy_bytes(void *to, const void *from, size_t length)
{
    uint8_t *t = to;
    const uint8_t *f = from;
    for (; length >= 16; length -= 16, t += 16, f += 16)
        *(sixteen *)t = *(const sixteen *)f;
    while (length--) {
        *t++ = *f++;
        __asm__ volatile("");      /* or the compiler makes it a call of memcpy */
    }
}

char *read_str(struct reader *r)
{
    static char empty[1];
    uint32_t length = read_u32(r);
    uint8_t *p = length <= MAX_STRING ? take(r, length) : NULL;
    if (!p || memchr(p, 0, length)) {
        r->bad = true;
        empty[0] = 0;
        return empty;
    }
    /* One byte to the left, over its own length field, there is room for the NUL. */
    memmove(p - 1, p, length);
    p[(ptrdiff_t)length - 1] = 0;
    return (char *)p - 1;
}

size_t read_list(struct reader *r, char **into, size_t most)
{
    uint32_t count = read_u32(r);
    if (count >= most)
        r->bad = true;
    size_t n = 0;
    while (!r->bad && n < count)
        into[n++] = read_str(r);
    into[n] = NULL;
    return n;
}

bool read_done(struct reader *r)
{
    return !r->bad && r->at == r->end;
}

uint8_t *add_u8(uint8_t *p, uint8_t v)
{
    *p = v;
    return p + 1;
}

uint8_t *add_u16(uint8_t *p, uint16_t v)
{
    put16(p, v);
    return p + 2;
}

uint8_t *add_u32(uint8_t *p, uint32_t v)
{
    put32(p, v);
    return p + 4;
}

uint8_t *add_u64(uint8_t *p, uint64_t v)
{
    put64(p, v);
    return p + 8;
}

uint8_t *add_str(uint8_t *p, const char *s, size_t length)
{
    p = add_u32(p, (uint32_t)length);
    memcpy(p, s, length);
    return p + length;
}

#ifdef BOXGROVE_FUZZ           /* from the heap, whose borders the sanitizer watches */
uint8_t *buffer_make(size_t size)
{
    return malloc(size);
}

void buffer_free(uint8_t *buffer, size_t size)
{
    (void)size;
    free(buffer);
}
#else
uint8_t *buffer_make(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    madvise(p, size, MADV_DONTFORK);
    return p;
}

void buffer_free(uint8_t *buffer, size_t size)
{
    munmap(buffer, size);
}
#endif

bool pending_put(struct pending *p, const uint8_t *data, uint32_t length, uint32_t limit)
{
    if (!length)
        return true;
    if (!p->ring) {
        p->ring = malloc(limit);
        if (!p->ring)
            return false;
        p->size = limit;
        p->at = p->length = 0;
    }
    if (length > p->size - p->length)
        return false;
    uint32_t end = (p->at + p->length) % p->size;
    uint32_t first = length < p->size - end ? length : p->size - end;
    memcpy(p->ring + end, data, first);
    memcpy(p->ring, data + first, length - first);
    p->length += length;
    return true;
}

ssize_t pending_write(struct pending *p, int fd)
{
    ssize_t done = 0;
    while (p->length) {
        uint32_t piece = p->size - p->at < p->length ? p->size - p->at : p->length;
        ssize_t n = write(fd, p->ring + p->at, piece);
        if (n <= 0)
            return done ? done : n < 0 ? -errno : -EAGAIN;
        p->at = (p->at + (uint32_t)n) % p->size;
        p->length -= (uint32_t)n;
        done += n;
    }
    return done;
}

void pending_free(struct pending *p)
{
    free(p->ring);
    memset(p, 0, sizeof *p);
}
