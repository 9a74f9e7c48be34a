"""`cp` with a real guest: what goes in comes out the same, and half a copy is no copy."""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path

import pytest

from tests.helpers.homes import Home, assert_fault, make_removable, wait_until
from tests.helpers.trees import differences, picture, plant_odd_tree, write_noise
from tests.vm.conftest import MakeBox

pytestmark = pytest.mark.vm

LARGE = 300 * 1000 * 1000
MINUTES = 240


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("trees") / "tree"
    plant_odd_tree(root)
    return root


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder that pytest can remove again, whatever was copied into it."""
    return tmp_path


@pytest.fixture(autouse=True)
def removable(tmp_path: Path) -> object:
    yield
    make_removable(tmp_path)


def test_an_odd_tree_is_equal_both_ways(home: Home, starter: str, tree: Path, work: Path) -> None:
    home.ok("cp", str(tree), f"{starter}:/root/tree", timeout=MINUTES)
    home.ok("cp", f"{starter}:/root/tree", str(work / "back"), timeout=MINUTES)
    assert not differences(picture(tree), picture(work / "back"))


def test_the_guest_sees_the_same_tree(home: Home, starter: str, tree: Path) -> None:
    """Names, modes and links as the guest's own tools tell them, not only as we read them back."""
    home.ok("cp", str(tree / "modes"), f"{starter}:/root/modes")
    home.ok("cp", str(tree / "names"), f"{starter}:/root/names")
    home.ok("cp", str(tree / "links"), f"{starter}:/root/links")
    script = "cd /root/modes && stat -c '%a %n' *"
    modes = home.ok("exec", starter, "--", "sh", "-c", script).split()[::2]
    assert sorted(modes) == sorted(f"{mode:o}" for mode in (0o600, 0o755, 0o444, 0o640, 0, 0o1644))
    done = home.run("exec", starter, "--", "find", "/root/names", "-print0")
    guest = {name.removeprefix(b"/root/names").lstrip(b"/") for name in done.stdout.split(b"\0")}
    assert guest == picture(tree / "names").keys()
    for name in ("dangling", "absolute", "itself"):
        target = home.ok("exec", starter, "--", "readlink", f"/root/links/{name}").rstrip("\n")
        assert target == os.readlink(tree / "links" / name)


def test_a_large_file_is_equal_both_ways(home: Home, starter: str, work: Path) -> None:
    before = write_noise(work / "large", LARGE)
    home.ok("cp", str(work / "large"), f"{starter}:/large", timeout=MINUTES)
    inside = home.ok("exec", starter, "--", "sha256sum", "/large", timeout=MINUTES)
    assert inside.split()[0] == before
    home.ok("cp", f"{starter}:/large", str(work / "back"), timeout=MINUTES)
    with (work / "back").open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == before
    home.ok("exec", starter, "--", "rm", "/large")


def test_onto_a_folder_means_into_it(home: Home, starter: str, work: Path) -> None:
    (work / "folder").mkdir()
    (work / "folder" / "file").write_text("in a folder")
    home.ok("exec", starter, "--", "mkdir", "/root/into")
    home.ok("cp", str(work / "folder"), f"{starter}:/root/into")
    home.ok("cp", str(work / "folder" / "file"), f"{starter}:/root/into/")
    found = home.ok("exec", starter, "--", "find", "/root/into", "-type", "f")
    assert sorted(found.split()) == ["/root/into/file", "/root/into/folder/file"]
    (work / "out").mkdir()
    home.ok("cp", f"{starter}:/root/into/folder", str(work / "out"))
    home.ok("cp", f"{starter}:/root/into/file", str(work / "out"))
    assert (work / "out" / "folder" / "file").read_text() == "in a folder"
    assert (work / "out" / "file").read_text() == "in a folder"


def test_a_copy_replaces_files_and_keeps_the_rest(home: Home, starter: str, work: Path) -> None:
    for name in ("old", "new"):
        (work / name).mkdir()
        (work / name / "both").write_text(name)
        (work / name / f"only-{name}").write_text(name)
    home.ok("cp", str(work / "old"), f"{starter}:/root/merge/", timeout=60)
    home.ok("exec", starter, "--", "mv", "/root/merge", "/root/new")
    home.ok("cp", str(work / "new"), f"{starter}:/root")
    home.ok("cp", f"{starter}:/root/new", str(work / "merged"))
    texts = {path.name: path.read_text() for path in (work / "merged").iterdir()}
    assert texts == {"both": "new", "only-old": "old", "only-new": "new"}


def test_who_owns_what_is_copied_in(home: Home, starter: str, work: Path) -> None:
    (work / "file").write_text("x")
    home.ok("cp", "-u", "claw", str(work / "file"), f"{starter}:/home/claw/mine")
    home.ok("cp", str(work / "file"), f"{starter}:/home/claw/roots")
    said = home.ok("exec", starter, "--", "stat", "-c", "%U", "/home/claw/mine", "/home/claw/roots")
    assert said.split() == ["claw", "root"]


