/* The table of open channels: who is meant by a frame, and what each side may still send. */
#include "agent.h"

#include <errno.h>
#include <signal.h>

static struct channel channels[MAX_CHANNELS];
static unsigned in_use;        /* slots below it may be taken, those above are free */

unsigned channel_slot(const struct channel *c)
{
    return (unsigned)(c - channels);
}

static struct channel *find(uint32_t id)
{
    for (unsigned i = 0; id && i < in_use; i++)
        if (channels[i].id == id)
            return &channels[i];
    return NULL;
}

static void send_refused(uint32_t id, int error, const char *message)
{
    size_t length = strlen(message);
    uint8_t *start = out_begin(8 + length), *p = start;
    p = add_u32(p, (uint32_t)error);
    p = add_str(p, message, length);
    out_end(T_REFUSED, id, (size_t)(p - start));
}

void channel_end(struct channel *c)
{
    memset(c, 0, sizeof *c);
    while (in_use && !channels[in_use - 1].id)
        in_use--;
}

void channel_refuse(struct channel *c, int error, const char *message)
{
    send_refused(c->id, error, message[0] ? message : strerror(error));
    channel_end(c);
}

void channel_exit(struct channel *c, int32_t status, const char *message)
{
    size_t length = strlen(message);
    uint8_t *start = out_begin(8 + length), *p = start;
    p = add_u32(p, (uint32_t)status);
    p = add_str(p, message, length);
    out_end(T_EXIT, c->id, (size_t)(p - start));
    channel_end(c);
}

void channel_reply(struct channel *c, size_t length)
{
    out_end(T_REPLY, c->id, length);
    channel_end(c);
}

void channel_opened(struct channel *c, const struct channel_ops *ops)
{
    c->ops = ops;
}

void channel_window(struct channel *c, uint32_t window)
{
    c->window = window;
    c->give_back = window / 2;
}

void channel_ate(struct channel *c, uint32_t length)
{
    c->owed += length;
    if (c->owed < c->give_back || c->host_eof)
        return;
    uint8_t more[4];
    put32(more, c->owed);
    out_frame(T_CREDIT, c->id, more, sizeof more);
    c->window += c->owed;
    c->owed = 0;
}

static void misbehaved(struct channel *c, const char *message)
{
    uint32_t id = c->id;
    if (c->ops)
        c->ops->drop(c, true);
    channel_end(c);
    send_refused(id, EPROTO, message);
}

static void ping(struct channel *c, struct reader *r)
{
    size_t length = (size_t)(r->end - r->at);
    memcpy(out_begin(length), r->at, length);
    channel_reply(c, length);
}

static void open_kind(struct channel *c, unsigned kind, struct reader *r)
{
    switch (kind) {
    case K_EXEC: exec_open(c, r); break;
    case K_SESSION: session_open(c, r); break;
    case K_SESSIONS: sessions_list(c, r); break;
    case K_GET: get_open(c, r); break;
    case K_PUT: put_open(c, r); break;
    case K_STAT: stat_open(c, r); break;
    case K_METRICS: metrics_open(c, r); break;
    case K_POWER: power_open(c, r); break;
    case K_SETUP: setup_open(c, r); break;
    case K_PING: ping(c, r); break;
    default: channel_refuse(c, ENOSYS, "this agent does not know that kind"); break;
    }
}

static void open_channel(uint32_t id, struct reader *r)
{
    unsigned kind = read_u8(r);
    uint32_t credit = read_u32(r);
    if (r->bad) {
        send_refused(id, EPROTO, "malformed OPEN");
        return;
    }
    unsigned slot = 0;
    while (slot < in_use && channels[slot].id)
        slot++;
    if (slot == MAX_CHANNELS) {
        send_refused(id, EMFILE, "too many open channels");
        return;
    }
    if (slot == in_use)
        in_use++;
    struct channel *c = &channels[slot];
    c->id = id;
    c->credit = credit;
    open_kind(c, kind, r);
}

static void more_credit(struct channel *c, uint32_t more)
{
    c->credit += more;
    if (c->credit > UINT32_MAX)
        c->credit = UINT32_MAX;    /* far more than we ever have; sums stay small */
}

void frame_in(unsigned type, uint32_t id, uint8_t *payload, uint32_t length)
{
    struct reader r = {payload, payload + length, false};
    struct channel *c = find(id);
    if (type == T_OPEN) {
        if (id && !c)
            open_channel(id, &r);
        return;
    }
    if (!c)
        return;
    switch (type) {
    case T_DATA:
        if (length > c->window || (c->host_eof && length)) {
            misbehaved(c, "more data than the credit allows");
            return;
        }
        c->window -= length;
        if (length && c->ops->data)
            c->ops->data(c, payload, length);
        return;
    case T_EOF:
        if (!c->host_eof && c->ops->eof) {
            c->host_eof = true;
            c->ops->eof(c);
        }
        return;
    case T_CREDIT: {
        uint32_t more = read_u32(&r);
        if (!read_done(&r))
            misbehaved(c, "malformed CREDIT");
        else
            more_credit(c, more);
        return;
    }
    case T_SIGNAL: {
        uint32_t number = read_u32(&r);
        if (!read_done(&r) || number < 1 || number > 64)
            misbehaved(c, "malformed SIGNAL");
        else if (c->ops->signal)
            c->ops->signal(c, (int)number);
        return;
    }
    case T_RESIZE: {
        unsigned columns = read_u16(&r), rows = read_u16(&r);
        if (!read_done(&r))
            misbehaved(c, "malformed RESIZE");
        else if (c->ops->resize)
            c->ops->resize(c, columns, rows);
        return;
    }
    case T_CLOSE:
        c->ops->drop(c, true);
        channel_end(c);
        out_frame(T_CLOSED, id, NULL, 0);
        return;
    default:
        return;
    }
}

void channels_drop_all(void)
{
    for (unsigned i = 0; i < MAX_CHANNELS; i++) {
        if (!channels[i].id)
            continue;
        if (channels[i].ops)
            channels[i].ops->drop(&channels[i], false);
        channel_end(&channels[i]);
    }
}

bool channels_pump(void)
{
    static unsigned next;      /* where the last round stopped: everybody gets a turn */
    bool did = false;
    unsigned count = in_use;
    for (unsigned i = 0; i < count; i++) {
        unsigned slot = (next + i) % count;
        struct channel *c = &channels[slot];
        if (c->id && c->ops && c->ops->pump)
            did |= c->ops->pump(c);
    }
    if (count)
        next = (next + 1) % count;
    return did;
}
