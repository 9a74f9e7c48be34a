/* Shared by all parts of the guest agent: the protocol's numbers and what each part offers. */
#ifndef BOXGROVE_AGENT_H
#define BOXGROVE_AGENT_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the protocol is little-endian and so is every machine we run on"
#endif

enum {
    PROTOCOL_VERSION = 1,
    MAX_PAYLOAD = 65536,
    FRAME_HEAD = 12,
    FRAME_TAIL = 4,
    FRAME_EXTRA = FRAME_HEAD + FRAME_TAIL,
    MAX_STRING = 32768,
    MAX_CHANNELS = 256,
    MAX_SESSIONS = 64,
    MAX_PATH = 4096,
};

enum type {
    T_HELLO = 1, T_OPEN, T_OPENED, T_REFUSED, T_DATA, T_DATA2, T_EOF, T_CREDIT, T_SIGNAL,
    T_RESIZE, T_EXIT, T_CLOSE, T_CLOSED, T_REPLY, T_GAP, T_EVENT,
};

enum kind {
    K_EXEC = 1, K_SESSION, K_SESSIONS, K_GET, K_PUT, K_STAT, K_METRICS, K_POWER, K_SETUP, K_PING,
};

enum power { POWER_OFF = 0, POWER_REBOOT = 1 };

/* ---- bytes (wire.c) ---- */

static inline uint16_t get16(const void *p) { uint16_t v; memcpy(&v, p, 2); return v; }
static inline uint32_t get32(const void *p) { uint32_t v; memcpy(&v, p, 4); return v; }
static inline uint64_t get64(const void *p) { uint64_t v; memcpy(&v, p, 8); return v; }
static inline void put16(void *p, uint16_t v) { memcpy(p, &v, 2); }
static inline void put32(void *p, uint32_t v) { memcpy(p, &v, 4); }
static inline void put64(void *p, uint64_t v) { memcpy(p, &v, 8); }

/* Takes a payload apart. Once `bad`, always bad, and every later value is zero or empty. */
struct reader { uint8_t *at, *end; bool bad; };
uint8_t read_u8(struct reader *r);
uint16_t read_u16(struct reader *r);
uint32_t read_u32(struct reader *r);
uint64_t read_u64(struct reader *r);
char *read_str(struct reader *r);                 /* NUL-terminated, inside the payload */
void copy_bytes(void *to, const void *from, size_t length); /* forward; `to` may overlap below */
size_t read_list(struct reader *r, char **into, size_t most); /* NULL-terminated; most >= 1 */
bool read_done(struct reader *r);                 /* all read, nothing bad */

/* Appends fields; the caller asked `out_begin` for enough room. */
uint8_t *add_u8(uint8_t *p, uint8_t v);
uint8_t *add_u16(uint8_t *p, uint16_t v);
uint8_t *add_u32(uint8_t *p, uint32_t v);
uint8_t *add_u64(uint8_t *p, uint64_t v);
uint8_t *add_str(uint8_t *p, const char *s, size_t length);

/* Bytes that wait for a slow reader: a ring, allocated when first needed. */
struct pending { uint8_t *ring; uint32_t size, at, length; };
bool pending_put(struct pending *p, const uint8_t *data, uint32_t length, uint32_t limit);
ssize_t pending_write(struct pending *p, int fd); /* bytes that went out, or -errno */
void pending_free(struct pending *p);

/* Large memory that a fork does not copy: starting a process stays cheap. NULL: there is none. */
uint8_t *buffer_make(size_t size);
void buffer_free(uint8_t *buffer, size_t size);

/* ---- the stream (stream.c) ---- */

void stream_start(void);
uint8_t *in_room(size_t *room);                   /* where the next bytes of the host go */
void in_got(size_t length);
bool stream_parse(void);                          /* acts on complete frames; true: some */
bool stream_stalled(void);                        /* input waits until output has gone */
uint8_t *out_begin(size_t most);                  /* room for a payload; never NULL */
void out_end(unsigned type, uint32_t channel, size_t length);
void out_frame(unsigned type, uint32_t channel, const void *payload, size_t length);
bool out_takes_data(void);                        /* false: too much waits already */
const uint8_t *out_waiting(size_t *length);
void out_gone(size_t length);

/* ---- channels (channel.c) ---- */

struct channel;
struct channel_ops {
    void (*data)(struct channel *c, const uint8_t *data, uint32_t length);
    void (*eof)(struct channel *c);
    void (*signal)(struct channel *c, int number);
    void (*resize)(struct channel *c, unsigned columns, unsigned rows);
    bool (*pump)(struct channel *c);              /* send one piece; true: did something */
    void (*drop)(struct channel *c, bool closed); /* the host left: by CLOSE, or it vanished */
};

struct channel {
    uint32_t id;                                  /* 0: free */
    const struct channel_ops *ops;
    uint64_t credit;                              /* what we may send */
    uint32_t window, owed;                        /* the host may send; eaten, not told yet */
    uint32_t give_back;                           /* the amount worth a CREDIT frame */
    bool host_eof;
};

