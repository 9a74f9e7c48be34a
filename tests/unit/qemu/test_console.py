"""The console's log: complete while it is small, bounded however much a guest prints."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from vm_backends.qemu.console import LOG_LIMIT, ConsoleLog


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bgc-") as made:
        yield Path(made)


async def _print(folder: Path, text: bytes) -> str:
    """What the log holds after a guest has printed this and ended."""

    async def guest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(text)
        await writer.drain()
        writer.close()

    log = ConsoleLog(folder / "serial.log")
    async with await asyncio.start_unix_server(guest, folder / "s"):
        await log.connect(folder / "s")
        assert log._task
        await asyncio.wait([log._task], timeout=30)
        await log.aclose()
    return (folder / "serial.log").read_text()


async def test_all_of_a_short_boot_is_kept(folder: Path) -> None:
    assert await _print(folder, b"hello\nlogin: ") == "hello\nlogin: "


async def test_a_guest_that_shouts_does_not_fill_the_disk(folder: Path) -> None:
    lines = b"".join(b"%07d all work and no play\n" % number for number in range(300_000))
    assert len(lines) > 8 * LOG_LIMIT
    log = await _print(folder, lines)
    kept = [path for path in folder.iterdir() if path.name.startswith("serial")]
    assert sum(path.stat().st_size for path in kept) < 3 * LOG_LIMIT
    assert log.endswith("0299999 all work and no play\n"), "the end is what matters"
