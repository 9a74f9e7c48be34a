/* PUT channels: an archive from the host, taken apart as it comes, whatever its pieces. */
#include "files.h"

#include <errno.h>
#include <stdlib.h>

enum { PUT_WINDOW = 1024 * 1024 };

enum state { IN_HEADER, IN_CHUNK_SIZE, IN_CHUNK, IN_REASON_SIZE, IN_REASON, AT_END };

struct put {
    enum state state;
    bool rooted, ended;
    uint32_t left;             /* of a chunk or a reason */
    size_t have;               /* bytes of the header or number that came so far */
    struct place place;
    uint8_t header[ENTRY_MOST + 2];
};

static struct put *puts[MAX_CHANNELS];
static unsigned put_count;

static void release(struct channel *c)
{
    struct put *p = puts[channel_slot(c)];
    puts[channel_slot(c)] = NULL;
    put_count--;
    place_release(&p->place);
    free(p);
}

static bool wrong(struct put *p, const char *why)
{
    return place_failed(&p->place, "archive", why);
}

/* Bytes that the header needs, as far as can be told from what is there; 0: it is too long. */
static size_t header_needs(const struct put *p)
{
    const size_t first = ENTRY_FIXED + 4;
    if (p->have < first)
        return first;
    uint32_t path = get32(p->header + ENTRY_FIXED);
    if (path >= MAX_PATH)
        return 0;
    if (p->have < first + path + 4)
        return first + path + 4;
    uint32_t target = get32(p->header + first + path);
    return target >= MAX_PATH ? 0 : first + path + 4 + target;
}

static bool act_on_header(struct put *p)
{
    struct reader r = {p->header, p->header + p->have, false};
    struct entry e = {.type = read_u8(&r), .mode = read_u32(&r), .uid = read_u32(&r),
                      .gid = read_u32(&r), .seconds = (int64_t)read_u64(&r),
                      .nanoseconds = read_u32(&r), .size = read_u64(&r)};
    e.path = read_str(&r);
    e.target = read_str(&r);
    p->have = 0;
    if (!read_done(&r))
        return wrong(p, "a name with a NUL in it");
    if (e.type == 'w')
        return true;
    if (e.type == 'e') {
        p->state = AT_END;
        return true;
    }
    if (!e.type || !strchr("fdlhcbps", e.type))
        return wrong(p, "an entry of a type that this agent does not know");
    if (p->rooted != (*e.path != 0))
        return wrong(p, p->rooted ? "two roots" : "it does not start with its root");
    p->rooted = true;
    if (e.type == 'f')
        p->state = IN_CHUNK_SIZE;
    return place_entry(&p->place, &e);
}

/* A number of 4 bytes that may come in pieces; false: not all of it yet. */
static bool take_number(struct put *p, const uint8_t **at, const uint8_t *end, uint32_t *value)
{
    while (p->have < 4 && *at < end)
        p->header[p->have++] = *(*at)++;
    if (p->have < 4)
        return false;
    p->have = 0;
    *value = get32(p->header);
    return true;
}

static bool take_header(struct put *p, const uint8_t **at, const uint8_t *end)
{
    for (;;) {
        size_t need = header_needs(p);
        if (!need)
            return wrong(p, "a name is too long");
        if (p->have == need)
            return act_on_header(p);
        size_t piece = need - p->have;
        if (piece > (size_t)(end - *at))
            piece = (size_t)(end - *at);
        if (!piece)
            return true;
        memcpy(p->header + p->have, *at, piece);
        p->have += piece;
        *at += piece;
    }
}

static bool chunk_size(struct put *p, uint32_t size)
{
    if (size == 0) {
        p->state = IN_HEADER;
        return place_file_done(&p->place, true);
    }
    if (size == UNREADABLE) {
        p->state = IN_REASON_SIZE;
        return place_file_done(&p->place, false);
    }
    p->left = size;
    p->state = IN_CHUNK;
    return size <= MAX_PAYLOAD || wrong(p, "a chunk is too large");
}

static bool take(struct put *p, const uint8_t *at, const uint8_t *end)
{
    uint32_t number;
    while (at < end) {
        size_t piece = p->left < (size_t)(end - at) ? p->left : (size_t)(end - at);
        switch (p->state) {
        case IN_HEADER:
            if (!take_header(p, &at, end))
                return false;
            break;
        case IN_CHUNK_SIZE:
            if (take_number(p, &at, end, &number) && !chunk_size(p, number))
                return false;
            break;
        case IN_CHUNK:
            if (!place_bytes(&p->place, at, piece))
                return false;
            at += piece;
            p->left -= (uint32_t)piece;
            if (!p->left)
                p->state = IN_CHUNK_SIZE;
            break;
        case IN_REASON_SIZE:
            if (!take_number(p, &at, end, &number))
                break;
            if (number > MAX_STRING)
                return wrong(p, "a reason is too long");
            p->left = number;
            p->state = number ? IN_REASON : IN_HEADER;
            break;
        case IN_REASON:
            at += piece;
            p->left -= (uint32_t)piece;
            if (!p->left)
                p->state = IN_HEADER;
            break;
        case AT_END:
            return wrong(p, "bytes after its end");
        }
    }
    return true;
}

static void end(struct channel *c, bool ok)
{
    static char message[sizeof((struct place *)0)->message];
    struct put *p = puts[channel_slot(c)];
    strcpy(message, ok ? "" : p->place.message);
    release(c);
    channel_exit(c, ok ? 0 : 1, message);
}

static void put_data(struct channel *c, const uint8_t *data, uint32_t length)
{
    if (!take(puts[channel_slot(c)], data, data + length))
        end(c, false);
    else
        channel_ate(c, length);
}

static void put_eof(struct channel *c)
{
    struct put *p = puts[channel_slot(c)];
    end(c, p->state == AT_END ? place_finish(&p->place) : wrong(p, "it was cut short"));
}

static void put_drop(struct channel *c, bool closed)
{
    (void)closed;
    release(c);
}

static const struct channel_ops put_ops = {.data = put_data, .eof = put_eof, .drop = put_drop};

void put_open(struct channel *c, struct reader *r)
{
    static struct user user;
    unsigned flags = read_u8(r);
    const char *path = read_str(r), *name = read_str(r);
    if (!read_done(r) || flags & ~3u || flags == 3) {
        channel_refuse(c, EPROTO, "malformed PUT");
        return;
    }
    if (*path != '/') {
        channel_refuse(c, EINVAL, "the path is not absolute");
        return;
    }
    int error = flags & 2 ? user_find(name, &user) : 0;
    if (error) {
        channel_refuse(c, error, "no such user");
        return;
    }
    struct put *p = put_count < MAX_TRANSFERS ? calloc(1, sizeof *p) : NULL;
    if (!p) {
        channel_refuse(c, EMFILE, "too many copies at once");
        return;
    }
    error = place_start(&p->place, sys_path(path));
    if (error) {
        free(p);
        channel_refuse(c, error, "");
        return;
    }
    p->place.keep_owner = flags & 1;
    p->place.set_owner = flags & 2;
    p->place.uid = user.uid;
    p->place.gid = user.gid;
    put_count++;
    puts[channel_slot(c)] = p;
    channel_opened(c, &put_ops);
    channel_window(c, PUT_WINDOW);
    uint8_t window[4];
    put32(window, PUT_WINDOW);
    out_frame(T_OPENED, c->id, window, sizeof window);
}
