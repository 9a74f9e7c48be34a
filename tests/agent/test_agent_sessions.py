"""Terminal sessions: they outlive their viewers and show each one what it missed."""

from __future__ import annotations

import hashlib
import os
import signal
import time

import pytest

from tests.agent.raw_client import RawClient
from vm_backends.agent.frames import Frame
from vm_backends.agent.protocol import Kind, Packer, Type, Unpacker

ENOENT, EEXIST, EINVAL, EMFILE = 2, 17, 22, 24
RING = 256 * 1024


def listed(client: RawClient) -> dict[str, tuple[int, int, int, int, str]]:
    """name -> pid, columns, rows, viewers, command."""
    take = client.ask(Kind.SESSIONS).reply
    found = {}
    for _ in range(take.u32()):
        name = take.text()
        pid, columns, rows, viewers = take.u32(), take.u16(), take.u16(), take.u16()
        assert abs(take.i64() - time.time()) < 600
        found[name] = (pid, columns, rows, viewers, take.text())
    take.end()
    return found


def leave(client: RawClient, channel: int) -> None:
    client.send(Type.CLOSE, channel)
    frame = client.next(lambda f: f.channel == channel and f.type == Type.CLOSED)
    assert frame == Frame(Type.CLOSED, channel, b"")


def test_type_and_read(client: RawClient) -> None:
    channel = client.session("a", "sh")
    created, pid, replay, name = client.attached(channel)
    assert (created, replay, name) == (True, 0, "a")
    client.send(Type.DATA, channel, b"echo $((6*7)) $TERM; tty; echo $$\n")
    seen = client.read_until(channel, str(pid).encode())
    assert b"42 xterm-256color" in seen
    assert b"/dev/pts/" in seen
    client.send(Type.DATA, channel, b"exit 5\n")
    assert client.finish(channel).status == 5
    assert listed(client) == {}


def test_it_is_a_controlling_terminal_and_ctrl_c_works(client: RawClient) -> None:
    script = "trap 'echo got-int; exit 3' INT; echo up; while sleep 0.1; do :; done"
    channel = client.session("a", "sh", "-c", script)
    client.attached(channel)
    client.read_until(channel, b"up")
    client.send(Type.DATA, channel, b"\x03")
    outcome = client.finish(channel)
    assert b"got-int" in outcome.out
    assert outcome.status == 3


def test_signal_goes_to_the_foreground(client: RawClient) -> None:
    channel = client.session("a", "sh", "-c", "echo up; exec sleep 60")
    client.attached(channel)
    client.read_until(channel, b"up")
    client.signal(channel, signal.SIGTERM)
    assert client.finish(channel).status == -signal.SIGTERM


def test_resize_is_seen_inside(client: RawClient) -> None:
    channel = client.session("a", "sh", columns=100, rows=30)
    client.attached(channel)
    client.send(Type.DATA, channel, b"stty size\n")
    client.read_until(channel, b"30 100")
    client.send(Type.RESIZE, channel, Packer().u16(132).u16(43).done())
    client.send(Type.DATA, channel, b"stty size\n")
    client.read_until(channel, b"43 132")
    assert listed(client)["a"][1:4] == (132, 43, 1)
    client.send(Type.DATA, channel, b"exit\n")
    client.finish(channel)


def test_detach_and_attach_again_with_replay(client: RawClient) -> None:
    first = client.session("work", "sh", "-c", "echo first; read line; echo got $line; read x")
    client.attached(first)
    before = client.read_until(first, b"first\r\n")
    leave(client, first)
    assert listed(client)["work"][3] == 0

    second = client.session("work", flags=0)
    created, _, replay, _ = client.attached(second)
    assert not created
    assert replay == len(before)
    assert client.read_until(second, b"first\r\n") == before
    client.send(Type.DATA, second, b"hello\n")
    client.read_until(second, b"got hello")
    client.send(Type.DATA, second, b"\n")
    assert client.finish(second).status == 0


def test_a_session_survives_a_sync(client: RawClient) -> None:
    first = client.session("work", "sh", "-c", "echo before; read line; echo after")
    _, pid, _, _ = client.attached(first)
    client.read_until(first, b"before")
    client.sync()
    assert listed(client)["work"][0] == pid
    second = client.session("work")
    assert client.attached(second)[:2] == (False, pid)
    client.read_until(second, b"before")
    client.send(Type.DATA, second, b"\n")
    outcome = client.finish(second)
    assert b"after" in outcome.out


def test_two_viewers_see_the_same(client: RawClient) -> None:
    one = client.session("a", "cat")
    client.attached(one)
    two = client.session("a")
    client.attached(two)
    assert listed(client)["a"][3] == 2
    client.send(Type.DATA, one, b"from one\n")
    client.send(Type.DATA, two, b"from two\n")
    for viewer in (one, two):
        # Each line twice: the terminal's echo, and cat's.
        seen = b""
        while seen.count(b"from two\r\n") < 2:
            seen += client.read_until(viewer, b"\n")
        assert seen.count(b"from one") == 2
    leave(client, one)
    client.send(Type.DATA, two, b"\x04")
    assert client.finish(two).status == 0


