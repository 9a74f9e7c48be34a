"""A tree of files becomes an ext4 filesystem in a qcow2 disk: right owners, no root needed."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from boxgrove.images import process
from boxgrove.images.process import ToolFailed, search_path, tool
from boxgrove.images.tree import BLOCK, ROOT, Owner, Tree
from boxgrove.images.workshop import MIB, Workshop
from vm_backends.events import Progress

FORMAT = "ext4-1"
"""Part of every digest: raised when the same tree is laid out differently."""
JOURNAL_MIB = 16
GROW_TO_BLOCKS = (1 << 40) // BLOCK
"""Tables are reserved for growing to 1 TiB while mounted; ext4 goes further, only less tidily."""
INODES_PER_GROUP = 8192
"""One for 16 KiB. A first group that is not full would otherwise set a lower figure for good."""
GROUP_BYTES = 128 * MIB
FEATURES = (
    # Named in full, so that the host's mke2fs.conf has no say and every kernel since 4.x mounts it.
    "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,"
    "large_file,huge_file,dir_nlink,extra_isize,metadata_csum"
)


def size_for(tree: Tree, least: int) -> int:
    """Bytes of a filesystem that holds `tree` with a fifth to spare; boxes grow it anyway."""
    content, inodes = tree.needs()
    groups = -(-content // GROUP_BYTES) + 1
    tables = max(inodes, groups * INODES_PER_GROUP) * 256 + (JOURNAL_MIB + 4) * MIB
    wanted = max(least, (content + tables) * 6 // 5)
    return -(-wanted // (8 * MIB)) * 8 * MIB


async def make(
    tree: Tree,
    place: Workshop,
    *,
    size: int,
    digest: str,
    target: Path,
    progress: Callable[[Progress], None],
) -> None:
    """Write `tree` into a new qcow2 disk at `target`."""
    converter = tool("qemu-img", "qemu-utils")
    raw = place.folder / "disk.raw"
    progress(Progress("Writing the disk", 0, 100))
    await _format(tree, raw, size, digest, place)

    def show(line: str) -> None:
        if found := re.search(r"\((\d+)[.,]\d+/100%\)", line):
            progress(Progress("Writing the disk", 50 + int(found[1]) // 2, 100))

    command = [converter, "convert", "-p", "-f", "raw", "-O", "qcow2", str(raw), str(target)]
    await process.run(command, place.log, on_line=show)
    raw.unlink()


async def _format(tree: Tree, raw: Path, size: int, digest: str, place: Workshop) -> None:
    with raw.open("wb") as file:
        file.truncate(size)
    seed = str(uuid.UUID(bytes=bytes.fromhex(digest)[:16], version=4))
    groups = -(-size // GROUP_BYTES)
    extended = (
        f"resize={GROW_TO_BLOCKS},hash_seed={seed},root_owner=0:0,"
        "lazy_itable_init=0,lazy_journal_init=0,nodiscard"
    )
    prefix, recorded = await _as_root(place)
    command = [
        *prefix,
        *(tool("mke2fs", "e2fsprogs"), "-q", "-F", "-t", "ext4", "-O", FEATURES),
        *("-b", str(BLOCK), "-I", "256", "-N", str(groups * INODES_PER_GROUP), "-m", "1"),
        *("-J", f"size={JOURNAL_MIB}", "-L", "boxgrove", "-U", seed, "-E", extended),
        *("-d", str(tree.root), str(raw)),
    ]
    await process.run(command, place.log)
    await _set_owners(tree, recorded, raw, place)


async def _as_root(place: Workshop) -> tuple[list[str], Owner]:
    """How to run mke2fs so that it sees our files as root's, and whom it sees them owned by."""
    if os.geteuid() == 0:
        return [], ROOT
    unshare = shutil.which("unshare", path=search_path())
    if unshare is not None:
        try:
            await process.run([unshare, "-r", "true"], place.log)
        except ToolFailed:
            pass  # this host does not let users have namespaces: every owner is set afterwards
        else:
            return [unshare, "-r"], ROOT
    return [], (os.geteuid(), os.getegid())


async def _set_owners(tree: Tree, recorded: Owner, raw: Path, place: Workshop) -> None:
    lines: list[str] = []
    if recorded == ROOT:
        owned = list(tree.owners.items())
    else:
        paths = await asyncio.to_thread(lambda: [path for path, _ in tree.paths()])
        owned = [(path, tree.owners.get(path, ROOT)) for path in paths]
    for path, owner in owned:
        name = '"/' + path.replace('"', '""') + '"'
        lines += [f"sif {name} uid {owner[0]}", f"sif {name} gid {owner[1]}"]
    if not lines:
        return
    script = place.folder / "owners.debugfs"
    script.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogateescape")
    command = [tool("debugfs", "e2fsprogs"), "-w", "-f", str(script), str(raw)]
    output = await process.run(command, place.log)
    # It ends with status 0 whatever happens; every line beside its echo is a complaint.
    complaints = [
        line
        for line in output.splitlines()
        if line.strip() and not line.startswith(("debugfs: sif ", "debugfs 1."))
    ]
    if complaints:
        raise ToolFailed(command, 1, "\n".join(complaints[:10]))