void frame_in(unsigned type, uint32_t id, uint8_t *payload, uint32_t length);
void channels_drop_all(void);
bool channels_pump(void);
unsigned channel_slot(const struct channel *c);
void channel_opened(struct channel *c, const struct channel_ops *ops);
void channel_window(struct channel *c, uint32_t window);
void channel_ate(struct channel *c, uint32_t length); /* gives credit back, in large pieces */
void channel_end(struct channel *c);              /* frees the slot, sends nothing */
void channel_refuse(struct channel *c, int error, const char *message);
void channel_exit(struct channel *c, int32_t status, const char *message);
void channel_reply(struct channel *c, size_t length); /* what out_begin gave is the REPLY */

/* ---- the kinds; each answers, refuses or opens the channel ---- */

void exec_open(struct channel *c, struct reader *r);
void session_open(struct channel *c, struct reader *r);
void sessions_list(struct channel *c, struct reader *r);
void get_open(struct channel *c, struct reader *r);
void put_open(struct channel *c, struct reader *r);
void stat_open(struct channel *c, struct reader *r);
void metrics_open(struct channel *c, struct reader *r);
void power_open(struct channel *c, struct reader *r);
void setup_open(struct channel *c, struct reader *r);

uint8_t entry_type(mode_t mode);                  /* the archive's letter for it */

bool exec_reaped(pid_t pid, int status);          /* true: it was ours */
bool session_reaped(pid_t pid, int status);
bool sessions_pump(void);
void sessions_hang_up(void);

/* ---- users and environments (users.c) ---- */

struct user {
    uint32_t uid, gid;
    size_t group_count;
    gid_t groups[64];
    char name[64], home[512], shell[256];
};
int user_find(const char *name, struct user *u);  /* 0 or an errno */
char **environment(const struct user *u, bool terminal, char **extra); /* NULL: too large */
const char *environment_get(char **env, const char *key);

/* ---- processes (spawn.c) ---- */

struct launch {
    const struct user *user;
    const char *cwd;                              /* empty: home, else / */
    const char *file;                             /* argv[0] unless it differs */
    char **argv, **env;
    int stdio[3];
    bool terminal;
};
void launch_keep(struct reader *r);               /* see there */
void spawn_setup(const int folders[2], bool protected); /* NULL: the cgroups stay as they are */
pid_t spawn(const struct launch *l, int *status_fd); /* or -errno; status_fd: see spawn_result */
int spawn_result(int status_fd, char *message, size_t size); /* 0: runs, EAGAIN: not known yet */
int pipe_pair(int ends[2]);

/* ---- the loop (loop.c) ---- */

struct watch { int fd; void (*ready)(struct watch *w, uint32_t events); };
int watch_add(struct watch *w, uint32_t events);
int watch_change(struct watch *w, uint32_t events);
void watch_close(struct watch *w);
void drain_take(struct watch *w);                 /* reads and drops the rest; takes the fd over */
void loop_start(bool init);
void loop_once(int most_ms);
void loop_run(void) __attribute__((noreturn));
uint64_t now_ms(void);

/* ---- the port (port.c) ---- */

int port_find(const char *name, char *path, size_t size);
int port_open(const char *name_or_path, unsigned wait_ms);
void port_use(int fd);
bool port_flush(void);                            /* true: something went out */
void port_rearm(void);
int port_tick(void);                              /* ms until it wants to be called again, or -1 */
void port_flush_within(unsigned ms);

/* ---- the machine (boot.c, root.c, limits.c, power.c, setup.c) ---- */

extern bool is_init;
extern int null_fd;
extern uint8_t agent_epoch[16];
int boot(void);                                   /* as init; the port, or -1 */
int root_mount(const char *device);
void machine_name(const char *name);
void machine_id(const char *id);
void machine_random(void *into, size_t length);
void protect_self(void);
void limits_setup(int folders[2]);                /* cgroups for work, or -1: all, then spare */
void power_now(enum power how) __attribute__((noreturn));
void power_request(enum power how);
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool read_small(const char *path, char *into, size_t size);
bool write_small(const char *path, const char *text);

/* ---- what a fuzz build replaces ---- */

#ifdef BOXGROVE_FUZZ
pid_t fuzz_fork(const struct launch *l, int status_fd);
int fuzz_kill(pid_t pid, int number);
const char *fuzz_path(const char *path);
int fuzz_symlinkat(const char *target, int folder, const char *name);
void fuzz_sent(unsigned type, uint32_t channel, size_t length);
#define sys_kill fuzz_kill
#define sys_path fuzz_path
#define sys_symlinkat fuzz_symlinkat
#else
#define sys_kill kill
#define sys_path(path) (path)
#define sys_symlinkat symlinkat
#endif

#endif
