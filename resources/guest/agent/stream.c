/* Bytes to frames and back: the parser that can lose the stream and find it again at a sync. */
#include "agent.h"

#include <stdlib.h>
#include <sys/utsname.h>

enum {
    IN_SIZE = 192 * 1024,
    OUT_SIZE = 512 * 1024,
    OUT_DATA = 128 * 1024,     /* above it no channel adds data */
    OUT_STALL = 256 * 1024,    /* above it no frame of the host is looked at */
    START = 0xB5,
    SYNC = 0xF1,
    MAGIC_SIZE = 16,
    SYNC_SIZE = MAGIC_SIZE + 16,
};

static const uint8_t magic[MAGIC_SIZE + 1] = "\xf1" "boxgrove-sync" "\n\x1f";

static uint8_t *in, *out;
static size_t in_at, in_end, out_at, out_end_at;
static bool hunting = true;    /* nothing means anything before the first sync */
static bool mute = true;       /* and nothing is said before it */

void stream_start(void)
{
    in = buffer_make(IN_SIZE);
    out = buffer_make(OUT_SIZE);
    if (!in || !out)
        abort();
}

static uint32_t frame_check(unsigned type, uint32_t channel, uint32_t length)
{
    uint32_t mixed = channel * 0x9E3779B1u ^ length * 0x85EBCA6Bu ^ (uint32_t)type * 0xC2B2AE35u ^
                     0x5A17C0DEu;
    return mixed ? mixed : 1;
}

/* ---- output ---- */

static size_t out_used(void)
{
    return out_end_at - out_at;
}

bool out_takes_data(void)
{
    return out_used() < OUT_DATA;
}

bool stream_stalled(void)
{
    return out_used() >= OUT_STALL;
}

uint8_t *out_begin(size_t most)
{
    size_t need = most + FRAME_EXTRA;
    if (OUT_SIZE - out_end_at < need && out_at) {
        memmove(out, out + out_at, out_used());
        out_end_at -= out_at;
        out_at = 0;
    }
    if (OUT_SIZE - out_end_at < need) {
        /* Cannot happen while the limits above hold. If it does, silence is what a host can
         * recover from: it syncs. */
        out_at = out_end_at = 0;
        mute = true;
    }
    return out + out_end_at + FRAME_HEAD;
}

void out_end(unsigned type, uint32_t channel, size_t length)
{
    if (mute)
        return;
    uint8_t *p = out + out_end_at;
    p[0] = START;
    p[1] = (uint8_t)type;
    put16(p + 2, 0);
    put32(p + 4, channel);
    put32(p + 8, (uint32_t)length);
    put32(p + FRAME_HEAD + length, frame_check(type, channel, (uint32_t)length));
    out_end_at += length + FRAME_EXTRA;
#ifdef BOXGROVE_FUZZ
    fuzz_sent(type, channel, length);
#endif
}

void out_frame(unsigned type, uint32_t channel, const void *payload, size_t length)
{
    uint8_t *p = out_begin(length);
    if (length)
        memcpy(p, payload, length);
    out_end(type, channel, length);
}

const uint8_t *out_waiting(size_t *length)
{
    *length = out_used();
    return out + out_at;
}

void out_gone(size_t length)
{
    out_at += length;
    if (out_at == out_end_at)
        out_at = out_end_at = 0;
}

/* ---- a new conversation ---- */

static void hello(void)
{
    struct utsname name;
    uname(&name);
    uint8_t *start = out_begin(1024), *p = start;
    p = add_u16(p, PROTOCOL_VERSION);
    memcpy(p, agent_epoch, sizeof agent_epoch);
    p = add_u8(p + sizeof agent_epoch, is_init);
    p = add_str(p, name.release, strlen(name.release));
    p = add_str(p, name.nodename, strlen(name.nodename));
    out_end(T_HELLO, 0, (size_t)(p - start));
}

static void synced(const uint8_t *record)
{
    out_at = out_end_at = 0;
    mute = true;
    channels_drop_all();
    mute = false;
    memcpy(out, record, SYNC_SIZE);
    out_end_at = SYNC_SIZE;
    hello();
}

/* ---- input ---- */

uint8_t *in_room(size_t *room)
{
    if (in_at == in_end)
        in_at = in_end = 0;
    if (in_at && IN_SIZE - in_end < MAX_PAYLOAD) {
        copy_bytes(in, in + in_at, in_end - in_at);
        in_end -= in_at;
        in_at = 0;
    }
    *room = IN_SIZE - in_end;
    return in + in_end;
}

void in_got(size_t length)
{
    in_end += length;
}

static void skip_zeros(void)
{
    while (in_end - in_at >= 8 && get64(in + in_at) == 0)
        in_at += 8;
    while (in_at < in_end && in[in_at] == 0)
        in_at++;
}

/* False: more bytes are needed to tell. */
static bool take_sync(void)
{
    size_t have = in_end - in_at;
    if (memcmp(in + in_at, magic, have < MAGIC_SIZE ? have : MAGIC_SIZE) != 0) {
        hunting = true;
        in_at++;
        return true;
    }
    if (have < SYNC_SIZE)
        return false;
    in_at += SYNC_SIZE;
    hunting = false;
    synced(in + in_at - SYNC_SIZE);
    return true;
}

static bool take_frame(void)
{
    size_t have = in_end - in_at;
    uint8_t *p = in + in_at;
    if (have < FRAME_HEAD)
        return false;
    uint32_t channel = get32(p + 4), length = get32(p + 8);
    if (get16(p + 2) || length > MAX_PAYLOAD) {
        hunting = true;
        in_at++;
        return true;
    }
    if (have < length + FRAME_EXTRA)
        return false;
    in_at += length + FRAME_EXTRA;
    if (get32(p + FRAME_HEAD + length) != frame_check(p[1], channel, length))
        hunting = true;
    else
        frame_in(p[1], channel, p + FRAME_HEAD, length);
    return true;
}

bool stream_parse(void)
{
    bool did = false;
    while (in_at < in_end && !stream_stalled()) {
        if (hunting) {
            uint8_t *found = memchr(in + in_at, SYNC, in_end - in_at);
            in_at = found ? (size_t)(found - in) : in_end;
            if (!found || !take_sync())
                break;
        } else if (in[in_at] == 0) {
            skip_zeros();
        } else if (in[in_at] == SYNC) {
            if (!take_sync())
                break;
        } else if (in[in_at] == START) {
            if (!take_frame())
                break;
        } else {
            hunting = true;
        }
        did = true;
    }
    return did;
}
