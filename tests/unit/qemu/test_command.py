"""Argument lists: what QEMU and its walls are told, without starting them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from vm_backends.qemu import command, confine
from vm_backends.spec import BootFiles, MachineSpec

BOOT = BootFiles(Path("/boot/vmlinuz"), Path("/boot/initrd"))
SPEC = MachineSpec("a", "qemu", BOOT, Path("/images/base.qcow2"), cpus=2, memory_mib=512)
DISK = command.DiskFiles(Path("/boxes/a/disk/active.qcow2"), SPEC.base)


def arguments(accelerator: str = "tcg", *, disk: bool = True, name: str = "a") -> list[str]:
    return command.arguments(
        binary=Path("/usr/bin/qemu-system-x86_64"), name=name, accelerator=accelerator, cpus=2,
        memory_mib=512, boot=BOOT, disk=DISK if disk else None, sockets=command.Sockets(3, 4, 5),
    )  # fmt: skip


def after(words: list[str], flag: str) -> list[str]:
    return [words[i + 1] for i, word in enumerate(words) if word == flag]


def test_emulation_has_a_bounded_translation_cache() -> None:
    words = arguments("tcg")
    assert after(words, "-accel") == ["tcg,thread=multi,tb-size=128"]
    assert after(words, "-cpu") == ["max,-erms,-la57"]


def test_kvm_uses_the_host_processor() -> None:
    words = arguments("kvm")
    assert after(words, "-accel") == ["kvm"]
    assert after(words, "-cpu") == ["host"]


def test_every_disk_names_its_driver() -> None:
    nodes = [json.loads(text) for text in after(arguments(), "-blockdev")]
    assert [node["driver"] for node in nodes] == ["qcow2", "qcow2"]
    assert [node["file"]["driver"] for node in nodes] == ["file", "file"]
    assert nodes[0]["read-only"] is True
    assert nodes[0]["backing"] is None
    assert nodes[1]["backing"] == "base"


def test_no_network_card_and_no_default_device() -> None:
    words = arguments()
    assert "-nodefaults" in words
    assert "-no-user-config" in words
    assert not any("net" in word for word in words if word.startswith("-"))


def test_seccomp_is_always_on() -> None:
    for accelerator in ("kvm", "tcg"):
        (sandbox,) = after(arguments(accelerator), "-sandbox")
        assert sandbox.startswith("on,")
        for what in ("obsolete", "elevateprivileges", "spawn", "resourcecontrol"):
            assert f"{what}=deny" in sandbox


def test_a_comma_in_a_name_is_no_option() -> None:
    assert after(arguments(name="a,b"), "-name") == ["guest=a,,b"]


def test_without_a_disk_the_guest_stays_in_its_ramdisk() -> None:
    words = arguments(disk=False)
    assert not after(words, "-blockdev")
    assert "boxgrove.root" not in after(words, "-append")[0]


WALLS = confine.Walls(
    Path("/usr/bin/bwrap"), Path("/usr/bin/systemd-run"), Path("/usr/bin/prlimit"),
    Path("/usr/bin/nice"),
)  # fmt: skip
REACH = confine.Reach(
    writable=(Path("/boxes/a/disk"),),
    readable=(Path("/images/base.qcow2"),),
    devices=(Path("/dev/kvm"),),
)


def test_all_walls_in_order() -> None:
    words = confine.wrap(["/usr/bin/qemu", "-S"], WALLS, REACH, SPEC, info_fd=9)
    tools = ("systemd-run", "nice", "prlimit", "bwrap", "qemu")
    places = [words.index(f"/usr/bin/{tool}") for tool in tools]
    assert places == sorted(places)
    assert words[-2:] == ["/usr/bin/qemu", "-S"]
    assert "--property=MemoryMax=1024M" in words
    assert "--property=CPUQuota=250%" in words
    assert "--unshare-all" in words
    assert words[words.index("--cap-drop") + 1] == "ALL"
    assert words[words.index("--info-fd") + 1] == "9"
    assert _pairs(words, "--bind") == [("/boxes/a/disk", "/boxes/a/disk")]
    assert ("/images/base.qcow2", "/images/base.qcow2") in _pairs(words, "--ro-bind")
    assert _pairs(words, "--dev-bind") == [("/dev/kvm", "/dev/kvm")]


def test_a_home_is_not_visible_inside() -> None:
    words = confine.wrap(["/usr/bin/qemu"], WALLS, REACH, SPEC, info_fd=9)
    bound = {target for flag in ("--bind", "--ro-bind") for _, target in _pairs(words, flag)}
    assert "/" not in bound
    assert "/home" not in bound


def test_an_engine_in_an_unusual_place_is_bound() -> None:
    words = confine.wrap(["/opt/qemu/bin/qemu"], WALLS, REACH, SPEC, info_fd=9)
    assert ("/opt/qemu", "/opt/qemu") in _pairs(words, "--ro-bind")


@pytest.mark.parametrize("missing", ["bubblewrap", "scope", "prlimit", "nice"])
def test_a_missing_wall_leaves_the_others(missing: str) -> None:
    walls = replace(WALLS, **{missing: None})  # type: ignore[arg-type]  # any field may be None
    words = confine.wrap(["/usr/bin/qemu"], walls, REACH, SPEC, info_fd=9)
    assert words[-1] == "/usr/bin/qemu"
    gone = str(getattr(WALLS, missing))
    assert gone not in words
    assert (
        sum(f"/usr/bin/{tool}" in words for tool in ("bwrap", "systemd-run", "prlimit", "nice"))
        == 3
    )


def _pairs(words: list[str], flag: str) -> list[tuple[str, str]]:
    return [(words[i + 1], words[i + 2]) for i, word in enumerate(words) if word == flag]
