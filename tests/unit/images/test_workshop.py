"""Building is all or nothing: kills, cancels, crowds and full disks leave a clean folder."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from boxgrove.images import ImageFailed, process
from boxgrove.images import workshop as workshop_module
from boxgrove.images.process import BuildLog, ToolFailed
from boxgrove.images.workshop import PREFIX, workshop
from vm_backends.errors import NoSpace


def leftovers(root: Path) -> list[Path]:
    return list(root.glob(PREFIX + "*"))


async def test_what_is_published_stays_and_the_rest_goes(tmp_path: Path) -> None:
    async with workshop(tmp_path, "try") as place:
        (place.folder / "thing").mkdir()
        (place.folder / "thing" / "file").write_text("content")
        (place.folder / "scrap").write_text("scrap")
        place.publish("thing", tmp_path / "kept")
    assert (tmp_path / "kept" / "file").read_text() == "content"
    assert not leftovers(tmp_path)


async def test_a_second_build_of_the_same_content_is_welcome(tmp_path: Path) -> None:
    for _ in range(2):
        async with workshop(tmp_path, "try") as place:
            (place.folder / "thing").mkdir()
            (place.folder / "thing" / "file").write_text("content")
            place.publish("thing", tmp_path / "kept")
    assert [path.name for path in tmp_path.iterdir() if path.name != ".lock"] == ["kept"]


async def test_two_builds_at_once_take_turns(tmp_path: Path) -> None:
    inside = 0
    order: list[str] = []

    async def one(name: str) -> None:
        nonlocal inside
        async with workshop(tmp_path, name) as place:
            inside += 1
            assert inside == 1
            await process.run(["true"], place.log)
            order.append(name)
            inside -= 1

    await asyncio.gather(*(one(str(n)) for n in range(5)))
    assert sorted(order) == list("01234")


async def test_a_cancelled_wait_for_the_lock_gives_it_up(tmp_path: Path) -> None:
    async def wait() -> None:
        async with workshop(tmp_path, "second"):
            pytest.fail("the lock was held")

    async with workshop(tmp_path, "first"):
        waiter = asyncio.create_task(wait())
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
    async with workshop(tmp_path, "third"):
        pass


KILLED = """
import asyncio, sys
from pathlib import Path
from boxgrove.images.workshop import workshop

