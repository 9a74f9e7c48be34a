"""A host disk that fills up under a running box: it waits, says so, and loses nothing."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers.homes import Home, assert_fault, wait_until
from tests.vm.conftest import MAKE_S
from vm_backends.spec import MIB

pytestmark = [
    pytest.mark.vm,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk to fill"),
]

ROOM = 160 * MIB
NEW = ("--image", "starter", "--memory", "256M")


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    folder.mkdir(mode=0o700)
    words = ["mount", "-t", "tmpfs", "-o", f"size={ROOM},mode=700", "none", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def narrow(home: Home) -> Iterator[Home]:
    """A home whose boxes are on a disk of their own, a small one."""
    made = Home.make()
    made.take_images_of(home.path)
    with small_disk(made.path / "boxes"):
        try:
            yield made
        finally:
            ballast(made).unlink(missing_ok=True)
            made.end_boxes()
    made.remove()


def ballast(home: Home) -> Path:
    return home.path / "boxes" / ".ballast"


def fill(home: Home, leave: int) -> None:
    """Fill the disk up to so many bytes."""
    usage = os.statvfs(home.path / "boxes")
    size = usage.f_bavail * usage.f_frsize - leave
    with ballast(home).open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)


def test_a_box_waits_for_room_and_loses_nothing(narrow: Home, tmp_path: Path) -> None:
    narrow.ok("create", "full", *NEW, timeout=MAKE_S)
    fill(narrow, 20 * MIB)
    script = "cat > /root/data && sync && sha256sum /root/data"
    data = os.urandom(60_000_000)
    (tmp_path / "data").write_bytes(data)
    with (tmp_path / "data").open("rb") as file:
        writing = narrow.start("exec", "full", "--", "sh", "-c", script, stdin=file)

    wait_until(lambda: narrow.state("full") == "paused", 120, "it notices the full disk")
    assert "disk is full" in narrow.show("full")["why"]
    line = next(line for line in narrow.ok("ls").splitlines() if line.startswith("full"))
    assert "paused" in line
    assert "disk is full" in line
    done = narrow.run("exec", "full", "--", "true")
    assert_fault(done, "wrong-state", "disk is full", "resume", status=125)
    again = narrow.run("resume", "full")
    if again.returncode:
        assert_fault(again, "no-space", "disk is full")
    wait_until(lambda: narrow.state("full") == "paused", 60, "it still has no room")
    assert writing.poll() is None

    ballast(narrow).unlink()
    narrow.ok("resume", "full")
    assert writing.stdout
    said = writing.stdout.read().decode()
    assert writing.wait(120) == 0
    assert said.split()[0] == hashlib.sha256(data).hexdigest()
    assert narrow.state("full") == "running"
    assert narrow.show("full")["why"] == ""
    narrow.ok("stop", "full")
    inside = narrow.ok("exec", "full", "--", "sha256sum", "/root/data", timeout=MAKE_S)
    assert inside.split()[0] == hashlib.sha256(data).hexdigest()
    assert "EXT4-fs error" not in narrow.ok("exec", "full", "--", "dmesg")


def test_a_box_can_be_stopped_on_a_full_disk(narrow: Home) -> None:
    narrow.ok("create", "full", *NEW, timeout=MAKE_S)
    narrow.ok("exec", "full", "--", "sh", "-c", "echo early > /root/early; sync")
    fill(narrow, 0)
    script = "dd if=/dev/urandom of=/root/x bs=1M count=30; sync"
    writing = narrow.start("exec", "full", "--", "sh", "-c", script)
    wait_until(lambda: narrow.state("full") == "paused", 120, "it notices the full disk")
    done = narrow.run("stop", "--timeout", "3s", "full")
    assert done.returncode == 0, done.stderr
    assert narrow.state("full") == "stopped"
    wait_until(lambda: not narrow.processes_of("full"))
    writing.communicate(timeout=60)
    # On a disk that is still full it either starts or says plainly why not.
    again = narrow.run("start", "full", timeout=MAKE_S)
    if again.returncode:
        assert_fault(again, "no-space")
    ballast(narrow).unlink()
    if narrow.state("full") == "paused":
        narrow.ok("resume", "full")
    assert narrow.ok("exec", "full", "--", "cat", "/root/early", timeout=MAKE_S) == "early\n"


def test_no_box_is_made_on_a_full_disk(narrow: Home) -> None:
    for leave in (0, 10 * MIB):
        fill(narrow, leave)
        before = {path.name for path in (narrow.path / "boxes").iterdir()}
        done = narrow.run("create", "late", *NEW, timeout=MAKE_S)
        assert_fault(done, "no-space")
        assert done.stderr.decode().splitlines()[-1].startswith("  "), "with a hint"
        assert {path.name for path in (narrow.path / "boxes").iterdir()} == before
        assert_fault(narrow.run("show", "late"), "unknown-box")
        ballast(narrow).unlink()
    narrow.ok("create", "late", *NEW, timeout=MAKE_S)
