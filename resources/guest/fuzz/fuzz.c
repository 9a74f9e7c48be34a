/* Feeds the real parser and everything behind it with frames that are right, nearly right and
 * wrong. Built with -DBOXGROVE_FUZZ, so no process is started, killed or powered off and nothing
 * is written outside the folder it is given. Usage: fuzz SEED FRAMES FOLDER */
#include "../agent/agent.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { CHILDREN = 48, REMEMBERED = 4096 };

static uint64_t dice_state;
static const char *folder;

static uint32_t dice(uint32_t sides)
{
    dice_state ^= dice_state << 13;
    dice_state ^= dice_state >> 7;
    dice_state ^= dice_state << 17;
    return (uint32_t)(dice_state >> 32) % sides;
}

static void complain(const char *what)
{
    fprintf(stderr, "fuzz: %s\n", what);
    abort();
}

/* ---- what the agent is given instead of a system ---- */

static struct child { pid_t pid; int fds[3]; } children[CHILDREN];

static void child_ends(struct child *c)
{
    for (int i = 0; i < 3; i++)
        if (c->fds[i] >= 0)
            close(c->fds[i]);
    int status = dice(4) ? (int)dice(256) << 8 : (int)dice(31) + 1;
    pid_t pid = c->pid;
    c->pid = 0;
    if (!exec_reaped(pid, status))
        session_reaped(pid, status);
}

pid_t fuzz_fork(const struct launch *l, int status_fd)
{
    static pid_t number = 1 << 23; /* no process has such a number */
    struct child *c = &children[dice(CHILDREN)];
    if (!dice(50)) {
        errno = EAGAIN;
        return -1;
    }
    for (char **text = l->argv; *text; text++)
        (void)!strlen(*text);
    for (char **text = l->env; *text; text++)
        (void)!strlen(*text);
    int32_t failure[2] = {(int32_t)dice(6), (int32_t)dice(120)};
    if (!dice(10))
        (void)!write(status_fd, failure, dice(2) ? sizeof failure : dice(8));
    if (c->pid)
        child_ends(c);
    c->pid = ++number;
    for (int i = 0; i < 3; i++) {
        c->fds[i] = fcntl(l->stdio[i], F_DUPFD_CLOEXEC, 3);
        if (l->stdio[i] != null_fd)
            fcntl(c->fds[i], F_SETFL, O_NONBLOCK);
    }
    return c->pid;
}

int fuzz_kill(pid_t pid, int number)
{
    if (pid >= -1)
        complain("a signal to more than one group");
    if (number < 1 || number > 64)
        complain("a signal out of range");
    return 0;
}

const char *fuzz_path(const char *path)
{
    static char real[MAX_STRING + 512];
    snprintf(real, sizeof real, "%s/%s", folder, strstr(path, "..") ? "dots" : path);
    return real;
}

int fuzz_symlinkat(const char *target, int where, const char *name)
{
    if (*target == '/' || strstr(target, ".."))
        target = "a";
    return symlinkat(target, where, name);
}

void power_request(enum power how)
{
    uint8_t what = how == POWER_REBOOT ? 1 : 2;
    out_frame(T_EVENT, 0, &what, 1);
}

/* ---- what comes out is checked ---- */

static uint32_t ping_channel;  /* of the PING that is being asked */
/* By channel: what it may still send; all ones: unknown. A slot knows whose it is, since an old
 * channel may live on while thousands are opened after it. */
static struct { uint32_t channel; uint64_t credit; } credits[REMEMBERED];

static uint64_t *credit_of(uint32_t channel)
{
    return credits[channel % REMEMBERED].channel == channel
               ? &credits[channel % REMEMBERED].credit : NULL;
}

void fuzz_sent(unsigned type, uint32_t channel, size_t length)
{
    if (type < T_HELLO || type > T_EVENT || length > MAX_PAYLOAD)
        complain("a frame that no host would accept");
    if ((type == T_HELLO || type == T_EVENT) != (channel == 0))
        complain("a frame on the wrong channel");
    if (type == T_REPLY && channel == ping_channel)
        ping_channel = 0;
    uint64_t *credit = credit_of(channel);
    if ((type != T_DATA && type != T_DATA2) || !credit || *credit == UINT64_MAX)
        return;
    if (length > *credit)
        complain("more data than the credit allows");
    *credit -= length;
}

static void swallow(bool all)
{
    size_t waiting;
    out_waiting(&waiting);
    out_gone(all || !waiting ? waiting : dice((uint32_t)waiting + 1));
}

static void feed(const uint8_t *data, size_t length)
{
    while (length) {
        size_t room;
        uint8_t *at = in_room(&room);
        if (!room) {
            swallow(true);
            stream_parse();
            continue;
        }
        size_t piece = length < room ? length : room;
        if (!dice(8))
            piece = 1 + dice((uint32_t)piece);
        memcpy(at, data, piece);
        in_got(piece);
        stream_parse();
        data += piece;
        length -= piece;
    }
}

/* ---- making frames ---- */

static uint8_t frame[FRAME_EXTRA + MAX_PAYLOAD + 64], *p;
static uint32_t next_channel = 1;
static bool unsure;            /* this frame's numbers may have been changed */

