"""The parts of the Debian recipe that need no network: sources, progress, the finishing touches."""

from __future__ import annotations

from pathlib import Path

import pytest

from boxgrove.images import ImageFailed, apt, debian, sources
from boxgrove.images.debian import Debian, InstallWatcher
from boxgrove.images.process import ToolFailed
from boxgrove.images.tree import Tree
from boxgrove.resources import resources as default_resources
from vm_backends.events import Progress

DEB822 = """\
# a comment
Types: deb deb-src
URIs: http://mirror.example/packages
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/security
Suites: bookworm-security
Components: main

Enabled: no
Types: deb
URIs: http://off.example/
Suites: bookworm
Components: main

Types: deb
URIs: http://vendor.example/
Suites: bookworm
Components: main
Signed-By: /etc/apt/keyrings/vendor.gpg
"""
LIST = """\
deb http://mirror.example/packages bookworm main # the same place, other format
deb [arch=amd64 signed-by=/etc/apt/keyrings/other.gpg] http://other.example/ bookworm main
deb http://third.example/ bookworm stable
deb cdrom:[Debian]/ bookworm main
deb-src http://mirror.example/packages bookworm main
"""


@pytest.fixture
def etc_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    host = {"ID": "debian", "VERSION_CODENAME": "bookworm"}
    monkeypatch.setattr(apt, "os_release", lambda: host)
    folder = tmp_path / "apt"
    (folder / "sources.list.d").mkdir(parents=True)
    (folder / "sources.list").write_text(LIST)
    (folder / "sources.list.d" / "debian.sources").write_text(DEB822)
    return folder


def test_the_hosts_own_debian_sources_are_used_and_no_others(etc_apt: Path) -> None:
    key = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] "
    assert sorted(sources.host_lines("bookworm", etc_apt)) == [
        "deb " + key + "http://mirror.example/packages bookworm main",
        "deb " + key + "http://mirror.example/packages bookworm-updates main",
        "deb http://mirror.example/packages bookworm main",
        "deb http://mirror.example/security bookworm-security main",
    ]


def test_another_release_comes_from_the_same_places(etc_apt: Path) -> None:
    lines = sources.host_lines("trixie", etc_apt)
    assert "deb http://mirror.example/security trixie-security main" in lines
    assert not any("bookworm" in line for line in lines)


def test_the_users_suite_wins(etc_apt: Path) -> None:
    assert sources.wanted_suite({"BOXGROVE_DEBIAN_SUITE": "trixie"}) == "trixie"
    assert sources.wanted_suite({}) == "bookworm"


def test_elsewhere_mmdebstrap_decides(etc_apt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = {"ID": "ubuntu", "ID_LIKE": "debian", "VERSION_CODENAME": "noble"}
    monkeypatch.setattr(apt, "os_release", lambda: host)
    assert sources.host_lines("stable", etc_apt) == []
    assert sources.wanted_suite({}) == "stable"


def test_progress_counts_each_package_once_and_never_goes_back() -> None:
    told: list[Progress] = []
    watcher = InstallWatcher(2, told.append)
    for line in (
        "Get:1 http://mirror.example/packages bookworm InRelease [151 kB]",
        "Get:4 http://mirror.example/packages bookworm/main amd64 Packages [8790 kB]",
        "Get:1 http://mirror.example/packages bookworm/main amd64 libc6 amd64 2.36-9 [2759 kB]",
        "Get:2 http://mirror.example/packages bookworm/main amd64 bash amd64 5.2 [1 kB]",
        "Unpacking libc6:amd64 (2.36-9) ...",
        "Unpacking bash (5.2) ...",
        "Setting up libc6:amd64 (2.36-9) ...",
        "Unpacking libc6:amd64 (2.36-9) over (2.36-9) ...",
        "Setting up bash (5.2) ...",
        "Setting up surprise (1) ...",
    ):
        watcher.line(line)
    done = [progress.done for progress in told]
    assert done == [1, 2, 3, 4, 5, 6, 6]
    assert {progress.total for progress in told} == {6}
    assert told[0].step == "Fetching packages"


@pytest.mark.parametrize(
    ("output", "hint"),
    [
        ("W: Temporary failure resolving 'mirror.example'", "network"),
        ("E: Could not connect to mirror.example:80", "network"),
        ("E: unable to pick chroot mode automatically", "uidmap"),
        ("W: GPG error: NO_PUBKEY 0E98404D386FA1D9", "debian-archive-keyring"),
    ],
)
def test_known_failures_get_a_sentence_and_a_hint(output: str, hint: str) -> None:
    fault = debian._explained(ToolFailed(["mmdebstrap"], 1, output), "bookworm")
    assert isinstance(fault, ImageFailed)
    assert hint in fault.hint


def test_other_failures_stay_as_they_are() -> None:
    error = ToolFailed(["mmdebstrap"], 1, "E: something new")
    assert debian._explained(error, "bookworm") is error


def plain_tree(folder: Path) -> Tree:
    """As much of a Debian as the finishing touches look at."""
    tree = Tree(folder)
    for path in (
        *("etc", "etc/skel", "etc/sudoers.d", "etc/apt", "etc/apt/apt.conf.d", "etc/dpkg"),
        *("etc/dpkg/dpkg.cfg.d", "etc/default", "home", "dev", "run", "tmp", "usr", "usr/share"),
        *("usr/share/doc", "usr/share/doc/bash", "usr/share/man", "usr/share/man/man1", "var"),
    ):
        tree.folder(path)
    tree.file("etc/passwd", b"root:x:0:0:root:/root:/bin/bash\n")
    tree.file("etc/group", b"root:x:0:\nsudo:x:27:\n")
    tree.file("etc/gshadow", b"root:*::\nsudo:*::\n", 0o640, (0, 42))
    tree.file("etc/shadow", b"root:*:20773:0:99999:7:::\n", 0o640, (0, 42))
    tree.file("etc/skel/.bashrc", b"# skel\n")
    tree.file("etc/bash.bashrc", b"# bash\n")
    tree.file("etc/resolv.conf", b"nameserver 10.1.2.3\n")
    tree.file("etc/hostname", b"the-host\n")
    tree.file("usr/share/doc/bash/copyright", b"licence")
    tree.file("usr/share/doc/bash/changelog.gz", b"news")
    tree.file("usr/share/man/man1/ls.1.gz", b"manual")
    return tree


def test_the_finished_tree_has_its_user_and_no_trace_of_the_host(tmp_path: Path) -> None:
    tree = plain_tree(tmp_path / "tree")
    Debian(default_resources() / "guest" / "debian")._dress(tree)
    root = tree.root
    assert "claw:x:1000:1000:claw,,,:/home/claw:/bin/bash" in (root / "etc/passwd").read_text()
    assert "sudo:x:27:claw\n" in (root / "etc/group").read_text()
    assert (root / "etc/shadow").read_text().startswith("root:*:19723:0:")
    assert tree.owners["etc/shadow"] == (0, 42)
    assert tree.owners["home/claw/.bashrc"] == (1000, 1000)
    assert (root / "etc/sudoers.d/claw").stat().st_mode & 0o777 == 0o440
    assert "NOPASSWD" in (root / "etc/sudoers.d/claw").read_text()
    assert (root / "etc/resolv.conf").read_bytes() == b""
    assert (root / "etc/machine-id").read_bytes() == b""
    assert "the-host" not in (root / "etc/hostname").read_text()
    assert [p.name for p in (root / "usr/share/doc/bash").iterdir()] == ["copyright"]
    assert not list((root / "usr/share/man").iterdir())
    assert "boxgrove.bashrc" in (root / "etc/bash.bashrc").read_text()