async def main():
    async with workshop(Path(sys.argv[1]), "killed") as place:
        (place.folder / "half").write_text("half of an image")
        print("building", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_killed_build_leaves_nothing_to_the_next(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == "building\n"
        child.kill()
        child.wait()
    assert len(leftovers(tmp_path)) == 1
    async with workshop(tmp_path, "next") as place:
        assert leftovers(tmp_path) == [place.folder]
    assert not leftovers(tmp_path)


TOOL = """
import asyncio, sys
from pathlib import Path
from boxgrove.images import process
from boxgrove.images.workshop import workshop

async def main():
    async with workshop(Path(sys.argv[1]), "killed") as place:
        say = lambda text: print(text, flush=True)
        await process.run(["sh", "-c", "echo $$; exec sleep 600"], place.log, on_line=say)

asyncio.run(main())
"""


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="there is no setpriv here")
def test_a_killed_build_takes_its_tools_along(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", TOOL, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child.stdout:
        tool = os.pidfd_open(int(child.stdout.readline()))
    try:
        child.kill()
        child.wait()
        # A pidfd becomes readable when its process has ended.
        assert select.select([tool], [], [], 20)[0]
    finally:
        os.close(tool)


async def test_cancelling_ends_the_whole_process_group(tmp_path: Path) -> None:
    started = asyncio.Event()
    pids: list[int] = []

    def line(text: str) -> None:
        pids.extend(map(int, text.split()))
        started.set()

    async def build() -> None:
        # The inner sleep ignores SIGTERM, as a tool in the middle of something might.
        script = "(trap '' TERM; exec sleep 600) & echo $$ $!; wait"
        async with workshop(tmp_path, "cancelled") as place:
            await process.run(["sh", "-c", script], place.log, on_line=line)

    task = asyncio.create_task(build())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for pid in pids:
        assert not alive(pid)
    assert not leftovers(tmp_path)


def alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return status not in ("Z", "X")


async def test_a_failing_tool_keeps_its_log_and_quotes_it(tmp_path: Path) -> None:
    with pytest.raises(ImageFailed, match="what went wrong") as caught:
        async with workshop(tmp_path, "fails") as place:
            await process.run(["sh", "-c", "echo what went wrong >&2; exit 3"], place.log)
    log = tmp_path / "logs" / "fails.log"
    assert str(log) in caught.value.hint
    assert "what went wrong" in log.read_text()
    assert not leftovers(tmp_path)


async def test_a_tool_that_finds_the_disk_full_is_no_space(tmp_path: Path) -> None:
    with pytest.raises(NoSpace):
        async with workshop(tmp_path, "full") as place:
            script = "echo 'write: No space left on device'; exit 1"
            await process.run(["sh", "-c", script], place.log)


async def test_a_disk_too_small_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(NoSpace, match="MiB"):
        async with workshop(tmp_path, "huge") as place:
            place.need_space(1 << 60)
    assert not leftovers(tmp_path)


async def test_a_full_disk_is_no_space(tmp_path: Path) -> None:
    with pytest.raises(NoSpace):
        async with workshop(tmp_path, "full"):
            Path("/dev/full").write_text("x")


async def test_a_place_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ImageFailed, match="cannot build in") as caught:
        async with workshop(tmp_path / "file" / "images", "nowhere"):
            pass
    assert "BOXGROVE_HOME" in caught.value.hint


async def test_folders_without_rights_are_removed_all_the_same(tmp_path: Path) -> None:
    async with workshop(tmp_path, "locked") as place:
        (place.folder / "a" / "b").mkdir(parents=True)
        (place.folder / "a" / "b" / "file").write_text("")
        (place.folder / "a" / "b").chmod(0o500)
        (place.folder / "a").chmod(0o500)
    assert not leftovers(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_folder_with_something_mounted_in_it_is_left_alone(tmp_path: Path) -> None:
    outside = tmp_path / "of the host"
    outside.mkdir()
    (outside / "precious").write_text("precious")
    left = tmp_path / "images" / (PREFIX + "left")
    (left / "de v").mkdir(parents=True)
    bound = subprocess.run(
        ["mount", "--bind", str(outside), str(left / "de v")], capture_output=True, check=False
    )
    if bound.returncode:
        pytest.skip("this root may not mount")
    try:
        workshop_module.collect(tmp_path / "images")
        assert (outside / "precious").exists()
        assert left.exists()
    finally:
        subprocess.run(["umount", str(left / "de v")], check=True)
    workshop_module.collect(tmp_path / "images")
    assert not left.exists()


async def test_output_comes_in_lines_however_it_ends_them(tmp_path: Path) -> None:
    log = BuildLog(tmp_path / "log")
    seen: list[str] = []
    output = await process.run(["printf", "10%%\\r20%%\\rdone\\nlast"], log, on_line=seen.append)
    log.close()
    assert seen == ["10%", "20%", "done", "last"]
    assert output == "\n".join(seen)


async def test_a_tool_killed_by_a_signal_failed(tmp_path: Path) -> None:
    log = BuildLog(tmp_path / "log")

    def kill(text: str) -> None:
        os.kill(int(text), signal.SIGKILL)

    with pytest.raises(ToolFailed):
        await process.run(["sh", "-c", "echo $$; exec sleep 600"], log, on_line=kill)
    log.close()


def test_a_missing_tool_names_its_package() -> None:
    with pytest.raises(ImageFailed, match="no-such-tool") as caught:
        process.tool("no-such-tool", "its-package")
    assert "its-package" in caught.value.hint
