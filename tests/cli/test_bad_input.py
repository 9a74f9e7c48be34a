"""Bad input: a typed error with a code, one sentence, a hint, a status, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from boxgrove.core.errors import StoreNewer
from tests.helpers.homes import Home, assert_fault, wait_until

NEW = ("--image", "starter")


@pytest.fixture
def unchanged(shared: Home) -> Iterator[Home]:
    """The shared home; afterwards it has the boxes, folders and processes that it had."""
    before = (shared.ok("ls"), shared.box_folders())
    yield shared
    assert (shared.ok("ls"), shared.box_folders()) == before
    assert not shared.processes()


def hint_of(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = [line for line in done.stderr.decode().splitlines() if line.startswith("  ")]
    assert lines, f"no hint: {done.stderr.decode()}"
    return lines[0]


@pytest.mark.parametrize(
    "words",
    ["show x", "start x", "stop x", "kill x", "pause x", "resume x", "logs x", "rm x",
     "rename x y", "shell x", "cp x:/a b", "trash --restore x"],
)  # fmt: skip
def test_an_unknown_box(unchanged: Home, words: str) -> None:
    done = unchanged.run(*words.split())
    assert_fault(done, "unknown-box", '"x"')
    assert hint_of(done)


def test_exec_in_an_unknown_box(unchanged: Home) -> None:
    assert_fault(unchanged.run("exec", "x", "--", "true"), "unknown-box", status=125)


def test_a_box_that_is_nearly_known(fresh: Home) -> None:
    fresh.ok("create", "assistant", *NEW, "--no-start")
    assert_fault(fresh.run("show", "asistant"), "unknown-box", "Did you mean assistant?")


def test_an_unknown_image(unchanged: Home) -> None:
    done = unchanged.run("create", "a", "--image", "windows")
    assert_fault(done, "unknown-image", "windows", "starter")


def test_an_unknown_command(unchanged: Home) -> None:
    done = unchanged.run("crate", "a")
    assert done.returncode == 2
    assert b"Did you mean `create`?" in done.stderr
    done = unchanged.run("x" * 300)
    assert done.returncode == 2
    assert len(done.stderr) < 400


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("create",), "NAME"),
        (("create", "a", "--cpus", "zero"), "cpus"),
        (("create", "a", "--cpus", "0"), "cpus"),
        (("create", "a", "--nonsense"), "nonsense"),
        (("exec",), "NAME"),
        (("exec", "a"), "CMD"),
        (("exec", "-e", "novalue", "a", "--", "true"), "KEY=VALUE"),
        (("cp", "a"), "DST"),
        (("completion", "tcsh"), "tcsh"),
    ],
)
def test_a_wrong_word(unchanged: Home, words: tuple[str, ...], part: str) -> None:
    done = unchanged.run(*words)
    assert done.returncode == 2
    assert part in done.stderr.decode()
    assert b"Usage: boxgrove" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("a/b", "a slash"),
        ("../up", "a slash"),
        ("two\nlines", "a line break"),
        ("x" * 300, "300 characters"),
        ("", "needs a name"),
        (".hidden", "begin with"),
        ("--", "begin with"),
        ("a b", "a space"),
        ("a:b", "a colon"),
        ("\x1b[31mred", "control character"),
        ("\udcff", "not text"),
        ("0123456789abcdef0123456789abcdef", "looks like the id"),
    ],
)
def test_a_name_that_cannot_be(unchanged: Home, name: str, part: str) -> None:
    done = unchanged.run("create", *NEW, "--", name)
    assert_fault(done, "bad-name", part)
    assert hint_of(done)
    assert b"\x1b" not in done.stderr
    assert len(done.stderr) < 400


@pytest.mark.parametrize(
    ("memory", "code", "part"),
    [
        ("1KB", "bad-spec", "too little"),
        ("10TB", "bad-spec", "more than this computer has"),
        ("0M", "bad-spec", "too little"),
        ("-1G", "bad-size", "less than nothing"),
        ("512", "bad-size", "no unit"),
        ("lots", "bad-size", "not a size"),
        ("1,5G", "bad-size", "comma"),
        ("99999999999999999999T", "bad-size", ""),
        ("", "bad-size", "missing"),
    ],
)
def test_a_memory_that_cannot_be(unchanged: Home, memory: str, code: str, part: str) -> None:
    done = unchanged.run("create", "a", *NEW, f"--memory={memory}")
    assert_fault(done, code, part)
    assert hint_of(done)


@pytest.mark.parametrize(
    ("disk", "code"),
    [("1K", "bad-spec"), ("65000T", "bad-spec"), ("nonsense", "bad-size"), ("1e9G", "bad-size")],
)
def test_a_disk_that_cannot_be(unchanged: Home, disk: str, code: str) -> None:
    done = unchanged.run("create", "a", *NEW, "--disk", disk)
    assert_fault(done, code)
    assert hint_of(done)


def test_too_many_processors(unchanged: Home) -> None:
    assert_fault(unchanged.run("create", "a", *NEW, "--cpus", "4096"), "bad-spec", "4096")


@pytest.mark.parametrize("time", ["soon", "-1s", "0s", "99999d"])
def test_a_time_that_cannot_be(unchanged: Home, time: str) -> None:
    assert_fault(unchanged.run("stop", "--timeout", time, "a"), "bad-duration")
    done = unchanged.run("exec", f"--timeout={time}", "a", "--", "true")
    assert_fault(done, "bad-duration", status=done.returncode)
    assert done.returncode in (1, 125)


def test_two_creates_of_one_name_at_once(fresh: Home) -> None:
    both = [fresh.start("create", "same", *NEW, "--no-start") for _ in range(4)]
    outcomes = [(one.communicate(timeout=60)[1], one.returncode) for one in both]
    assert sorted(status for _, status in outcomes) == [0, 1, 1, 1]
    for said, status in outcomes:
        if status:
            assert b"[name-taken]" in said
            assert b"same-2" in said
            assert b"Traceback" not in said
    assert len(json.loads(fresh.ok("ls", "--json"))) == 1
    assert len(fresh.box_folders()) == 1


def test_a_taken_name(fresh: Home) -> None:
    fresh.ok("create", "taken", *NEW, "--no-start")
    assert_fault(fresh.run("create", "taken", *NEW), "name-taken", "taken-2")
    assert len(fresh.box_folders()) == 1


@pytest.mark.parametrize(
    ("agent", "code"), [("garbage", "guest-garbage"), ("silent", "guest-unreachable")]
)
def test_an_agent_that_talks_nonsense_or_not_at_all(fresh: Home, agent: str, code: str) -> None:
    fresh.ok("create", "mute", *NEW, "--no-start")
    trouble = {"BOXGROVE_FAKE": json.dumps({"agent": agent, "boot_deadline_s": 1.5})}
    done = fresh.run("start", "mute", env=trouble)
    assert_fault(done, code)
    assert hint_of(done)
    assert fresh.state("mute") in ("stopped", "crashed")
    wait_until(lambda: not fresh.processes(), what="nothing runs")
    run = fresh.paths().box_run(str(fresh.show("mute")["id"]))
    assert not run.exists() or not list(run.iterdir())
    # With an agent that behaves it is as good as new.
    assert fresh.ok("exec", "mute", "--", "echo", "back") == "back\n"


def test_an_agent_that_answers_late(fresh: Home) -> None:
    late = {"BOXGROVE_FAKE": json.dumps({"agent": "late", "late_s": 1.5, "boot_deadline_s": 20})}
    assert fresh.run("create", "late", *NEW, env=late).returncode == 0
    assert fresh.ok("exec", "late", "--", "echo", "here") == "here\n"


def test_an_agent_that_answers_too_late(fresh: Home) -> None:
    late = {"BOXGROVE_FAKE": json.dumps({"agent": "late", "late_s": 30, "boot_deadline_s": 1})}
    done = fresh.run("create", "late", *NEW, env=late)
    said = done.stderr.decode()
    assert done.returncode == 1
    assert "[guest-unreachable]" in said
    assert "Traceback" not in said
    # The box was made; it is only that it does not run.
    assert fresh.state("late") in ("stopped", "crashed")
    wait_until(lambda: not fresh.processes())
    assert fresh.ok("exec", "late", "--", "echo", "now") == "now\n"


def test_a_machine_that_crashes(fresh: Home) -> None:
    fresh.ok("create", "frail", *NEW, "--no-start")
    trouble = {"BOXGROVE_FAKE": json.dumps({"crash_after_s": 0.5})}
    assert fresh.run("start", "frail", env=trouble).returncode == 0
    wait_until(lambda: fresh.state("frail") == "crashed")
    assert "told to crash" in fresh.show("frail")["why"]
    assert_fault(fresh.run("resume", "frail"), "wrong-state", "told to crash")
    assert fresh.ok("exec", "frail", "--", "echo", "again") == "again\n"
    assert fresh.show("frail")["why"] == ""


@pytest.mark.parametrize("verb", ["start", "stop", "pause"])
def test_an_engine_that_refuses_a_verb(fresh: Home, verb: str) -> None:
    fault = {"code": "engine-failed", "message": "the engine coughed", "hint": "Give it tea."}
    trouble = {"BOXGROVE_FAKE": json.dumps({"fail": {verb: fault}})}
    fresh.ok("create", "sick", *NEW, "--no-start")
    if verb != "start":
        assert fresh.run("start", "sick", env=trouble).returncode == 0
    done = fresh.run(verb, "sick", env=trouble)
    assert_fault(done, "engine-failed", "the engine coughed", "Give it tea.")
    state = fresh.state("sick")
    assert state in ("stopped", "crashed") if verb == "start" else state == "running"


def test_nonsense_in_the_environment(fresh: Home) -> None:
    fresh.ok("create", "a", *NEW, "--no-start")
    assert_fault(fresh.run("start", "a", env={"BOXGROVE_FAKE": "{"}), "bad-spec", "BOXGROVE_FAKE")
    done = fresh.run("create", "b", *NEW, env={"BOXGROVE_BACKEND": "abacus"})
    assert done.returncode == 1
    assert b"abacus" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_store_of_a_newer_version(fresh: Home) -> None:
    fresh.ok("create", "old", *NEW, "--no-start")
    with sqlite3.connect(fresh.path / "index.db") as index:
        index.execute("PRAGMA user_version = 9999")
    index.close()
    assert "old" in fresh.ok("ls"), "what can be read is shown"
    assert fresh.show("old")["state"] == "stopped"
    for words in (("create", "new", *NEW), ("rename", "old", "x"), ("rm", "old")):
        done = fresh.run(*words)
        assert_fault(done, StoreNewer.code)
        assert hint_of(done)
    assert len(fresh.box_folders()) == 1


def test_a_damaged_store(fresh: Home) -> None:
    fresh.ok("create", "a", *NEW, "--no-start")
    kept = (fresh.path / "index.db").read_bytes()
    (fresh.path / "index.db").write_bytes(b"This is not a database, by any means.\n" * 200)
    for name in ("index.db-wal", "index.db-shm"):
        (fresh.path / name).unlink(missing_ok=True)
    assert_fault(fresh.run("ls"), "store-damaged", "index.db")
    assert_fault(fresh.run("create", "b", *NEW), "store-damaged")
    assert len(fresh.box_folders()) == 1, "no folder is collected because an index is broken"
    (fresh.path / "index.db").write_bytes(kept)
    assert fresh.state("a") == "stopped"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a home read-only")
def test_a_home_on_a_read_only_disk(fresh: Home) -> None:
    fresh.ok("create", "a", *NEW, "--no-start")
    path = str(fresh.path)
    subprocess.run(["mount", "--bind", path, path], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", path], check=True)
        assert "a " in fresh.ok("ls")
        done = fresh.run("create", "b", *NEW)
        assert done.returncode == 1
        assert b"Traceback" not in done.stderr
        assert b"read-only" in done.stderr
        assert hint_of(done)
        done = fresh.run("start", "a")
        assert done.returncode == 1
        assert b"Traceback" not in done.stderr
        assert done.stderr.count(b"boxgrove: ") == 1
    finally:
        subprocess.run(["umount", path], check=True)
    assert not fresh.processes()
    assert len(fresh.box_folders()) == 1
    assert fresh.ok("exec", "a", "--", "echo", "writable again") == "writable again\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_home_that_is_not_ours(fresh: Home) -> None:
    fresh.path.chmod(0o500)
    try:
        assert_fault(fresh.run("create", "b", *NEW), "home-unwritable")
    finally:
        fresh.path.chmod(0o700)


def test_a_file_where_the_home_should_be(tmp_path: Path, fresh: Home) -> None:
    (tmp_path / "file").write_text("in the way")
    done = fresh.run("ls", env={"BOXGROVE_HOME": str(tmp_path / "file")})
    assert_fault(done, "home-unwritable", "a file is in its place")


def test_a_runtime_folder_that_is_too_long(fresh: Home, tmp_path: Path) -> None:
    done = fresh.run("create", "a", *NEW, env={"BOXGROVE_RUNTIME": str(tmp_path / ("x" * 120))})
    assert_fault(done, "runtime-unsafe", "too long")
    assert not fresh.box_folders()


def test_ctrl_c_during_a_create_on_a_slow_engine(fresh: Home) -> None:
    fresh.environ["BOXGROVE_FAKE"] = json.dumps({"delays_s": {"start": 3}})
    running = fresh.start("create", "slow", *NEW)
    wait_until(lambda: fresh.run("show", "slow").returncode == 0)
    wait_until(lambda: fresh.state("slow") == "starting")
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=30)
    assert running.returncode == 130
    assert b"Traceback" not in said
    wait_until(lambda: fresh.state("slow") in ("running", "stopped"), what="a steady state")
    assert len(fresh.box_folders()) == 1
    assert fresh.ok("exec", "slow", "--", "echo", "fine") == "fine\n"


def test_a_killed_create_is_cleaned_up_by_the_next_command(fresh: Home) -> None:
    """kill -9 at any moment: at most a folder without a row, which the next command collects."""
    fresh.ok("image", "ls")
    for delay in (0.05, 0.15, 0.25, 0.35, 0.45):
        running = fresh.start("create", "half", *NEW, "--no-start")
        try:
            running.wait(delay)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
        fresh.ok("image", "ls")  # Any command that opens the grove collects what is left.
        known = json.loads(fresh.ok("ls", "--json"))
        assert fresh.box_folders() == {box["id"] for box in known}
        if known:
            fresh.ok("rm", "half")
            fresh.ok("trash", "--empty", "--yes")


def test_no_engine_is_told_before_anything_is_built(fresh: Home) -> None:
    missing = {"BOXGROVE_BACKEND": "qemu", "BOXGROVE_QEMU": "qemu-system-nowhere"}
    done = fresh.run("create", "a", "--image", "starter", env=missing)
    assert_fault(done, "engine-missing", "qemu-system-nowhere", "Install")
    assert not list((fresh.path / "images").iterdir())
    assert not fresh.box_folders()


def test_a_path_in_a_box_is_absolute(fresh: Home, tmp_path: Path) -> None:
    fresh.ok("create", "a")
    assert_fault(fresh.run("cp", "a:notes", str(tmp_path)), "copy-failed", "notes", "a:/root")
    assert_fault(fresh.run("cp", str(tmp_path), "a:"), "copy-failed", "not a path")
