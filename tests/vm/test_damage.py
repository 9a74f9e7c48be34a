"""What a box says when a part of it is broken or missing, on the real engine; nothing is left."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.homes import Home, assert_fault, wait_until
from tests.vm.conftest import MAKE_S

pytestmark = pytest.mark.vm

NEW = ("--image", "starter", "--memory", "256M")


@pytest.fixture(scope="module")
def stopped(home: Home) -> Iterator[str]:
    """A box with something in it, stopped; tests break it and mend it."""
    home.ok("create", "broken", *NEW, timeout=MAKE_S)
    script = "echo precious > /root/note; head -c 3000000 /dev/urandom > /root/noise; sync"
    home.ok("exec", "broken", "--", "sh", "-c", script)
    home.ok("stop", "broken")
    yield "broken"
    home.ok("rm", "--force", "broken")


@pytest.fixture
def disk(home: Home, stopped: str, tmp_path: Path) -> Iterator[Path]:
    """The box's disk, to be broken; afterwards it is whole again and starts."""
    path = home.folder(stopped) / "disk" / "active.qcow2"
    shutil.copy(path, tmp_path / "whole")
    yield path
    home.run("kill", stopped)
    wait_until(lambda: not home.processes_of(stopped))
    shutil.copy(tmp_path / "whole", path)


def refuses(home: Home, box: str, code: str, *parts: str, **environ: str) -> None:
    """It does not start, says why, runs nothing, and is still there."""
    done = home.run("start", box, timeout=MAKE_S, env=environ)
    assert_fault(done, code, *parts)
    wait_until(lambda: not home.processes_of(box), what="nothing runs")
    assert home.state(box) in ("stopped", "crashed")


def whole(home: Home, box: str) -> None:
    home.ok("start", box, timeout=MAKE_S)
    assert home.ok("exec", box, "--", "cat", "/root/note") == "precious\n"
    home.ok("stop", box)


def test_a_disk_without_its_header(home: Home, stopped: str, disk: Path) -> None:
    with disk.open("r+b") as file:
        file.write(b"\0" * 512)
    refuses(home, stopped, "disk-damaged", "not a qcow2 file")
    assert "damaged" in home.show(stopped)["why"]


def test_a_disk_with_a_header_of_nonsense(home: Home, stopped: str, disk: Path) -> None:
    with disk.open("r+b") as file:
        file.write(b"QFI\xfb" + struct.pack(">I", 99) + b"\xff" * 100)
    refuses(home, stopped, "disk-damaged", "damaged")


def test_a_disk_without_its_map(home: Home, stopped: str, disk: Path) -> None:
    """The table that says where everything is (L1), overwritten."""
    with disk.open("r+b") as file:
        head = file.read(48)
        entries, offset = struct.unpack(">I", head[36:40])[0], struct.unpack(">Q", head[40:48])[0]
        file.seek(offset)
        file.write(b"\xff" * entries * 8)
    refuses(home, stopped, "disk-damaged", "damaged")


def test_a_disk_without_its_filesystem(home: Home, stopped: str, disk: Path) -> None:
    write = ["qemu-io", "-f", "qcow2", "-c", "write -P 0 0 4M", str(disk)]
    subprocess.run(write, check=True, capture_output=True)
    refuses(home, stopped, "disk-damaged", "cannot mount")


def test_an_empty_disk_file(home: Home, stopped: str, disk: Path) -> None:
    disk.write_bytes(b"")
    refuses(home, stopped, "disk-damaged", "not a qcow2 file")


def test_a_missing_disk(home: Home, stopped: str, disk: Path) -> None:
    disk.unlink()
    refuses(home, stopped, "disk-damaged", "missing")
    assert home.run("ls").returncode == 0


def test_it_is_whole_after_all_that(home: Home, stopped: str) -> None:
    whole(home, stopped)


def test_a_missing_image(home: Home, stopped: str, tmp_path: Path) -> None:
    shutil.move(home.path / "images", tmp_path / "images")
    try:
        refuses(home, stopped, "disk-damaged", "image", "gone", "image build starter")
    finally:
        shutil.rmtree(home.path / "images", ignore_errors=True)
        shutil.move(tmp_path / "images", home.path / "images")


def test_a_kernel_that_is_not_there(home: Home, stopped: str, tmp_path: Path) -> None:
    given = {"BOXGROVE_KERNEL": str(tmp_path / "vmlinuz"), "BOXGROVE_KERNEL_MODULES": "/lib"}
    refuses(home, stopped, "kernel-missing", "vmlinuz", "BOXGROVE_KERNEL", **given)


