"""Every command once, on the fake backend: what it prints, in a pipe and on a terminal."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from boxgrove.cli.main import MODULES, call
from boxgrove.version import __version__
from tests.helpers.homes import Home, assert_fault, wait_until
from tests.helpers.terminals import Terminal

KEYS = {
    "name", "id", "state", "backend", "accelerator", "image", "cpus", "memory_mib", "disk_bytes",
    "created", "uptime_s",
}  # fmt: skip
SUBCOMMANDS = [("image", "ls"), ("image", "build"), ("image", "rm")]


@pytest.mark.parametrize("name", MODULES)
def test_help_has_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call([name, "--help"]) == 0
    said = capsys.readouterr().out
    assert "Usage: boxgrove " + name in said
    assert re.search(r"^  Examples?:\n    (echo|boxgrove) ?", said, re.MULTILINE), said
    assert max(len(line) for line in said.splitlines()) <= 100


@pytest.mark.parametrize("words", SUBCOMMANDS, ids=" ".join)
def test_help_of_the_commands_below_image(
    words: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call([*words, "-h"]) == 0
    assert "Usage: boxgrove image" in capsys.readouterr().out


def test_the_first_page_names_every_command(shared: Home) -> None:
    said = shared.ok("--help")
    for name in MODULES:
        assert re.search(rf"^  {name}  +\w", said, re.MULTILINE), name
    bare = shared.run()
    assert b"Usage: boxgrove" in bare.stdout + bare.stderr


def test_version(shared: Home) -> None:
    assert __version__ in shared.ok("--version")


def test_nothing_yet(fresh: Home) -> None:
    assert "boxgrove create" in fresh.ok("ls")
    assert json.loads(fresh.ok("ls", "--json")) == []
    assert json.loads(fresh.ok("trash", "--json")) == []


def test_a_life(fresh: Home) -> None:
    said = fresh.ok("create", "a", "--image", "starter", "--memory", "512M", "--cpus", "2")
    assert said.startswith("a is running (starter")
    assert fresh.state("a") == "running"
    assert fresh.ok("exec", "a", "--", "python3", "-c", "print(6*7)") == "42\n"
    assert fresh.run("exec", "a", "--", "sh", "-c", "exit 7").returncode == 7
    assert fresh.run("exec", "a", "--", "cat", input=b"hi\n").stdout == b"hi\n"
    fresh.ok("pause", "a")
    assert fresh.state("a") == "paused"
    fresh.ok("resume", "a")
    fresh.ok("exec", "a", "--", "sh", "-c", "echo kept > /root/note")
    assert fresh.ok("stop", "a").startswith("a is stopped (")
    assert fresh.state("a") == "stopped"
    assert fresh.ok("start", "a").startswith("a is running (")
    assert fresh.ok("exec", "a", "--", "cat", "/root/note") == "kept\n"
    assert "plug was pulled" in fresh.ok("kill", "a")
    assert fresh.state("a") == "stopped"


def test_json_has_every_promised_key(shared: Home) -> None:
    before = time.time()
    shared.ok("create", "json", "--image", "starter", "--memory", "256M", "--disk", "2G")
    listed = {box["name"]: box for box in json.loads(shared.ok("ls", "--json"))}
    shown = shared.show("json")
    assert shown.keys() >= KEYS
    assert listed["json"].keys() == shown.keys()
    assert {key: shown[key] for key in ("name", "state", "backend", "image")} == {
        "name": "json", "state": "running", "backend": "fake", "image": "starter",
    }  # fmt: skip
    assert (shown["memory_mib"], shown["disk_bytes"]) == (256, 2 * 2**30)
    assert re.fullmatch(r"[0-9a-f]{32}", shown["id"])
    created = time.strptime(shown["created"], "%Y-%m-%dT%H:%M:%SZ")
    assert abs(time.mktime(created) - time.timezone - before) < 3700
    assert shown["uptime_s"] >= 0
    shared.ok("stop", "json")
    shown = shared.show("json")
    assert (shown["state"], shown["uptime_s"]) == ("stopped", None)
    assert shared.show(shown["id"]) == shown
    assert shared.show(shown["id"][:8])["name"] == "json"


def test_tables_are_plain_in_a_pipe(shared: Home) -> None:
    shared.ok("create", "plain", "--image", "starter", "--no-start")
    for words in (("ls",), ("show", "plain"), ("image", "ls"), ("doctor",)):
        done = shared.run(*words)
        assert b"\x1b" not in done.stdout + done.stderr, words
        assert not re.search("[│┃╭─]", done.stdout.decode())
    header, *rows = shared.ok("ls").splitlines()
    assert header.split()[:3] == ["NAME", "STATE", "IMAGE"]
    row = next(row for row in rows if row.startswith("plain"))
    at = header.index("STATE")
    assert row[at:].startswith("stopped"), "columns stand under their heads"


def test_tables_are_coloured_on_a_terminal(shared: Home) -> None:
    shared.ok("create", "bright", "--image", "starter")
    command = [sys.executable, "-m", "boxgrove", "ls"]
    with Terminal(command, shared.environ, columns=120) as terminal:
        assert terminal.wait() == 0
        assert b"bright" in terminal.shown
        assert b"\x1b[32mrunning" in terminal.shown
    plain = {**shared.environ, "NO_COLOR": "1"}
    with Terminal(command, plain, columns=120) as terminal:
        assert terminal.wait() == 0
        assert b"\x1b[32m" not in terminal.shown


def test_a_long_step_shows_progress_on_a_terminal(fresh: Home) -> None:
    slow = {**fresh.environ, "BOXGROVE_FAKE": '{"delays_s": {"start": 1.5}}'}
    command = [sys.executable, "-m", "boxgrove", "create", "slow", "--image", "starter"]
    with Terminal(command, slow, columns=100) as terminal:
        terminal.expect("Booting")
        terminal.expect("━")
        terminal.expect("slow is running")
        assert terminal.wait() == 0
    fresh.ok("stop", "slow")


def test_rename(shared: Home) -> None:
    shared.ok("create", "before", "--image", "starter")
    assert "after" in shared.ok("rename", "before", "after")
    assert shared.ok("exec", "after", "--", "echo", "same") == "same\n"
    assert_fault(shared.run("show", "before"), "unknown-box")
    shared.ok("create", "other", "--image", "starter", "--no-start")
    assert_fault(shared.run("rename", "other", "after"), "name-taken", "after-2")
    assert_fault(shared.run("rename", "other", "a/b"), "bad-name")
    assert shared.show("other")["name"] == "other"


def test_trash_and_back(fresh: Home) -> None:
    fresh.ok("create", "gone", "--image", "starter")
    fresh.ok("exec", "gone", "--", "sh", "-c", "echo kept > /root/note; sync")
    assert_fault(fresh.run("rm", "gone"), "box-busy", "--force")
    said = fresh.ok("rm", "--force", "gone")
    assert "boxgrove trash --restore gone" in said
    assert_fault(fresh.run("show", "gone"), "unknown-box", "trash")
    assert "GONE IN" in fresh.ok("trash")
    assert [box["name"] for box in json.loads(fresh.ok("trash", "--json"))] == ["gone"]
    fresh.ok("create", "gone", "--image", "starter", "--no-start")
    assert "gone-2 is back" in fresh.ok("trash", "--restore", "gone")
    assert fresh.ok("exec", "gone-2", "--", "cat", "/root/note") == "kept\n"
    assert_fault(fresh.run("trash", "--restore", "gone"), "unknown-box", "trash")


def test_emptying_the_trash_asks_first(fresh: Home) -> None:
    fresh.ok("create", "gone", "--image", "starter", "--no-start")
    fresh.ok("rm", "gone")
    assert len(fresh.box_folders()) == 1
    refused = fresh.run("trash", "--empty", input=b"n\n")
    assert refused.returncode != 0
    assert len(fresh.box_folders()) == 1
    assert "1 removed" in fresh.ok("trash", "--empty", "--yes")
    assert not fresh.box_folders()
    assert "empty" in fresh.ok("trash")


def test_several_at_once(fresh: Home) -> None:
    for name in ("one", "two"):
        fresh.ok("create", name, "--image", "starter", "--no-start")
    assert len(fresh.ok("start", "one", "two").splitlines()) == 2
    done = fresh.run("stop", "one", "nobody", "two")
    assert_fault(done, "unknown-box", "nobody")
    assert len(done.stdout.splitlines()) == 2, "one that cannot does not keep the others from it"
    fresh.ok("rm", "one", "two")


def test_logs(shared: Home) -> None:
    shared.ok("create", "talker", "--image", "starter")
    said = shared.ok("logs", "talker")
    assert "--- keeper" in said
    assert "state: running" in said
    assert "---" not in shared.ok("logs", "talker", "--keeper")
    assert len(shared.ok("logs", "talker", "--keeper", "-n", "1").splitlines()) == 1


def test_images(shared: Home) -> None:
    listed = json.loads(shared.ok("image", "ls", "--json"))
    assert {image["name"] for image in listed} == {"starter", "debian"}
    assert {"name", "digest", "created", "stored_bytes", "boxes"} <= listed[0].keys()
    assert "starter" in shared.ok("image", "ls")
    assert_fault(shared.run("image", "build", "nothing"), "unknown-image", "starter")


def test_copy_and_shell_on_the_fake(shared: Home, tmp_path: Path) -> None:
    shared.ok("create", "files", "--image", "starter", "--no-start")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_text("text")
    shared.ok("cp", str(tmp_path / "tree"), "files:/root/tree")
    shared.ok("cp", "files:/root/tree", str(tmp_path / "back"))
    assert (tmp_path / "back" / "file").read_text() == "text"
    command = [sys.executable, "-m", "boxgrove", "shell", "files", "--session", "s"]
    with Terminal(command, shared.environ) as terminal:
        terminal.keys("echo fr''om-shell\r")
        terminal.expect("from-shell")
        terminal.keys(b"\x1d")
        terminal.expect("--session s")
        assert terminal.wait() == 0
    listed = json.loads(shared.ok("shell", "files", "--list", "--json"))
    assert [one["name"] for one in listed] == ["s"]


def test_doctor(shared: Home) -> None:
    said = json.loads(shared.ok("doctor", "--json"))
    assert said["ok"] is True
    names = {finding["name"] for finding in said["findings"]}
    assert names >= {"engine", "accelerator", "bubblewrap", "home", "space", "versions"}
    for finding in said["findings"]:
        assert finding["verdict"] in ("ok", "warning", "problem")
        assert finding["detail"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_valid(shared: Home, shell: str, tmp_path: Path) -> None:
    script = shared.ok("completion", shell)
    assert "_BOXGROVE_COMPLETE" in script
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    path = tmp_path / "script"
    path.write_text(script)
    subprocess.run([program, "-n", str(path)], check=True)


def test_completion_knows_commands_and_boxes(shared: Home) -> None:
    shared.ok("create", "completed", "--image", "starter", "--no-start")

    def complete(line: str) -> set[str]:
        words = line.split(" ")
        asked = {
            "_BOXGROVE_COMPLETE": "bash_complete", "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
        }  # fmt: skip
        done = shared.run(env=asked)
        return {item.split(",")[1] for item in done.stdout.decode().split()}

    assert "pause" in complete("boxgrove pau")
    assert "completed" in complete("boxgrove show compl")
    assert "completed" in complete("boxgrove exec compl")
    assert "--memory" in complete("boxgrove create --mem")


def test_completion_says_nothing_when_the_home_is_broken(fresh: Home) -> None:
    (fresh.path / "index.db").write_text("nonsense, and long enough to be read as a header" * 9)
    asked = {
        "_BOXGROVE_COMPLETE": "bash_complete", "COMP_WORDS": "boxgrove show x", "COMP_CWORD": "2",
    }  # fmt: skip
    try:
        done = fresh.run(env=asked)
        assert (done.stdout.strip(), done.stderr) == (b"", b"")
    finally:
        (fresh.path / "index.db").unlink()


def test_reading_from_a_pipe_that_closes(shared: Home) -> None:
    shared.ok("create", "piped", "--image", "starter", "--no-start")
    running = shared.start("ls")
    assert running.stdout
    running.stdout.close()
    assert running.stderr
    said = running.stderr.read()
    running.wait(30)
    assert b"Traceback" not in said


def test_keepers_end_with_their_boxes(fresh: Home) -> None:
    fresh.ok("create", "brief", "--image", "starter")
    assert fresh.keeper_pid("brief")
    fresh.run("exec", "brief", "--", "poweroff")
    wait_until(lambda: fresh.state("brief") == "stopped")
    wait_until(lambda: not fresh.processes_of("brief"))
