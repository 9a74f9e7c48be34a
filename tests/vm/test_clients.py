"""Several clients on one box: they come, go and die, and neither box nor session minds."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.homes import Home, assert_fault, wait_until
from tests.helpers.terminals import Terminal
from tests.vm.conftest import OpenTerminal
from vm_backends.keeper import record

pytestmark = pytest.mark.vm

ESCAPE = "\x1b"
LEAVE = b"\x1d"
CTRL_C = b"\x03"


def boot_id(home: Home, box: str) -> str:
    return home.ok("exec", box, "--", "cat", "/proc/sys/kernel/random/boot_id")


def ask(terminal: Terminal, command: str, answer: str) -> None:
    """Type a command whose text does not contain its answer, and see the answer."""
    terminal.keys(f"{command}\r")
    terminal.expect(answer)


def sessions(home: Home, box: str) -> dict[str, dict[str, Any]]:
    listed = json.loads(home.ok("shell", box, "--list", "--json"))
    return {one["name"]: one for one in listed}


def kill_keeper(home: Home, box: str) -> int:
    """kill -9, and wait until nobody keeps the box; the number it had."""
    pid = home.keeper_pid(box)
    os.kill(pid, signal.SIGKILL)
    folder = home.folder(box)
    wait_until(lambda: not record.keeper_alive(folder) or home.keeper_pid(box) != pid)
    return pid


def test_two_shells_and_an_exec_and_one_is_killed(
    home: Home, starter: str, open_terminal: OpenTerminal
) -> None:
    one, two = open_terminal("shell", starter), open_terminal("shell", starter)
    ask(one, "echo on$((0+1)) > /tmp/one; echo first-$((40+2))", "first-42")
    ask(two, "cat /tmp/one; echo second-$((40+3))", "second-43")
    script = "echo ready; while ! [ -e /tmp/go ]; do sleep 0.1; done; echo went; exit 4"
    running = home.start("exec", starter, "--", "sh", "-c", script)
    assert running.stdout and running.stdout.readline() == b"ready\n"
    assert len(sessions(home, starter)) == 2

    one.kill()

    ask(two, "echo still-$((40+4))", "still-44")
    ask(two, "touch /tmp/go; echo t$((1+0))uched", "t1uched")
    assert running.communicate(timeout=60)[0] == b"went\n"
    assert running.returncode == 4
    wait_until(lambda: sorted(s["viewers"] for s in sessions(home, starter).values()) == [0, 1])
    two.keys("exit 6\r")
    assert two.wait() == 6
    left = sessions(home, starter)
    assert len(left) == 1, "the killed client's session waits for it"
    name = next(iter(left))
    back = open_terminal("shell", starter, "--session", name)
    back.expect("first-42")
    back.keys("exit\r")
    assert back.wait() == 0
    assert sessions(home, starter) == {}


def test_two_viewers_of_one_session(starter: str, open_terminal: OpenTerminal) -> None:
    one = open_terminal("shell", starter, "--session", "both")
    ask(one, "echo b$((1+1))th", "b2th")
    two = open_terminal("shell", starter, "--session", "both")
    two.expect("b2th")
    two.keys("echo from-$((1+1))\r")
    one.expect("from-2")
    two.expect("from-2")
    one.keys("exit\r")
    assert (one.wait(), two.wait()) == (0, 0)


def test_a_new_size_reaches_the_guest(starter: str, open_terminal: OpenTerminal) -> None:
    terminal = open_terminal("shell", starter, columns=91, rows=33)
    ask(terminal, "stty size", "33 91")
    script = "trap 'echo now:$(stty size)' WINCH; echo set''up; while :; do sleep 0.1; done"
    terminal.keys(f'sh -c "{script.replace("$", chr(92) + "$")}"\r')
    terminal.expect("setup\r")
    terminal.resize(120, 40)
    terminal.expect("now:40 120")
    terminal.keys(CTRL_C)
    terminal.keys("exit 0\r")
    assert terminal.wait() == 0


def test_ctrl_c_in_a_shell_ends_only_what_runs_in_it(
    home: Home, starter: str, open_terminal: OpenTerminal
) -> None:
    terminal = open_terminal("shell", starter)
    terminal.keys("echo be''gun; sleep 43210\r")
    terminal.expect("begun")
    terminal.keys(CTRL_C)
    ask(terminal, "echo status-$?-", "status-130-")
    assert "43210" not in home.ok("exec", starter, "--", "ps")
    terminal.keys("exit 3\r")
    assert terminal.wait() == 3


def test_leaving_and_coming_back(home: Home, starter: str, open_terminal: OpenTerminal) -> None:
    terminal = open_terminal("shell", starter, "--session", "work")
    ask(terminal, "x=kept; echo bef''ore", "before")
    terminal.keys("(sleep 1; echo mean''while) &\r")
    terminal.keys(LEAVE)
    terminal.expect("--session work")
    assert terminal.wait() == 0
    assert sessions(home, starter)["work"]["viewers"] == 0
    back = open_terminal("shell", starter, "--session", "work", columns=100, rows=30)
    back.expect("before")
    back.expect("meanwhile")
    ask(back, "echo var-$x; stty size", "var-kept")
    back.expect("30 100")
    back.keys("exit\r")
    assert back.wait() == 0
    assert "work" not in sessions(home, starter)


def test_the_terminal_is_as_it_was_afterwards(home: Home, starter: str) -> None:
    """Whoever leaves a shell must find an ordinary terminal: echo, line by line, Ctrl-C."""
    script = f"stty -a > before; {sys.executable} -m boxgrove shell {starter}; stty -a > after"
    environ = home.environ
    with Terminal(["sh", "-c", f"cd {home.path.parent}; {script}"], environ) as terminal:
        ask(terminal, "echo in$((0+1))", "in1")
        terminal.keys("exit\r")
        assert terminal.wait() == 0
    top = home.path.parent
    assert (top / "before").read_text() == (top / "after").read_text() != ""


def test_a_shell_without_a_terminal_reads_a_script(home: Home, starter: str) -> None:
    done = home.run("shell", starter, input=b"echo scr''ipt\nexit 11\n")
    assert b"script" in done.stdout
    assert done.returncode == 11


def test_a_killed_keeper_is_not_noticed(
    home: Home, starter: str, open_terminal: OpenTerminal
) -> None:
    engine, boot = home.engine_pid(starter), boot_id(home, starter)
    shell = open_terminal("shell", starter, "--session", "through")
    ask(shell, "n=1; echo bef''ore", "before")

    killed = kill_keeper(home, starter)

    assert home.state(starter) == "running"
    assert home.engine_pid(starter) == engine
    assert boot_id(home, starter) == boot, "the next command takes up the same guest"
    assert home.keeper_pid(starter) != killed
    ask(shell, "echo aft''er-$n", "after-1")
    shell.keys("exit\r")
    assert shell.wait() == 0
    uptime = home.show(starter)["uptime_s"]
    assert uptime > 1, "how long it has been up is not forgotten"


def test_ls_tells_the_truth_without_a_keeper(home: Home, starter: str) -> None:
    home.ok("exec", starter, "--", "true")
    kill_keeper(home, starter)
    assert not record.keeper_alive(home.folder(starter))
    assert home.state(starter) == "running", "and looking starts no keeper"
    assert not record.keeper_alive(home.folder(starter))
    home.ok("pause", starter)
    kill_keeper(home, starter)
    assert home.state(starter) == "paused"
    assert_fault(home.run("pause", starter), "wrong-state", "cannot pause a paused box")
    home.ok("resume", starter)
    home.ok("exec", starter, "--", "true")


def test_an_editor_survives_its_keeper(
    home: Home, starter: str, open_terminal: OpenTerminal
) -> None:
    editor_survives(home, starter, open_terminal, "vi")


def editor_survives(home: Home, box: str, open_terminal: OpenTerminal, editor: str) -> None:
    """An unsaved text, a killed keeper, a killed client; then the text is written."""
    path = f"/root/by-{editor}.txt"
    first = open_terminal("shell", box, "--session", f"edit-{editor}")
    first.keys(f"{editor} {path}\r")
    first.expect("by-")
    first.keys("iunsaved words")
    first.keys(ESCAPE)
    first.expect("words")
    assert home.run("exec", box, "--", "test", "-e", path).returncode == 1

    kill_keeper(home, box)
    home.ok("exec", box, "--", "true")  # The next command brings a keeper.
    first.kill()

    second = open_terminal("shell", box, "--session", f"edit-{editor}")
    second.expect("unsaved words")
    kill_keeper(home, box)
    wait_until(
        lambda: sessions(home, box)[f"edit-{editor}"]["viewers"] == 1,
        what="its terminal comes back by itself",
    )
    second.forget()
    # The first Escape may have been on its way when the keeper was killed; Ctrl-L paints anew.
    second.keys(f"{ESCAPE}\x0c")
    second.expect("unsaved words")
    second.keys(":wq\r")
    wait_until(
        lambda: home.run("exec", box, "--", "cat", path).stdout == b"unsaved words\n",
        what="the editor writes its text",
    )
    second.keys("exit\r")
    assert second.wait() == 0


def test_an_exec_says_that_its_keeper_went(home: Home, starter: str) -> None:
    running = home.start("exec", starter, "--", "sh", "-c", "echo ready; exec sleep 32109")
    assert running.stdout and running.stdout.readline() == b"ready\n"
    kill_keeper(home, starter)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 125
    assert b"[keeper-unreachable]" in err
    assert b"Traceback" not in err
    home.ok("exec", starter, "--", "true")


def test_a_keeper_that_is_asked_to_end_leaves_its_box_running(home: Home, starter: str) -> None:
    engine = home.engine_pid(starter)
    home.ok("exec", starter, "--", "true")
    os.kill(home.keeper_pid(starter), signal.SIGTERM)
    folder = home.folder(starter)
    wait_until(lambda: not record.keeper_alive(folder))
    assert home.state(starter) == "running"
    assert home.ok("exec", starter, "--", "echo", "there") == "there\n"
    assert home.engine_pid(starter) == engine


def test_the_control_socket_is_ours_alone(home: Home, starter: str) -> None:
    home.ok("exec", starter, "--", "true")
    run = home.paths().box_run(str(home.show(starter)["id"]))
    modes = {path.name: path.stat().st_mode & 0o777 for path in run.iterdir()}
    assert modes[record.SOCKET] == 0o600
    assert set(modes.values()) == {0o600}
    assert run.stat().st_mode & 0o777 == 0o700


def test_a_keeper_is_lean(home: Home, starter: str) -> None:
    home.ok("exec", starter, "--", "true")
    maps = Path(f"/proc/{home.keeper_pid(starter)}/maps").read_text()
    for heavy in ("pydantic", "rich", "click", "PySide6", "sqlite"):
        assert heavy not in maps


def test_a_shell_does_not_wake_a_box_that_was_stopped(
    home: Home, starter: str, open_terminal: OpenTerminal
) -> None:
    terminal = open_terminal("shell", starter)
    ask(terminal, "echo open-$((40+2))", "open-42")
    home.ok("stop", starter)
    terminal.expect('box "clients-box" is stop')
    assert terminal.wait() == 1
    assert home.state(starter) == "stopped"
    assert not home.processes_of(starter)
    home.ok("start", starter)
