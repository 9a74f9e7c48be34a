/* Making a session: its name, its pseudo-terminal, its ring. */
#include "session.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

bool session_name_good(const char *name)
{
    size_t length = 0;
    for (; name[length]; length++)
        if ((unsigned char)name[length] < 32 || name[length] == 127)
            return false;
    return length <= SESSION_NAME;
}

void session_describe(struct session *s, const char *name, char **argv)
{
    if (*name) {
        strcpy(s->name, name); /* session_name_good has measured it */
    } else {
        char free_name[16];
        unsigned number = 0;
        do
            snprintf(free_name, sizeof free_name, "s%u", ++number);
        while (session_named(free_name));
        strcpy(s->name, free_name);
    }
    size_t used = 0;
    for (; *argv && used < sizeof s->command - 2; argv++) {
        size_t left = sizeof s->command - used;
        int n = snprintf(s->command + used, left, used ? " %s" : "%s", *argv);
        used += (size_t)n < left ? (size_t)n : left - 1;
    }
}

int terminal_open(struct session *s, const struct user *u, int *slave)
{
    char path[32];
    int number, unlock = 0;
    int fd = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return errno;
    s->terminal.fd = fd;
    if (ioctl(fd, TIOCSPTLCK, &unlock) || ioctl(fd, TIOCGPTN, &number))
        return errno;
    snprintf(path, sizeof path, "/dev/pts/%d", number);
    s->ring = buffer_make(RING_SIZE);
    if (!s->ring)
        return ENOMEM;
    *slave = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (*slave < 0)
        return errno;
    struct winsize size = {.ws_col = s->columns, .ws_row = s->rows};
    ioctl(fd, TIOCSWINSZ, &size);
    struct termios modes;
    if (tcgetattr(*slave, &modes) == 0) {
        modes.c_iflag |= IUTF8;
        modes.c_cc[VERASE] = 127;
        tcsetattr(*slave, TCSANOW, &modes);
    }
    const gid_t tty = 5;
    (void)!fchown(*slave, u->uid, tty);
    fchmod(*slave, 0620);
    return 0;
}
