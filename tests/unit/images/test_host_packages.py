"""The package script, on a system that is made of nothing but a few links."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "packaging" / "host-packages.sh"
BASICS = ("cat", "cut", "env", "id", "ls", "sed", "sh", "sort", "tr", "uname")

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="only in a source tree")


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder of commands with an apt-get that installs nothing and writes down its words."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in BASICS:
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    apt = folder / "apt-get"
    apt.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/apt.log\n')
    apt.chmod(0o755)
    return folder


def script(verb: str, path: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {"PATH": str(path), "PYTHON": "no-python-here"}
    command = [str(path / "sh"), str(SCRIPT), verb]
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)


def test_what_is_missing_is_named_and_fails(bare: Path, tmp_path: Path) -> None:
    done = script("check", bare, tmp_path)
    assert done.returncode == 3
    assert "required: qemu-utils is missing (disks)" in done.stderr
    assert "Run:  sudo apt-get install" in done.stderr


def test_installing_asks_for_all_of_it_at_once(bare: Path, tmp_path: Path) -> None:
    done = script("install", bare, tmp_path)
    # Our apt-get installs nothing, so something is still missing afterwards.
    assert done.returncode == 3
    if os.geteuid() != 0:
        assert not (tmp_path / "apt.log").exists(), "no password, no installing"
        return
    words = (tmp_path / "apt.log").read_text().splitlines()[-1]
    assert words.startswith("install -y --no-install-recommends")
    assert {"qemu-utils", "gcc", "python3-venv", "mmdebstrap"} <= set(words.split())


def test_only_optional_ones_missing_is_fine(bare: Path, tmp_path: Path) -> None:
    for name in (
        "qemu-system-x86_64",
        "qemu-system-aarch64",
        "qemu-img",
        "mke2fs",
        "debugfs",
        "cc",
    ):
        if not (bare / name).exists():
            (bare / name).symlink_to(bare / "cat")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(bare / "cat")
    done = script("check", bare, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "optional: mmdebstrap is missing" in done.stderr
    assert "Run:" not in done.stderr


def test_the_names_are_those_of_the_package_manager(bare: Path, tmp_path: Path) -> None:
    assert "qemu-utils" in script("list", bare, tmp_path).stdout.split()
    (bare / "apt-get").rename(bare / "pacman")
    listed = script("list", bare, tmp_path).stdout.split()
    assert "qemu-img" in listed and "qemu-utils" not in listed


def test_other_words_are_refused(bare: Path, tmp_path: Path) -> None:
    assert script("", bare, tmp_path).returncode == 2
