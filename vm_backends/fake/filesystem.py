"""The pretend guest's files: a tree in memory, kept as one JSON file on the host."""

from __future__ import annotations

import base64
import errno
import json
import os
import posixpath
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vm_backends.errors import DiskDamaged

CAPACITY = 256 * 1024 * 1024
"""What really fits, whatever the size of the pretend disk: it all lives in memory."""

_MAX_LINKS = 40


@dataclass(slots=True, eq=False)
class Node:
    """A file, folder or link. `kind` is the archive's letter: f, d or l."""

    kind: str
    mode: int
    mtime_ns: int = 0
    uid: int = 0
    gid: int = 0
    data: bytearray = field(default_factory=bytearray)
    target: str = ""
    children: dict[str, Node] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.target) if self.kind == "l" else len(self.data)


def failure(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


class Filesystem:
    """Paths are absolute; errors are `OSError` with Linux numbers, as in a real guest."""

    def __init__(self, root: Node, now: Callable[[], float] = time.time) -> None:
        self.root = root
        self.now = now
        self.used = _weight(root)
        self.changes = 0
        """Grows with every change, so that a saver knows whether there is anything to do."""

    # Looking

    def lookup(self, path: str, *, follow: bool = True) -> Node:
        return self._walk(path, follow=follow, links=0)

    def exists(self, path: str) -> bool:
        try:
            self.lookup(path)
        except OSError:
            return False
        return True

    def folder(self, path: str) -> Node:
        node = self.lookup(path)
        if node.kind != "d":
            raise failure(errno.ENOTDIR, path)
        return node

    def read(self, path: str) -> bytes:
        node = self.lookup(path)
        if node.kind == "d":
            raise failure(errno.EISDIR, path)
        return bytes(node.data)

    def _walk(self, path: str, *, follow: bool, links: int) -> Node:
        if links > _MAX_LINKS:
            raise failure(errno.ELOOP, path)
        here, at = self.root, "/"
        parts = [part for part in posixpath.normpath(path).split("/") if part]
        for number, part in enumerate(parts):
            if here.kind != "d":
                raise failure(errno.ENOTDIR, path)
            child = here.children.get(part)
            if child is None:
                raise failure(errno.ENOENT, path)
            if child.kind == "l" and (follow or number < len(parts) - 1):
                child = self._walk(posixpath.join(at, child.target), follow=True, links=links + 1)
            here, at = child, posixpath.join(at, part)
        return here

    # Changing

    def place(self, path: str, node: Node) -> None:
        """Put a node at a path in one step; a folder is never replaced by something else."""
        folder, name = self._parent(path)
        old = folder.children.get(name)
        if old is not None and old.kind == "d":
            raise failure(errno.EISDIR, path)
        self.charge(_weight(node) - (_weight(old) if old else 0), path)
        folder.children[name] = node
        self._touch(folder)

    def write(self, path: str, data: bytes, *, append: bool = False) -> None:
        try:
            node = self.lookup(path)
        except FileNotFoundError:
            node = Node("f", 0o644, self._now_ns())
            self.place(self._where_links_lead(path), node)
        if node.kind == "d":
            raise failure(errno.EISDIR, path)
        self.charge(len(data) - (0 if append else len(node.data)), path)
        if not append:
            node.data.clear()
        node.data += data
        self._touch(node)

    def mkdir(self, path: str, *, parents: bool = False) -> None:
        if parents and posixpath.normpath(path) != "/":
            above = posixpath.dirname(posixpath.normpath(path))
            if not self.exists(above):
                self.mkdir(above, parents=True)
            if self.exists(path):
                self.folder(path)
                return
        folder, name = self._parent(path)
        if name in folder.children:
            raise failure(errno.EEXIST, path)
        folder.children[name] = Node("d", 0o755, self._now_ns())
        self._touch(folder)

    def symlink(self, target: str, path: str) -> None:
        folder, name = self._parent(path)
        if name in folder.children:
            raise failure(errno.EEXIST, path)
        folder.children[name] = Node("l", 0o777, self._now_ns(), target=target)
        self._touch(folder)

    def remove(self, path: str, *, recursive: bool = False) -> None:
        folder, name = self._parent(path)
        node = folder.children.get(name)
        if node is None:
            raise failure(errno.ENOENT, path)
        if node.kind == "d" and not recursive:
            raise failure(errno.EISDIR, path)
        del folder.children[name]
        self.charge(-_weight(node), path)
        self._touch(folder)

    def touch(self, path: str) -> None:
        if self.exists(path):
            self._touch(self.lookup(path))
        else:
            self.write(path, b"")

    def chmod(self, path: str, mode: int) -> None:
        self.lookup(path).mode = mode & 0o7777
        self.changes += 1

    def charge(self, more: int, path: str) -> None:
        self.check_room(more, path)
        self.used += more
        self.changes += 1

    def check_room(self, more: int, path: str) -> None:
        if more > 0 and self.used + more > CAPACITY:
            raise failure(errno.ENOSPC, path)

    def _where_links_lead(self, path: str) -> str:
        """A file written through a link that leads nowhere yet is made where it leads."""
        for _ in range(_MAX_LINKS):
            folder, name = self._parent(path)
            there = folder.children.get(name)
            if there is None or there.kind != "l":
                return path
            path = posixpath.join(posixpath.dirname(path), there.target)
        raise failure(errno.ELOOP, path)

    def _parent(self, path: str) -> tuple[Node, str]:
        clean = posixpath.normpath(path)
        name = posixpath.basename(clean)
        if not name:
            raise failure(errno.EBUSY, path)
        return self.folder(posixpath.dirname(clean)), name

    def _touch(self, node: Node) -> None:
        node.mtime_ns = self._now_ns()
        self.changes += 1

    def _now_ns(self) -> int:
        return int(self.now() * 1e9)


def _weight(node: Node) -> int:
    return len(node.data) + sum(_weight(child) for child in node.children.values())


# On the host's disk


def first_tree(hostname: str) -> Filesystem:
    """What a freshly created pretend disk holds."""
    fs = Filesystem(Node("d", 0o755, time.time_ns()))
    for folder in ("bin", "etc", "home/claw", "root", "tmp", "usr/bin", "var/log"):
        fs.mkdir(f"/{folder}", parents=True)
    fs.chmod("/tmp", 0o1777)
    home = fs.lookup("/home/claw")
    home.uid = home.gid = 1000
    fs.write("/etc/hostname", f"{hostname}\n".encode())
    fs.write("/etc/os-release", b'PRETTY_NAME="Pretend Linux"\nID=pretend\n')
    fs.write("/etc/environment", b"")
    fs.write(
        "/etc/passwd",
        b"root:x:0:0:root:/root:/bin/sh\nclaw:x:1000:1000:Claw:/home/claw:/bin/sh\n",
    )
    fs.write("/home/claw/README", b"This box is a pretend one: nothing really runs in it.\n")
    return fs


def dump(fs: Filesystem) -> bytes:
    return json.dumps({"format": 1, "root": _to_json(fs.root)}).encode()


def load(path: Path) -> Filesystem:
    """The tree that `dump` wrote; DiskDamaged if the file is missing or something else."""
    try:
        data = json.loads(path.read_bytes())
        if data["format"] != 1:
            raise ValueError(f"format {data['format']}")
        return Filesystem(_from_json(data["root"]))
    except FileNotFoundError as error:
        raise DiskDamaged(f"the machine's disk {path} is missing") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DiskDamaged(f"the machine's disk {path} is not a pretend disk") from error


def write_atomically(path: Path, data: bytes) -> None:
    """All of it or nothing, on the disk when this returns."""
    new = path.with_suffix(".new")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _to_json(node: Node) -> dict[str, Any]:
    made: dict[str, Any] = {"kind": node.kind, "mode": node.mode, "mtime": node.mtime_ns}
    if node.uid or node.gid:
        made["owner"] = [node.uid, node.gid]
    if node.kind == "f":
        made["data"] = base64.b64encode(node.data).decode()
    elif node.kind == "l":
        made["target"] = node.target
    else:
        made["children"] = {name: _to_json(child) for name, child in node.children.items()}
    return made


def _from_json(data: dict[str, Any]) -> Node:
    uid, gid = data.get("owner", (0, 0))
    return Node(
        kind=data["kind"],
        mode=int(data["mode"]),
        mtime_ns=int(data["mtime"]),
        uid=int(uid),
        gid=int(gid),
        data=bytearray(base64.b64decode(data.get("data", ""))),
        target=data.get("target", ""),
        children={name: _from_json(child) for name, child in data.get("children", {}).items()},
    )
