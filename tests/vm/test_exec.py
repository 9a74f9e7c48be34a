"""Commands in a real guest: input, output, status, signals, users, terminals, many bytes."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from tests.helpers.homes import Home, assert_fault, wait_until
from tests.vm.conftest import MakeBox, OpenTerminal

pytestmark = pytest.mark.vm

MANY = 200 * 1000 * 1000
ENOUGH_MEMORY = 100 * 2**20


def guest_processes(home: Home, box: str) -> str:
    return home.ok("exec", box, "--", "ps", "-o", "pid,stat,args")


def test_status_is_the_commands_own(home: Home, starter: str) -> None:
    assert home.run("exec", starter, "--", "true").returncode == 0
    assert home.run("exec", starter, "--", "sh", "-c", "exit 7").returncode == 7
    assert home.run("exec", starter, "--", "sh", "-c", "exit 255").returncode == 255


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_killed_by_a_signal_is_128_and_more(home: Home, starter: str, number: int) -> None:
    done = home.run("exec", starter, "--", "sh", "-c", f"kill -{number:d} $$")
    assert done.returncode == 128 + number


def test_input_goes_in_and_output_comes_out(home: Home, starter: str) -> None:
    assert home.run("exec", starter, "--", "cat", input=b"hi\n").stdout == b"hi\n"
    every_byte = bytes(range(256)) * 9
    assert home.run("exec", starter, "--", "cat", input=every_byte).stdout == every_byte


def test_a_file_as_input(home: Home, starter: str, tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"from a file\n")
    with path.open("rb") as file:
        running = home.start("exec", starter, "--", "cat", stdin=file)
        assert running.communicate(timeout=60)[0] == b"from a file\n"


def test_no_stdin_ends_at_once(home: Home, starter: str) -> None:
    reader, writer = os.pipe()  # An input that never ends, which must not be waited for.
    try:
        running = home.start("exec", "-n", starter, "--", "cat", stdin=reader)
        assert running.communicate(timeout=60) == (b"", b"")
        assert running.returncode == 0
    finally:
        os.close(reader)
        os.close(writer)


def test_a_command_that_does_not_read_is_not_waited_for(home: Home, starter: str) -> None:
    done = home.run("exec", starter, "--", "sh", "-c", "exit 3", input=b"x" * 5_000_000)
    assert done.returncode == 3


def test_stdout_and_stderr_stay_apart(home: Home, starter: str) -> None:
    script = "echo out; echo err >&2; echo out2; echo err2 >&2"
    done = home.run("exec", starter, "--", "sh", "-c", script)
    assert (done.stdout, done.stderr) == (b"out\nout2\n", b"err\nerr2\n")


def test_words_arrive_as_they_are(home: Home, starter: str) -> None:
    odd = ["a b", "", "*", "$HOME", "'\"", "new\nline", "-n", "--json", "ü", "\udcff"]
    done = home.run("exec", starter, "--", "printf", "%s\\n", *odd)
    assert done.stdout == os.fsencode("\n".join(odd) + "\n")


def test_user_folder_and_variables(home: Home, starter: str) -> None:
    script = 'id -un; pwd; echo "$A/$B"; echo $HOME'
    words = ("-u", "claw", "-w", "/etc", "-e", "A=1 2", "-e", "B==")
    said = home.ok("exec", *words, starter, "--", "sh", "-c", script)
    assert said.splitlines() == ["claw", "/etc", "1 2/=", "/home/claw"]
    assert home.ok("exec", "-u", "claw", starter, "--", "pwd") == "/home/claw\n"
    assert home.run("exec", "-u", "claw", starter, "--", "touch", "/etc/x").returncode == 1


def test_what_cannot_be_run(home: Home, starter: str) -> None:
    assert_fault(home.run("exec", starter, "--", "no-such"), "guest-refused", "no-such", status=127)
    assert_fault(home.run("exec", starter, "--", "/etc/passwd"), "guest-refused", status=126)
    assert_fault(home.run("exec", starter, "--", "/etc"), "guest-refused", status=126)
    done = home.run("exec", "-u", "nobody-knows", starter, "--", "id")
    assert_fault(done, "guest-refused", "no such user", status=125)
    done = home.run("exec", "-w", "/no/such", starter, "--", "id")
    assert_fault(done, "guest-refused", "working folder", status=125)


def test_timeout_ends_the_command_in_the_guest(home: Home, starter: str) -> None:
    done = home.run("exec", "--timeout", "1s", starter, "--", "sleep", "54321")
    assert_fault(done, "timed-out", "1 s", status=124)
    assert "54321" not in guest_processes(home, starter)


def test_timeout_ends_a_command_that_will_not_listen(home: Home, starter: str) -> None:
    script = "trap '' TERM; while :; do sleep 65432; done"
    done = home.run("exec", "--timeout", "1s", starter, "--", "sh", "-c", script)
    assert_fault(done, "timed-out", status=124)
    assert "65432" not in guest_processes(home, starter)


def test_ctrl_c_is_for_the_command_in_the_box(home: Home, starter: str) -> None:
    running = home.start("exec", starter, "--", "sh", "-c", "echo ready; exec sleep 76543")
    assert running.stdout and running.stdout.readline() == b"ready\n"
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err) == (130, b"", b"")
    assert "76543" not in guest_processes(home, starter)


def test_a_command_may_handle_ctrl_c(home: Home, starter: str) -> None:
    script = "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.1; done"
    running = home.start("exec", starter, "--", "sh", "-c", script)
    assert running.stdout and running.stdout.readline() == b"ready\n"
    running.send_signal(signal.SIGINT)
    assert running.communicate(timeout=60)[0] == b"caught\n"
    assert running.returncode == 9


def test_a_second_ctrl_c_is_for_us(home: Home, starter: str) -> None:
    script = "trap 'echo no' INT; echo ready; while :; do sleep 0.1; : 87654; done"
    running = home.start("exec", starter, "--", "sh", "-c", script)
    assert running.stdout and running.stdout.readline() == b"ready\n"
    running.send_signal(signal.SIGINT)
    assert running.stdout.readline() == b"no\n"
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert b"Traceback" not in err
    wait_until(lambda: "87654" not in guest_processes(home, starter), what="it is hung up on")


def test_a_killed_client_hangs_up_on_its_command(home: Home, starter: str) -> None:
    running = home.start("exec", starter, "--", "sh", "-c", "echo ready; exec sleep 98765")
    assert running.stdout and running.stdout.readline() == b"ready\n"
    running.kill()
    running.communicate()
    wait_until(lambda: "98765" not in guest_processes(home, starter), what="it is hung up on")


def test_a_reader_that_leaves_ends_it_quietly(home: Home, starter: str) -> None:
    running = home.start("exec", starter, "--", "yes")
    assert running.stdout and running.stdout.read(2) == b"y\n"
    running.stdout.close()
    assert running.stderr
    said = running.stderr.read()
    assert running.wait(60) == 128 + signal.SIGPIPE
    assert said == b""
    wait_until(lambda: " yes" not in guest_processes(home, starter), what="yes ends")


def test_a_terminal_on_request(home: Home, starter: str, open_terminal: OpenTerminal) -> None:
    script = "test -t 0 && test -t 1 && echo both; stty size; exit 5"
    terminal = open_terminal("exec", "-t", starter, "--", "sh", "-c", script, columns=97, rows=31)
    terminal.expect("both")
    terminal.expect("31 97")
    assert terminal.wait() == 5
    assert home.run("exec", starter, "--", "test", "-t", "0").returncode == 1


def test_a_killed_client_hangs_up_on_its_terminal(
    home: Home, starter: str, open_terminal: OpenTerminal
) -> None:
    script = "echo rea''dy; exec sleep 56789"
    terminal = open_terminal("exec", "-t", starter, "--", "sh", "-c", script)
    terminal.expect("ready")
    assert "56789" in guest_processes(home, starter)
    terminal.kill()
    wait_until(lambda: "56789" not in guest_processes(home, starter), what="it is hung up on")


def test_a_terminal_takes_keys(starter: str, open_terminal: OpenTerminal) -> None:
    script = "read line; echo got:$line; cat"
    terminal = open_terminal("exec", "-t", starter, "--", "sh", "-c", script)
    terminal.keys("some words\r")
    terminal.expect("got:some words")
    terminal.keys(b"\x03")
    assert terminal.wait() == 130


def test_a_terminal_with_a_folder_and_a_deadline(
    home: Home, starter: str, open_terminal: OpenTerminal
) -> None:
    script = "pwd; trap '' TERM; while :; do sleep 21098; done"
    words = ("exec", "-t", "-w", "/etc", "--timeout", "1s", starter, "--", "sh", "-c", script)
    terminal = open_terminal(*words)
    terminal.expect("/etc\r")
    terminal.expect("[timed-out]")
    assert terminal.wait() == 124
    assert "21098" not in guest_processes(home, starter)


def test_exec_starts_a_stopped_box(home: Home, make_box: MakeBox) -> None:
    make_box("sleeper", "--no-start")
    assert home.state("sleeper") == "stopped"
    assert home.ok("exec", "sleeper", "--", "hostname", timeout=120) == "sleeper\n"
    assert home.state("sleeper") == "running"


def test_many_bytes_both_ways_in_little_memory(home: Home, starter: str, tmp_path: Path) -> None:
    block = os.urandom(1_000_000)
    sent = hashlib.sha256()
    running = home.start("exec", starter, "--", "cat", stdin=subprocess.PIPE)
    assert running.stdin and running.stdout

    def feed() -> None:
        assert running.stdin
        for number in range(MANY // len(block)):
            piece = number.to_bytes(4, "big") + block[4:]
            sent.update(piece)
            running.stdin.write(piece)
        running.stdin.close()

    feeder = threading.Thread(target=feed)
    feeder.start()
    got, size = hashlib.sha256(), 0
    peaks = {"client": 0, "keeper": 0}
    keeper = home.keeper_pid(starter)
    while data := running.stdout.read(1_000_000):
        got.update(data)
        size += len(data)
        # VmHWM is the highest it ever was: reading it often is only because it goes at the end.
        for who, pid in (("client", running.pid), ("keeper", keeper)):
            peaks[who] = max(peaks[who], peak_memory(Path(f"/proc/{pid}/status").read_text()))
    feeder.join()
    assert running.wait(60) == 0
    assert (size, got.hexdigest()) == (MANY, sent.hexdigest())
    agent = peak_memory(home.ok("exec", starter, "--", "cat", "/proc/1/status"))
    assert 0 < peaks["client"] < ENOUGH_MEMORY, peaks
    assert 0 < peaks["keeper"] < ENOUGH_MEMORY, peaks
    assert 0 < agent < 16 * 2**20


def test_a_reader_that_waits_stops_the_guest(home: Home, starter: str) -> None:
    """Nobody keeps what is not read: the guest's command stands still instead."""
    script = "yes | tee /run/count"
    running = home.start("exec", starter, "--", "sh", "-c", script)
    assert running.stdout

    def produced() -> int:
        return int(home.run("exec", starter, "--", "stat", "-c", "%s", "/run/count").stdout or 0)

    seen = [0, -1]

    def standing_still() -> bool:
        seen[0], seen[1] = seen[1], produced()
        return seen[0] == seen[1] > 0

    wait_until(standing_still, 60, "the guest stands still")
    assert seen[1] < 16 * 2**20
    assert peak_memory(Path(f"/proc/{running.pid}/status").read_text()) < ENOUGH_MEMORY
    running.kill()
    running.communicate()
    home.ok("exec", starter, "--", "rm", "/run/count")


def test_uptime_in_json(home: Home, starter: str) -> None:
    listed = {box["name"]: box for box in json.loads(home.ok("ls", "--json"))}
    assert listed[starter]["state"] == "running"
    assert listed[starter]["accelerator"] in ("tcg", "kvm")
    assert listed[starter]["memory_mib"] == 256
    assert listed[starter]["uptime_s"] > 0


def peak_memory(status: str) -> int:
    """VmHWM in bytes of a /proc/PID/status; 0 for a process that is over."""
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
