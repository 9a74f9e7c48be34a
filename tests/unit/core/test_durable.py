"""Files that are the old or the new one, and never something between."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from boxgrove.core.durable import fsync_tree, part_beside, part_owner, write_atomic

Start = Callable[..., "subprocess.Popen[str]"]
Finish = Callable[..., str]


def test_write_atomic_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    write_atomic(path, b"one")
    write_atomic(path, b"two", mode=0o640)
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomic(path, b"x")
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_sees_whole_files_only_while_a_writer_is_killed(
    start: Start, tmp_path: Path
) -> None:
    path = tmp_path / "value"
    code = """
        from boxgrove.core.durable import write_atomic
        while True:
            for letter in b"ab":
                write_atomic(home / "value", bytes([letter]) * 50_000)
                print(flush=True)
    """
    for _ in range(3):
        writer = start(code, tmp_path)
        assert writer.stdout is not None
        for _ in range(20):
            writer.stdout.readline()
            content = path.read_bytes()
            assert content in (b"a" * 50_000, b"b" * 50_000)
        writer.kill()
        writer.wait()
        assert path.read_bytes() in (b"a" * 50_000, b"b" * 50_000)


def test_fsync_tree_takes_what_a_box_folder_can_hold(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "disk").write_bytes(b"x")
    (tmp_path / "a" / "nowhere").symlink_to("/nonexistent/target")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    # Opening this for reading would wait for a writer, for ever.
    os.mkfifo(tmp_path / "a" / "pipe")
    fsync_tree(tmp_path)
    fsync_tree(tmp_path / "a" / "b" / "disk")


def test_a_full_disk_is_no_space_and_the_old_file_stays(
    start: Start, finish: Finish, own_mounts: tuple[str, ...], tmp_path: Path
) -> None:
    code = """
        import subprocess
        from boxgrove.core.durable import write_atomic
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(home)], check=True)
        write_atomic(home / "value", b"old")
        try:
            write_atomic(home / "value", bytes(1_000_000))
        except Exception as error:
            print(error.code, os.listdir(home), (home / "value").read_bytes())
    """
    assert finish(start(code, tmp_path, *own_mounts)) == "no-space ['value'] b'old'\n"


def test_part_names_say_who_writes(tmp_path: Path) -> None:
    part = part_beside(tmp_path / "x")
    assert part.parent == tmp_path
    assert part != part_beside(tmp_path / "x")
    assert part_owner(part.name) == os.getpid()
    assert part_owner("x") is None
    assert part_owner(".part-what") == 0