def test_a_kernel_that_cannot_be_read(home: Home, stopped: str, tmp_path: Path) -> None:
    # A folder: not even root can read that as a file.
    given = {"BOXGROVE_KERNEL": str(tmp_path), "BOXGROVE_KERNEL_MODULES": str(tmp_path)}
    refuses(home, stopped, "kernel-missing", "cannot be read", **given)


def test_a_kernel_that_is_none(home: Home, stopped: str, tmp_path: Path) -> None:
    (tmp_path / "vmlinuz").write_text("hello")
    given = {"BOXGROVE_KERNEL": str(tmp_path / "vmlinuz"), "BOXGROVE_KERNEL_MODULES": "/lib"}
    refuses(home, stopped, "kernel-missing", "not a Linux kernel", **given)


def test_a_kernel_without_its_modules(home: Home, stopped: str, tmp_path: Path) -> None:
    (tmp_path / "vmlinuz").write_text("hello")
    given = {"BOXGROVE_KERNEL": str(tmp_path / "vmlinuz"), "BOXGROVE_KERNEL_MODULES": ""}
    refuses(home, stopped, "kernel-missing", "BOXGROVE_KERNEL_MODULES", **given)


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def no_new_box(home: Home) -> Iterator[None]:
    before = home.box_folders()
    yield
    assert home.box_folders() == before, "nothing is left of a create that failed"
    assert_fault(home.run("show", "never"), "unknown-box")


@pytest.mark.usefixtures("no_new_box")
def test_no_engine_at_all(home: Home, stopped: str) -> None:
    missing = {"BOXGROVE_QEMU": "qemu-system-nowhere"}
    done = home.run("create", "never", *NEW, env=missing, timeout=MAKE_S)
    assert_fault(done, "engine-missing", "qemu-system-nowhere", "apt install")
    refuses(home, stopped, "engine-missing", **missing)
    said = home.run("doctor", env=missing)
    assert said.returncode == 1
    assert b"NO  engine" in said.stdout
    assert b"apt install" in said.stdout
    assert home.run("ls", env=missing).returncode == 0


@pytest.mark.usefixtures("no_new_box")
def test_no_engine_in_the_path(home: Home, tmp_path: Path) -> None:
    done = home.run("create", "never", *NEW, env={"PATH": str(tmp_path)}, timeout=MAKE_S)
    assert_fault(done, "engine-missing", "qemu")


@pytest.mark.usefixtures("no_new_box")
def test_an_engine_that_is_too_old(home: Home, stopped: str, tmp_path: Path) -> None:
    old = {"BOXGROVE_QEMU": script(tmp_path / "qemu", "echo QEMU emulator version 2.11.1")}
    done = home.run("create", "never", *NEW, env=old, timeout=MAKE_S)
    assert_fault(done, "engine-too-old", "2.11.1", "7.0")
    refuses(home, stopped, "engine-too-old", **old)


@pytest.mark.usefixtures("no_new_box")
def test_an_engine_that_is_something_else(home: Home, tmp_path: Path) -> None:
    odd = {"BOXGROVE_QEMU": script(tmp_path / "qemu", "echo I am not QEMU; exit 3")}
    done = home.run("create", "never", *NEW, env=odd, timeout=MAKE_S)
    assert_fault(done, "engine-failed", "version")


def test_an_engine_that_fails(home: Home, stopped: str, tmp_path: Path) -> None:
    text = (
        'case "$*" in *--version*) echo QEMU emulator version 8.2.0;; '
        "*) echo 'the cat sat on the keyboard' >&2; exit 1;; esac"
    )
    failing = {"BOXGROVE_QEMU": script(tmp_path / "qemu", text), "BOXGROVE_ACCEL": "tcg"}
    refuses(home, stopped, "engine-failed", "the cat sat on the keyboard", **failing)
    whole(home, stopped)


def test_an_accelerator_that_is_none(home: Home, stopped: str) -> None:
    refuses(home, stopped, "bad-spec", "warp", "kvm or tcg", BOXGROVE_ACCEL="warp")


def test_a_damaged_state_file(home: Home, stopped: str) -> None:
    (home.folder(stopped) / "state.json").write_text("{nonsense")
    shown = home.show(stopped)
    assert shown["state"] == "crashed"
    assert "state file" in shown["why"]
    whole(home, stopped)


def test_a_damaged_machine_file(home: Home, stopped: str) -> None:
    """It is written anew at every start."""
    (home.folder(stopped) / "machine.json").write_text("{nonsense")
    whole(home, stopped)
