"""The stream, commands and small requests, spoken raw with the real agent."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.raw_client import RawClient
from vm_backends.agent.frames import MAX_PAYLOAD, Frame, encode, sync_record
from vm_backends.agent.protocol import Kind, Packer, Type, Unpacker, open_payload

EPROTO, ENOENT, EACCES, EMFILE, EINVAL = 71, 2, 13, 24, 22


# The stream


def test_greets_with_version_epoch_and_system(client: RawClient) -> None:
    first, second = client.sync(), client.sync()
    assert first.version == 1
    assert first.epoch == second.epoch != "0" * 32
    assert not first.is_init
    assert (first.kernel, first.hostname) == (os.uname().release, os.uname().nodename)


def test_says_nothing_before_a_sync(plain_agent: Path) -> None:
    with RawClient(plain_agent) as client:
        client.send(Type.OPEN, 1, open_payload(Kind.PING, b"hello?"))
        client.socket.settimeout(0.2)
        with pytest.raises(socket.timeout):
            client.socket.recv(1)
        client.socket.settimeout(30)
        client.sync()


def test_sync_after_a_frame_cut_at_every_offset(client: RawClient) -> None:
    whole = encode(Type.OPEN, 7, open_payload(Kind.PING, b"cut me")) + sync_record(bytes(16))
    for cut in range(len(whole) + 1):
        client.send_bytes(whole[:cut])
        client.sync()
    client.ping(b"still here")


@pytest.mark.parametrize("cut", [1, 11, 12, 13, 4096, 65536, 65547, 65551])
def test_sync_after_the_largest_frame_was_cut(client: RawClient, cut: int) -> None:
    client.send_bytes(encode(Type.DATA, 1, b"\xb5\xf1\0x" * (MAX_PAYLOAD // 4))[:cut])
    client.sync()
    client.ping(b"still here")


def test_sync_magic_inside_a_frame_is_just_data(client: RawClient) -> None:
    client.ping(sync_record(b"n" * 16) * 3)


def test_frames_may_come_in_single_bytes(client: RawClient) -> None:
    channel = client._channel = client._channel + 1
    for byte in encode(Type.OPEN, channel, open_payload(Kind.PING, b"drop by drop")):
        client.send_bytes(bytes([byte]))
    assert client.of(channel).payload == b"drop by drop"


def test_a_bad_check_loses_the_stream_until_the_next_sync(client: RawClient) -> None:
    bad = bytearray(encode(Type.OPEN, 1, open_payload(Kind.PING, b"x")))
    bad[-1] ^= 1
    client.send_bytes(bytes(bad) + encode(Type.OPEN, 2, open_payload(Kind.PING, b"y")))
    client.sync()
    client._channel = 9
    client.ping(b"z")
    assert not client._waiting


def test_garbage_of_every_kind_is_survived(client: RawClient) -> None:
    dice = random.Random(5)
    for _ in range(60):
        noise = dice.randbytes(dice.randrange(1, 5000))
        client.send_bytes(dice.choice([noise, b"\xb5" + noise, b"\xf1boxgrove" + noise]))
        client.sync()
    client.ping(b"fine")


def test_unsent_output_is_forgotten_at_a_sync(client: RawClient) -> None:
    client.exec_open("yes", window=1 << 20)
    client.of(client._channel)
    client.sync()
    client.ping(b"and nothing else")
    assert not client._waiting


def test_the_agent_ends_with_its_descriptor(plain_agent: Path) -> None:
    client = RawClient(plain_agent)
    with client:
        client.sync()
    assert client.process.returncode == 0


# Channels


def test_ping_of_every_size(client: RawClient) -> None:
    for size in (0, 1, 4095, 4096, MAX_PAYLOAD - 5):
        client.ping(os.urandom(size))


def test_a_flood_of_pings_is_answered_in_order(client: RawClient) -> None:
    payload = bytes(8000)
    channels = []
    for _ in range(300):
        channels.append(client.open(Kind.PING, payload))
        if len(channels) >= 8:
            assert client.of(channels.pop(0)).payload == payload
    for channel in channels:
        assert client.of(channel).payload == payload


def test_unknown_kinds_and_types(client: RawClient) -> None:
    client.send(Type.OPEN, 900, b"\x63" + bytes(4))
    assert client.of(900).type == Type.REFUSED
    client.send(99, 901, b"what is this")
    client.send(Type.DATA, 902, b"to nobody")
    client.send(Type.OPEN, 0, open_payload(Kind.PING))
    client.ping(b"ok")
    assert not client._waiting


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (Kind.EXEC, b""),
        (Kind.EXEC, Packer().u8(1).text("").text("").texts([]).texts([]).done()),
        (Kind.EXEC, Packer().u8(1).text("").text("").texts([]).texts(["x"]).u8(0).done()),
        (Kind.EXEC, Packer().u8(1).u32(3).raw(b"a\0b").text("").texts([]).texts(["x"]).done()),
        (Kind.EXEC, Packer().u8(1).text("").text("").u32(0xFFFFFFFF).done()),
        (Kind.EXEC, Packer().u8(1).u32(0x7FFFFFFF).raw(b"abc").done()),
        (Kind.SESSION, Packer().u8(255).text("").done()),
        (Kind.SESSIONS, b"x"),
        (Kind.GET, Packer().u8(2).text("/").done()),
        (Kind.PUT, Packer().u8(3).text("/x").text("").done()),
        (Kind.STAT, Packer().u8(0).u32(9).raw(b"/").done()),
        (Kind.METRICS, b"\0"),
        (Kind.POWER, b"\x07"),
        (Kind.SETUP, Packer().i64(0).text("no spaces please").text("").text("").done()),
        (Kind.SETUP, Packer().i64(0).text("").text("not hex").text("").done()),
    ],
)
def test_malformed_requests_are_refused(client: RawClient, kind: Kind, arguments: bytes) -> None:
    assert client.ask(kind, arguments).errno == EPROTO
    client.ping(b"ok")


def test_too_many_channels(client: RawClient) -> None:
    sleepers = [client.exec_open("sleep", "60", stdin=True) for _ in range(256)]
    for channel in sleepers:
        assert client.of(channel).type == Type.OPENED
    assert client.ask(Kind.PING).errno == EMFILE
    client.signal(sleepers[0], signal.SIGKILL)
    assert client.finish(sleepers[0]).status == -signal.SIGKILL
    client.ping(b"room again")
    for channel in sleepers[1:]:
        client.send(Type.CLOSE, channel)
    for channel in sleepers[1:]:
        assert client.finish(channel).end.type == Type.CLOSED


# Commands


def test_streams_and_status(client: RawClient) -> None:
    done = client.exec("sh", "-c", "echo out; echo err >&2; exit 7")
    assert (bytes(done.out), bytes(done.err), done.status, done.eof) == (
        b"out\n",
        b"err\n",
        7,
        True,
    )


def test_a_signal_is_a_negative_status(client: RawClient) -> None:
    assert client.exec("sh", "-c", "kill -TERM $$").status == -signal.SIGTERM


def test_commands_that_cannot_start(client: RawClient, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("not executable")
    assert client.exec("no-such-command-here").errno == ENOENT
    assert client.exec("/no/such/command").errno == ENOENT
    assert client.exec(str(plain)).errno == EACCES
    assert client.exec("true", cwd="/no/such/folder").errno == ENOENT
    assert client.exec("true", user="no-such-user").errno == ENOENT
    assert client.exec("").errno == ENOENT


def test_the_first_of_many_frames_is_opened_with_the_pid(client: RawClient) -> None:
    done = client.exec("sh", "-c", "echo $$")
    assert done.opened is not None
    take = Unpacker(done.opened)
    assert take.u32() == 0
    assert take.u32() == int(done.out)


def test_environment_and_folder(client: RawClient, tmp_path: Path) -> None:
    script = 'printf "%s|" "$PATH" "$HOME" "$USER" "$LANG" "$X" "$(pwd)"'
    done = client.exec("sh", "-c", script, env=["X=a b", "LANG=de"], cwd=str(tmp_path))
    path, home, user, lang, x, cwd, _ = done.out.decode().split("|")
    assert "/usr/bin" in path.split(":")
    assert (lang, x, cwd) == ("de", "a b", str(tmp_path))
    assert Path(home).is_dir()
    assert user


def test_path_of_the_new_environment_is_searched(client: RawClient, tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\necho found\n")
    (tmp_path / "tool").chmod(0o755)
    assert client.exec("tool").errno == ENOENT
    assert client.exec("tool", env=[f"PATH=/nowhere:{tmp_path}"]).out == b"found\n"


LIBC_SIGNALS = 0b111 << 31
"""32 to 34: the C library keeps them to itself, so what our caller ignores stays ignored."""


def test_a_clean_start(client: RawClient) -> None:
    script = (
        "grep -E 'Sig(Blk|Ign|Cgt)' /proc/self/status; ls -l /proc/self/fd | grep -c pipe;"
        "cut -d' ' -f5,6 /proc/self/stat; cat /proc/self/oom_score_adj; ulimit -n; umask"
    )
    lines = client.exec("sh", "-c", script).out.decode().split("\n")
    masks = [int(line.split()[1], 16) for line in lines[:2]]
    assert [mask & ~LIBC_SIGNALS for mask in masks] == [0, 0]
    assert lines[4].split()[0] == lines[4].split()[1], "it leads its own group and session"
    assert (lines[5], lines[7]) == ("0", "0022")
    assert int(lines[6]) <= 1024


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_runs_as_somebody_else(client: RawClient) -> None:
    assert client.exec("id", "-u", user="nobody").out == b"65534\n"
    assert client.exec("id", "-un", user="1").out == b"daemon\n"
    assert client.exec("id", "-u", user="54321").out == b"54321\n"
    assert client.exec("sh", "-c", 'echo "$USER"', user="daemon").out == b"daemon\n"
    assert client.exec("cat", "/etc/shadow", user="nobody").status == 1


def test_stdin_and_its_end(client: RawClient) -> None:
    channel = client.exec_open("cat", stdin=True)
    opened = Unpacker(client.of(channel).payload)
    assert opened.u32() >= 65536
    client.send(Type.DATA, channel, b"one\n")
    assert client.of(channel).payload == b"one\n"
    client.send(Type.DATA, channel, b"two\n")
    client.send(Type.EOF, channel)
    done = client.finish(channel)
    assert (bytes(done.out), done.status) == (b"two\n", 0)


def test_large_data_both_ways(client: RawClient) -> None:
    data = random.Random(1).randbytes(8 << 20)
    channel = client.exec_open("cat", stdin=True)
    credit = Unpacker(client.of(channel).payload).u32()
    back, at, end = bytearray(), 0, None
    while end is None:
        piece = data[at : at + min(credit, 60000)]
        if piece:
            client.send(Type.DATA, channel, piece)
            at, credit = at + len(piece), credit - len(piece)
            if at == len(data):
                client.send(Type.EOF, channel)
                credit = 0
            if credit >= 60000:
                continue
        frame = client.of(channel)
        if frame.type == Type.CREDIT:
            credit += Unpacker(frame.payload).u32()
        elif frame.type == Type.DATA:
            back += frame.payload
            client.credit(channel, len(frame.payload))
        elif frame.type == Type.EXIT:
            end = frame
    assert back == data


def test_never_more_than_the_credit(client: RawClient) -> None:
    channel = client.exec_open("sh", "-c", "yes | head -c 300000; exit 3", window=1000)
    assert client.of(channel).type == Type.OPENED
    seen = len(client.of(channel).payload)
    while seen < 1000:
        seen += len(client.of(channel).payload)
    assert seen == 1000
    assert client.silent(channel)
    client.credit(channel, 500)
    assert len(client.of(channel).payload) == 500
    assert client.silent(channel)
    client.credit(channel, 1 << 20)
    done = client.finish(channel)
    assert (len(done.out), done.status) == (300000 - 1500, 3)


def test_an_end_needs_no_credit(client: RawClient) -> None:
    assert client.finish(client.exec_open("true", window=0)).status == 0
    done = client.exec_open("echo", "four", window=5)
    outcome = client.finish(done)
    assert (bytes(outcome.out), outcome.eof, outcome.status) == (b"four\n", True, 0)


def test_too_much_stdin_ends_the_channel(client: RawClient) -> None:
    channel = client.exec_open("sleep", "60", stdin=True)
    credit = Unpacker(client.of(channel).payload).u32()
    for _ in range(3 * credit // 32768):  # its pipe takes some as well
        client.send(Type.DATA, channel, bytes(32768))
    frame = client.next(lambda f: f.channel == channel and f.type == Type.REFUSED)
    assert Unpacker(frame.payload).i32() == EPROTO
    channel = client.exec_open("sleep", "60")
    client.send(Type.DATA, channel, b"there is no stdin")
    assert client.finish(channel).errno == EPROTO


def test_a_command_that_closes_stdin_does_not_block_the_host(client: RawClient) -> None:
    channel = client.exec_open("sh", "-c", "exec 0<&-; sleep 0.3; echo done", stdin=True)
    credit = Unpacker(client.of(channel).payload).u32()
    sent = 0
    while sent < 1 << 20:
        if credit < 32768:
            frame = client.next(lambda f: f.channel == channel and f.type != Type.DATA)
            if frame.type != Type.CREDIT:
                break
            credit += Unpacker(frame.payload).u32()
            continue
        client.send(Type.DATA, channel, bytes(32768))
        sent, credit = sent + 32768, credit - 32768
    assert sent >= 1 << 20
    client.send(Type.EOF, channel)
    assert client.finish(channel).status == 0


def test_signals_reach_the_whole_group(client: RawClient) -> None:
    channel = client.exec_open("sh", "-c", "sleep 60 & echo started; wait")
    assert client.of(channel).type == Type.OPENED
    client.read_until(channel, b"started\n")
    client.signal(channel, signal.SIGTERM)
    assert client.finish(channel).status == -signal.SIGTERM


def test_exit_does_not_wait_for_grandchildren(client: RawClient) -> None:
    begun = time.monotonic()
    done = client.exec("sh", "-c", "sleep 30 & echo $!; exit 4")
    assert (done.status, done.eof) == (4, False)
    assert time.monotonic() - begun < 10
    os.kill(int(done.out), signal.SIGKILL)


def test_close_hangs_up_and_says_closed(client: RawClient, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f"trap 'echo hup > {mark}; exit' HUP; echo; while sleep 0.1; do :; done"
    channel = client.exec_open("sh", "-c", script)
    assert client.of(channel).type == Type.OPENED
    client.read_until(channel, b"\n")
    client.send(Type.CLOSE, channel)
    assert client.of(channel) == Frame(Type.CLOSED, channel, b"")
    _wait_for(lambda: mark.exists() and mark.read_text() == "hup\n")


def test_an_orphan_goes_on_after_a_sync(client: RawClient, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f"yes | head -c 3000000; cat; echo done > {mark}"
    channel = client.exec_open("sh", "-c", script, stdin=True)
    assert client.of(channel).type == Type.OPENED
    client.sync()
    _wait_for(lambda: mark.exists() and mark.read_text() == "done\n")
    client.ping(b"and the agent too")


def test_two_commands_share_the_stream(client: RawClient) -> None:
    flood = client.exec_open("yes", window=1 << 22)
    assert client.of(flood).type == Type.OPENED
    assert client.exec("echo", "me too").out == b"me too\n"
    client.send(Type.CLOSE, flood)
    assert client.next(lambda f: f.channel == flood and f.type == Type.CLOSED)


# Small requests


def test_stat(client: RawClient, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    os.utime(tmp_path / "file", ns=(0, 1_500_000_000_000_000_007))
    (tmp_path / "file").chmod(0o640)
    (tmp_path / "link").symlink_to("file")

    def stat(path: str, follow: bool) -> tuple[str, int, int, int, int, str]:
        take = client.ask(Kind.STAT, Packer().u8(follow).text(path).done()).reply
        kind, mode = chr(take.u8()), take.u32()
        assert (take.u32(), take.u32()) == (os.geteuid(), os.getegid())
        answer = (kind, mode, take.u64(), take.i64(), take.u32(), take.text())
        take.end()
        return answer

    whole = ("f", 0o640, 5, 1_500_000_000, 7, "")
    assert stat(str(tmp_path / "file"), False) == whole
    assert stat(str(tmp_path / "link"), True) == whole
    assert stat(str(tmp_path / "link"), False)[::5] == ("l", "file")
    assert stat(str(tmp_path), False)[0] == "d"
    missing = Packer().u8(0).text(str(tmp_path / "missing")).done()
    assert client.ask(Kind.STAT, missing).errno == ENOENT
    assert client.ask(Kind.STAT, Packer().u8(0).text("relative").done()).errno == EINVAL


def test_metrics_are_those_of_this_machine(client: RawClient) -> None:
    take = client.ask(Kind.METRICS).reply
    count = take.u32()
    uptime, cpus, busy, total, memory, available, disk, free, processes, load = (
        take.u64() for _ in range(count)
    )
    take.end()
    assert abs(uptime - time.monotonic() * 1000) < 3_600_000
    assert cpus == os.sysconf("SC_NPROCESSORS_ONLN")
    assert 0 < busy < total
    assert 0 < available <= memory
    size = os.statvfs("/")
    assert disk == size.f_blocks * size.f_frsize
    assert 0 < free <= disk
    assert processes >= 3
    assert load < 100_000


def test_setup_that_changes_nothing_but_entropy(client: RawClient) -> None:
    before = os.uname().nodename
    done = client.ask(Kind.SETUP, Packer().i64(0).text("").text("").text("ab" * 32).done())
    assert done.reply.rest() == b""
    assert os.uname().nodename == before


def _wait_for(holds: Callable[[], bool]) -> None:
    """For what another process does to a file: it has no event that we could wait on."""
    until = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.01)