def test_a_slow_viewer_gets_a_gap_and_goes_on(client: RawClient) -> None:
    script = "read go; yes 0123456789 | head -n 60000; echo the-end; read x"
    slow = client.session("a", "sh", "-c", script, window=10)
    client.attached(slow)
    fast = client.session("a")
    client.attached(fast)
    client.send(Type.DATA, fast, b"\n")
    total = len(client.read_until(fast, b"the-end\r\n"))
    assert total > 2 * RING
    early = b""
    while len(early) < 10:
        early += client.of(slow).payload
    client.credit(slow, 1 << 24)
    gap = client.of(slow)
    assert gap.type == Type.GAP
    missed = Unpacker(gap.payload).u64()
    rest = client.read_until(slow, b"the-end\r\n")
    assert missed > 0
    assert len(rest) == RING
    assert len(early) + missed + len(rest) == total
    client.send(Type.DATA, fast, b"\n")
    assert client.finish(fast).status == 0
    assert client.finish(slow).status == 0


def test_the_only_viewer_holds_the_program_back(client: RawClient) -> None:
    script = "yes 0123456789 | head -n 100000; echo the-end"
    channel = client.session("a", "sh", "-c", script, window=1000)
    client.attached(channel)
    seen = b""
    while len(seen) < 1000:
        seen += client.of(channel).payload
    assert client.silent(channel)
    client.credit(channel, 1 << 24)
    outcome = client.finish(channel)
    assert outcome.gaps == []
    assert len(seen) + len(outcome.out) == 100000 * 12 + len("the-end\r\n")


def test_without_viewers_the_last_of_the_output_is_kept(client: RawClient) -> None:
    script = "read x; yes abcdefg | head -n 99999; echo end; read x"
    channel = client.session("a", "sh", "-c", script)
    client.attached(channel)
    client.send(Type.DATA, channel, b"\n")
    leave(client, channel)
    until = time.monotonic() + 20
    while True:
        again = client.session("a", window=1 << 20)
        _, _, replay, _ = client.attached(again)
        data = b""
        while len(data) < replay:
            data += client.of(again).payload
        if data.endswith(b"end\r\n"):
            break
        assert time.monotonic() < until
        leave(client, again)
    assert replay == RING
    client.send(Type.DATA, again, b"\n")
    assert client.finish(again).status == 0


def test_names(client: RawClient) -> None:
    first, second = client.session("", "cat"), client.session("", "cat")
    assert client.attached(first)[3] == "s1"
    assert client.attached(second)[3] == "s2"
    assert client.finish(client.session("s1", flags=2)).errno == EEXIST
    assert client.finish(client.session("nobody-home", flags=0)).errno == ENOENT
    assert client.finish(client.session("bad\nname", "cat")).errno == EINVAL
    assert client.finish(client.session("x" * 65, "cat")).errno == EINVAL
    third = client.session("ünï code", "cat", flags=3)
    assert client.attached(third)[3] == "ünï code"
    assert set(listed(client)) == {"s1", "s2", "ünï code"}
    for channel in (first, second, third):
        client.send(Type.DATA, channel, b"\x04")
        assert client.finish(channel).status == 0


def test_a_command_that_cannot_start_leaves_no_session(client: RawClient) -> None:
    assert client.finish(client.session("a", "/no/such/shell")).errno == ENOENT
    assert client.finish(client.session("a", "sh", user="no-such-user")).errno == ENOENT
    assert listed(client) == {}


def test_the_login_shell(client: RawClient) -> None:
    channel = client.session("a", user="root" if os.geteuid() == 0 else "")
    client.attached(channel)
    client.send(Type.DATA, channel, b"echo I am $0.\n")
    client.read_until(channel, b"I am -")
    client.send(Type.DATA, channel, b"exit\n")
    assert client.finish(channel).status == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_the_terminal_belongs_to_its_user(client: RawClient) -> None:
    channel = client.session("a", "sh", "-c", "id -un; stat -c %U $(tty)", user="daemon")
    client.attached(channel)
    assert client.finish(channel).out == b"daemon\r\ndaemon\r\n"


def test_output_before_the_end_is_never_lost(client: RawClient) -> None:
    for _ in range(30):
        channel = client.session("quick", "sh", "-c", "echo all of it; exit 9")
        outcome = client.finish(channel)
        assert (bytes(outcome.out), outcome.status) == (b"all of it\r\n", 9)


def test_too_many_sessions(client: RawClient) -> None:
    channels = [client.session("", "cat") for _ in range(64)]
    for channel in channels:
        client.attached(channel)
    assert client.finish(client.session("", "cat")).errno == EMFILE
    for channel in channels:
        client.signal(channel, signal.SIGKILL)
        assert client.finish(channel).status == -signal.SIGKILL


def test_much_input_to_a_program_that_reads_slowly(client: RawClient) -> None:
    script = "stty raw -echo; echo ready; sleep 0.3; head -c 200000 | md5sum"
    channel = client.session("a", "sh", "-c", script)
    frame = client.of(channel)
    credit = Unpacker(frame.payload).u32()
    client.read_until(channel, b"ready")
    sent = 0
    while sent < 200000:
        if credit < 4000:
            frame = client.next(lambda f: f.channel == channel and f.type == Type.CREDIT)
            credit += Unpacker(frame.payload).u32()
            continue
        client.send(Type.DATA, channel, b"y" * 4000)
        sent, credit = sent + 4000, credit - 4000
    outcome = client.finish(channel)
    assert hashlib.md5(b"y" * 200000).hexdigest().encode() in outcome.out