static void noise(size_t length)
{
    while (length--)
        p = add_u8(p, (uint8_t)dice(256));
}

static void text(const char *s)
{
    p = add_str(p, s, strlen(s));
}

static void some_path(char *into, bool inside)
{
    static const char *const parts[] = {"a", "b", "c", "d", "ee", "..", "", ".", "new\nline"};
    *into = 0;
    for (uint32_t n = dice(4); n; n--) {
        uint32_t which = dice(200);
        if (!inside || *into)
            strcat(into, "/");
        strcat(into, parts[which < 9 ? which : which % 5]);
    }
}

static void some_text(void)
{
    static const char *const texts[] = {"", "", "root", "a", "s1", "/", "0", "X=1", "PATH=:/bin",
                                        "nobody", "=", "true", "/bin/true"};
    text(texts[dice(13)]);
}

static void some_texts(void)
{
    uint32_t count = dice(4);
    p = add_u32(p, count);
    while (count--)
        some_text();
}

static void some_entry(void)
{
    char path[64];
    const char type = "fffddlhcbpsew?"[dice(14)];
    p = add_u8(p, (uint8_t)type);
    p = add_u32(p, dice(010000));
    p = add_u32(p, dice(3));
    p = add_u32(p, dice(3));
    p = add_u64(p, dice(1u << 31));
    p = add_u32(p, dice(1000000000));
    p = add_u64(p, dice(1000));
    some_path(path, true);
    text(path);
    some_path(path, true);
    text(path);
    if (type != 'f')
        return;
    for (uint32_t n = dice(3); n; n--) {
        uint32_t length = 1 + dice(300);
        p = add_u32(p, length);
        noise(length);
    }
    p = add_u32(p, dice(10) ? 0 : dice(2) ? UINT32_MAX : dice(70000));
}

static void some_archive(void)
{
    if (!dice(3)) {
        p = add_u8(p, 'd');
        memset(p, 0, 40);
        p += 40;
    }
    for (uint32_t n = dice(6); n; n--)
        some_entry();
}

static void open_arguments(unsigned kind)
{
    char path[64] = "/";
    switch (kind) {
    case K_EXEC:
        p = add_u8(p, (uint8_t)dice(2));
        some_text(), some_text(), some_texts(), some_texts();
        break;
    case K_SESSION:
        p = add_u8(p, (uint8_t)dice(4));
        some_text(), some_text(), some_text(), some_texts(), some_texts();
        p = add_u16(add_u16(p, (uint16_t)dice(300)), (uint16_t)dice(100));
        break;
    case K_GET: case K_STAT: case K_PUT:
        p = add_u8(p, (uint8_t)dice(kind == K_PUT ? 3 : 2));
        some_path(path + 1, true);
        text(path);
        if (kind == K_PUT)
            some_text();
        break;
    case K_POWER:
        p = add_u8(p, (uint8_t)dice(2));
        break;
    case K_SETUP:
        p = add_u64(p, dice(5));
        some_text(), text(""), some_text();
        break;
    case K_PING:
        noise(dice(40));
        break;
    default:
        break;
    }
}

static unsigned some_kind(void)
{
    static const uint8_t often[] = {K_EXEC, K_EXEC, K_SESSION, K_SESSIONS, K_GET, K_PUT, K_PUT,
                                    K_PUT, K_STAT, K_POWER, K_SETUP, K_PING, 0, 11};
    return dice(1000) ? often[dice(sizeof often)] : (unsigned)K_METRICS;
}

static unsigned some_payload(uint32_t *channel)
{
    static const uint8_t often[] = {T_DATA, T_DATA, T_DATA, T_EOF, T_CREDIT, T_CREDIT, T_SIGNAL,
                                    T_RESIZE, T_CLOSE, T_HELLO, T_EXIT, 0, 99};
    if (dice(10) < 3) {
        uint32_t credit = dice(3) ? dice(100000) : dice(20);
        unsigned kind = some_kind();
        *channel = dice(100) ? next_channel++ : dice(5);
        p = add_u8(p, (uint8_t)kind);
        p = add_u32(p, credit);
        open_arguments(kind);
        credits[*channel % REMEMBERED].channel = *channel;
        credits[*channel % REMEMBERED].credit =
            *channel == next_channel - 1 ? credit : UINT64_MAX;
        return T_OPEN;
    }
    unsigned type = often[dice(sizeof often)];
    uint32_t more = dice(50000);
    *channel = next_channel - dice(next_channel < 60 ? next_channel : 60);
    switch (type) {
    case T_DATA:
        if (dice(2))
            some_archive();
        else
            noise(dice(50) ? dice(200) : dice(MAX_PAYLOAD));
        break;
    case T_CREDIT:
        p = add_u32(p, more);
        if (credit_of(*channel) && *credit_of(*channel) != UINT64_MAX)
            *credit_of(*channel) += more;
        break;
    case T_SIGNAL:
        p = add_u32(p, dice(70));
        break;
    case T_RESIZE:
        p = add_u16(add_u16(p, (uint16_t)dice(300)), (uint16_t)dice(100));
        break;
    default:
        noise(dice(4) ? 0 : dice(20));
        break;
    }
    return type;
}