def test_what_cannot_be_copied(home: Home, starter: str, work: Path) -> None:
    (work / "file").write_text("x")
    file = str(work / "file")
    gone = home.run("cp", str(work / "no such"), f"{starter}:/root/x")
    assert_fault(gone, "copy-failed", "no such", "No such file")
    gone = home.run("cp", f"{starter}:/no/such", str(work / "x"))
    assert_fault(gone, "guest-refused", "No such file")
    assert_fault(home.run("cp", file, f"{starter}:/no/such/folder/x"), "guest-refused", "folder")
    assert_fault(home.run("cp", file, f"{starter}:/proc/x"), "guest-refused")
    nowhere = home.run("cp", f"{starter}:/etc/passwd", str(work / "no" / "x"))
    assert_fault(nowhere, "copy-failed", "No such file")
    inside_file = home.run("cp", f"{starter}:/etc/passwd", f"{file}/x")
    assert_fault(inside_file, "copy-failed")
    assert [path.name for path in work.iterdir()] == ["file"]
    assert "/root/x" not in home.ok("exec", starter, "--", "find", "/root", "-name", "x")


def test_exactly_one_side_is_a_box(home: Home, starter: str, work: Path) -> None:
    for words in (
        (f"{starter}:/etc", f"{starter}:/tmp"),
        (str(work), str(work / "x")),
        ("./a:b", "c"),
    ):
        done = home.run("cp", *words)
        assert done.returncode == 2
        assert b"exactly one" in done.stderr
    assert_fault(home.run("cp", "nobody:/etc", str(work / "x")), "unknown-box", "nobody")


def test_a_killed_copy_in_leaves_no_half_file(home: Home, starter: str, work: Path) -> None:
    write_noise(work / "large", 60_000_000)
    running = home.start("cp", str(work / "large"), f"{starter}:/root/half")

    def names() -> list[str]:
        return home.ok("exec", starter, "--", "ls", "-A", "/root").split()

    def begun() -> bool:
        return any(name.startswith(".boxgrove") for name in names())

    wait_until(begun, 60, "the copy is under way")
    running.send_signal(signal.SIGKILL)
    running.wait()
    wait_until(lambda: not begun(), 30, "the guest removes its part of it")
    assert "half" not in names()


def test_a_killed_copy_out_leaves_no_half_file(home: Home, starter: str, work: Path) -> None:
    home.ok("exec", starter, "--", "dd", "if=/dev/urandom", "of=/root/noise", "bs=1M", "count=60")
    running = home.start("cp", f"{starter}:/root/noise", str(work / "half"))
    wait_until(lambda: any(p.stat().st_size for p in work.iterdir()), 60, "the copy is under way")
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert not (work / "half").exists()
    home.ok("cp", f"{starter}:/root/noise", str(work / "half"), timeout=MINUTES)
    assert (work / "half").stat().st_size == 60 * 2**20
    home.ok("exec", starter, "--", "rm", "/root/noise")


def test_ctrl_c_during_a_copy_out_leaves_nothing(home: Home, starter: str, work: Path) -> None:
    home.ok("exec", starter, "--", "dd", "if=/dev/zero", "of=/root/zeros", "bs=1M", "count=60")
    running = home.start("cp", f"{starter}:/root/zeros", str(work / "half"))
    wait_until(lambda: any(p.stat().st_size for p in work.iterdir()), 60, "the copy is under way")
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert b"Traceback" not in err
    assert not list(work.iterdir())
    home.ok("exec", starter, "--", "rm", "/root/zeros")


def test_a_full_guest_disk_is_said_and_leaves_nothing(
    home: Home, make_box: MakeBox, work: Path
) -> None:
    box = make_box("narrow", "--disk", "80M")
    write_noise(work / "large", 120_000_000)
    done = home.run("cp", str(work / "large"), f"{box}:/large", timeout=MINUTES)
    assert_fault(done, "guest-refused", "No space left")
    assert home.ok("exec", box, "--", "ls", "-A", "/").split().count("large") == 0
    home.ok("exec", box, "--", "sh", "-c", "echo still good > /note && sync && cat /note")


def test_what_is_no_file_is_skipped_and_said(home: Home, starter: str, work: Path) -> None:
    (work / "odd").mkdir()
    os.mkfifo(work / "odd" / "pipe")
    (work / "odd" / "file").write_text("x")
    done = home.run("cp", str(work / "odd"), f"{starter}:/root/odd")
    assert done.returncode == 1
    assert b"skipped pipe" in done.stderr
    assert home.ok("exec", starter, "--", "ls", "/root/odd").split() == ["file"]
