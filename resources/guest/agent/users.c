/* Who a process runs as and what it finds in its environment, from the guest's own files. */
#include "agent.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LINE_BUFFER = 65536, MAX_ENV = 1024, ENV_TEXT = 32768 };

/* Lines of a file through one buffer; a line that does not fit is skipped whole. */
struct lines { int fd; size_t at, end; bool eof; };
static char line_buffer[LINE_BUFFER];

static bool lines_open(struct lines *l, const char *path)
{
    *l = (struct lines){.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)};
    return l->fd >= 0;
}

static char *lines_next(struct lines *l)
{
    bool skip = false;
    for (;;) {
        char *start = line_buffer + l->at;
        char *stop = memchr(start, '\n', l->end - l->at);
        if (!stop && l->eof && l->at < l->end)
            stop = line_buffer + l->end;
        if (stop) {
            *stop = 0;
            l->at = (size_t)(stop - line_buffer) + (stop < line_buffer + l->end);
            if (!skip)
                return start;
            skip = false;
            continue;
        }
        if (l->eof)
            return NULL;
        if (l->at == 0 && l->end == LINE_BUFFER - 1) {
            skip = true;
            l->end = 0;
        }
        memmove(line_buffer, line_buffer + l->at, l->end - l->at);
        l->end -= l->at;
        l->at = 0;
        ssize_t n = read(l->fd, line_buffer + l->end, LINE_BUFFER - 1 - l->end);
        if (n > 0)
            l->end += (size_t)n;
        else
            l->eof = true;
    }
}

/* The next field up to a colon, NUL-terminated in place. */
static char *field(char **rest)
{
    char *start = *rest, *colon = strchr(start, ':');
    if (colon) {
        *colon = 0;
        *rest = colon + 1;
    } else {
        *rest = start + strlen(start);
    }
    return start;
}

static bool number(const char *text, uint32_t *value)
{
    char *end;
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (*end || errno || v >= UINT32_MAX)
        return false;
    *value = (uint32_t)v;
    return true;
}

static void keep(char *into, size_t size, const char *text)
{
    size_t length = strlen(text);
    if (length >= size)
        length = size - 1;
    memcpy(into, text, length);
    into[length] = 0;
}

static bool from_passwd(const char *wanted, bool by_number, uint32_t wanted_uid, struct user *u)
{
    struct lines l;
    bool found = false;
    if (!lines_open(&l, "/etc/passwd"))
        return false;
    for (char *rest; !found && (rest = lines_next(&l));) {
        char *name = field(&rest);
        field(&rest);
        uint32_t uid, gid;
        if (!number(field(&rest), &uid) || !number(field(&rest), &gid))
            continue;
        if (by_number ? uid != wanted_uid : strcmp(name, wanted) != 0)
            continue;
        field(&rest);
        u->uid = uid;
        u->gid = gid;
        keep(u->name, sizeof u->name, name);
        keep(u->home, sizeof u->home, field(&rest));
        keep(u->shell, sizeof u->shell, field(&rest));
        found = true;
    }
    close(l.fd);
    return found;
}

static void find_groups(struct user *u)
{
    struct lines l;
    u->groups[0] = u->gid;
    u->group_count = 1;
    if (!u->name[0] || !lines_open(&l, "/etc/group"))
        return;
    const size_t most = sizeof u->groups / sizeof *u->groups;
    for (char *rest; u->group_count < most && (rest = lines_next(&l));) {
        uint32_t gid;
        field(&rest);
        field(&rest);
        if (!number(field(&rest), &gid) || gid == u->gid)
            continue;
        for (char *member; (member = strsep(&rest, ","));)
            if (strcmp(member, u->name) == 0) {
                u->groups[u->group_count++] = gid;
                break;
            }
    }
    close(l.fd);
}

int user_find(const char *name, struct user *u)
{
    uint32_t uid = 0;
    memset(u, 0, sizeof *u);
    if (!*name) {
        uid = geteuid();
        if (!from_passwd(name, true, uid, u)) {
            u->uid = uid;
            u->gid = getegid();
        }
    } else if (!from_passwd(name, false, 0, u)) {
        bool numeric = number(name, &uid);
        if (!numeric && strcmp(name, "root") != 0)
            return ENOENT;
        if (!from_passwd(name, true, uid, u))
            u->uid = uid;
    }
    if (!u->name[0])
        snprintf(u->name, sizeof u->name, u->uid ? "%u" : "root", u->uid);
    if (!u->home[0])
        keep(u->home, sizeof u->home, "/");
    if (!u->shell[0])
        keep(u->shell, sizeof u->shell, "/bin/sh");
    find_groups(u);
    return 0;
}

/* ---- the environment: one at a time, good until the next is made ---- */

static char *env_list[MAX_ENV + 1], env_text[ENV_TEXT];
static size_t env_count, env_used;

static bool env_keep(char *entry)
{
    size_t key = strcspn(entry, "=");
    for (size_t i = 0; i < env_count; i++)
        if (strncmp(env_list[i], entry, key + 1) == 0) {
            env_list[i] = entry;
            return true;
        }
    if (env_count == MAX_ENV)
        return false;
    env_list[env_count++] = entry;
    return true;
}

static bool env_add(const char *key, size_t key_length, const char *value, size_t length)
{
    size_t need = key_length + length + 2;
    if (need > ENV_TEXT - env_used)
        return false;
    char *p = env_text + env_used;
    memcpy(p, key, key_length);
    p[key_length] = '=';
    memcpy(p + key_length + 1, value, length);
    p[need - 1] = 0;
    env_used += need;
    return env_keep(p);
}

static bool env_set(const char *key, const char *value)
{
    return env_add(key, strlen(key), value, strlen(value));
}

static void env_file(void)
{
    struct lines l;
    if (!lines_open(&l, "/etc/environment"))
        return;
    for (char *line; (line = lines_next(&l));) {
        line += strspn(line, " \t");
        if (strncmp(line, "export ", 7) == 0)
            line += 7 + strspn(line + 7, " \t");
        size_t key = strcspn(line, "=");
        if (!key || !line[key] || line[strcspn(line, "# \t\"'$`=")] != '=')
            continue;
        char *value = line + key + 1;
        size_t length = strlen(value);
        while (length && strchr(" \t\r", value[length - 1]))
            length--;
        if (length >= 2 && (*value == '"' || *value == '\'') && value[length - 1] == *value) {
            value++;
            length -= 2;
        }
        env_add(line, key, value, length);
    }
    close(l.fd);
}

char **environment(const struct user *u, bool terminal, char **extra)
{
    env_count = env_used = 0;
    env_set("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    env_set("HOME", u->home);
    env_set("USER", u->name);
    env_set("LOGNAME", u->name);
    env_set("SHELL", u->shell);
    env_set("LANG", "C.UTF-8");
    if (terminal)
        env_set("TERM", "xterm-256color");
    env_file();
    for (; *extra; extra++)
        if (!env_keep(*extra))
            return NULL;
    env_list[env_count] = NULL;
    return env_list;
}

const char *environment_get(char **env, const char *key)
{
    size_t length = strlen(key);
    for (; *env; env++)
        if (strncmp(*env, key, length) == 0 && (*env)[length] == '=')
            return *env + length + 1;
    return NULL;
}