static size_t make_frame(bool right)
{
    uint32_t channel;
    p = frame + FRAME_HEAD;
    unsigned type = some_payload(&channel);
    size_t length = (size_t)(p - frame) - FRAME_HEAD;
    if (length > MAX_PAYLOAD)
        length = MAX_PAYLOAD;
    unsure = !dice(6);
    if (unsure) {
        for (uint32_t n = dice(4); n && length; n--)
            frame[FRAME_HEAD + dice((uint32_t)length)] = (uint8_t)dice(256);
        if (!dice(3))
            length = dice((uint32_t)length + 1);
        if (credit_of(channel))
            *credit_of(channel) = UINT64_MAX;
    }
    frame[0] = 0xB5;
    frame[1] = (uint8_t)type;
    put16(frame + 2, 0);
    put32(frame + 4, channel);
    put32(frame + 8, (uint32_t)length);
    uint32_t check = channel * 0x9E3779B1u ^ (uint32_t)length * 0x85EBCA6Bu ^
                     (uint32_t)type * 0xC2B2AE35u ^ 0x5A17C0DEu;
    put32(frame + FRAME_HEAD + length, (check ? check : 1) ^ !right);
    return length + FRAME_EXTRA;
}

static void sync_now(void)
{
    static const uint8_t zeros[MAX_PAYLOAD + 16];
    static uint8_t record[32] = "\xf1" "boxgrove-sync" "\n\x1f";
    feed(zeros, sizeof zeros);
    put32(record + 16, dice(UINT32_MAX));
    feed(record, sizeof record);
}

/* Whatever came before: after a sync it listens and answers. */
static void sync_and_ask(void)
{
    sync_now();
    uint8_t open[FRAME_EXTRA + 5] = {0xB5, T_OPEN};
    ping_channel = next_channel++;
    put32(open + 4, ping_channel);
    put32(open + 8, 5);
    open[FRAME_HEAD] = K_PING;
    uint32_t check = ping_channel * 0x9E3779B1u ^ 5 * 0x85EBCA6Bu ^ T_OPEN * 0xC2B2AE35u ^
                     0x5A17C0DEu;
    put32(open + FRAME_HEAD + 5, check ? check : 1);
    feed(open, sizeof open);
    if (ping_channel)
        complain("a PING after a sync was not answered");
}

static void one_frame(void)
{
    uint32_t how = dice(2000);
    size_t length = make_frame(how != 0);
    if (how == 0 || how > 6) {
        feed(frame, length);
    } else {
        if (how < 4) {         /* cut, or with a header that lies, or nothing like a frame */
            feed(frame, dice((uint32_t)length));
        } else if (how < 6) {
            frame[dice(FRAME_HEAD)] ^= (uint8_t)(1 + dice(255));
            feed(frame, length);
        } else {
            p = frame;
            noise(dice(5000));
            feed(frame, (size_t)(p - frame));
        }
        next_channel += 100;
    }
    if (how < 20)
        sync_and_ask();
}

static void children_act(void)
{
    static uint8_t bytes[70000];
    struct child *c = &children[dice(CHILDREN)];
    if (!c->pid)
        return;
    for (int i = 1; i < 3; i++)
        if (c->fds[i] >= 0 && dice(2))
            (void)!write(c->fds[i], bytes, dice(20) ? dice(500) : dice(sizeof bytes));
    if (c->fds[0] >= 0 && dice(2) && fcntl(c->fds[0], F_GETFL) & O_NONBLOCK)
        (void)!read(c->fds[0], bytes, sizeof bytes);
    uint32_t which = dice(12);
    if (which < 3 && c->fds[which] >= 0) {
        close(c->fds[which]);
        c->fds[which] = -1;
    } else if (which == 3) {
        child_ends(c);
    }
}

static int open_descriptors(void)
{
    int count = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d))
        count++;
    if (d)
        closedir(d);
    return count;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: fuzz SEED FRAMES FOLDER\n");
        return 2;
    }
    dice_state = strtoull(argv[1], NULL, 10) * 0x9E3779B97F4A7C15u | 1;
    unsigned long frames = strtoul(argv[2], NULL, 10);
    folder = realpath(argv[3], NULL);
    if (!folder) {
        fprintf(stderr, "fuzz: no folder %s\n", argv[3]);
        return 2;
    }
    null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    stream_start();
    loop_start(false);
    int before = open_descriptors();
    sync_now();
    for (unsigned long i = 0; i < frames; i++) {
        one_frame();
        if (i % 8 == 0) {
            children_act();
            loop_once(0);
            swallow(!dice(4));
        }
    }
    for (int i = 0; i < CHILDREN; i++)
        if (children[i].pid)
            child_ends(&children[i]);
    sync_now();
    for (int i = 0; i < 200; i++) {
        loop_once(10);
        swallow(true);
    }
    if (open_descriptors() != before)
        complain("descriptors were left open");
    printf("%lu frames, no complaint\n", frames);
    return 0;
}
