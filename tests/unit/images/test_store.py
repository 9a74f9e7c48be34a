"""The store: what it lists, builds and refuses, with the real starter image."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from boxgrove.images import Image, ImageInUse, ImageStore, UnknownImage, disk, manifest
from boxgrove.images.process import search_path
from boxgrove.images.starter import is_static
from vm_backends.events import Progress

NEEDED = ("qemu-img", "mke2fs", "debugfs", "busybox")
missing = [name for name in NEEDED if shutil.which(name, path=search_path()) is None]
needs_tools = pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def put(root: Path, name: str = "made", digest: str = "ab" * 32, created: float = 1.0) -> Image:
    folder = root / f"{name}-{digest[:16]}"
    folder.mkdir(parents=True)
    (folder / manifest.DISK).write_bytes(b"disk")
    image = Image(name, digest, folder / manifest.DISK, 10, 4, created, "about", "6.1")
    manifest.write(folder, image, "made of nothing")
    return image


def test_what_is_written_is_read(tmp_path: Path, store: ImageStore) -> None:
    image = put(tmp_path / "images")
    assert store.list() == [image]
    assert store.find("made") == store.find("ab" * 32) == store.find("ab" * 6) == image
    assert store.find("ab") is store.find("other") is None


def test_the_newest_of_a_name_is_found(tmp_path: Path, store: ImageStore) -> None:
    put(tmp_path / "images", digest="aa" * 32, created=1.0)
    newest = put(tmp_path / "images", digest="bb" * 32, created=3.0)
    put(tmp_path / "images", digest="cc" * 32, created=2.0)
    assert store.find("made") == newest


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.pop("digest"),
        lambda data: data.update(virtual_bytes="big"),
        lambda data: data.update(stored_bytes=-1),
        lambda data: data.update(version=99),
        lambda data: data.update(name=["a"]),
        lambda data: data.update(created=None),
    ],
)
def test_a_manifest_that_is_not_right_is_no_image(
    tmp_path: Path, store: ImageStore, change: object
) -> None:
    path = put(tmp_path / "images").disk.parent / manifest.FILE
    data = json.loads(path.read_text())
    assert callable(change)
    change(data)
    path.chmod(0o644)
    path.write_text(json.dumps(data))
    assert store.list() == []


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\0"])
def test_rubbish_in_place_of_a_manifest_is_no_image(
    tmp_path: Path, store: ImageStore, text: str
) -> None:
    path = put(tmp_path / "images").disk.parent / manifest.FILE
    path.chmod(0o644)
    path.write_text(text)
    assert store.list() == []


def test_an_image_without_its_disk_is_none(tmp_path: Path, store: ImageStore) -> None:
    put(tmp_path / "images").disk.unlink()
    assert store.list() == []


def test_an_image_in_use_is_not_removed(tmp_path: Path, store: ImageStore) -> None:
    used = put(tmp_path / "images", digest="aa" * 32, created=1.0)
    put(tmp_path / "images", digest="bb" * 32, created=2.0)
    with pytest.raises(ImageInUse) as caught:
        store.remove("made", {used.digest})
    assert caught.value.hint
    assert len(store.list()) == 2, "all or none"
    store.remove("bb" * 32, {used.digest})
    assert store.list() == [used]
    store.remove("made", set())
    assert store.list() == []
    assert not used.disk.parent.exists()


def test_removing_what_is_not_there(store: ImageStore) -> None:
    with pytest.raises(UnknownImage):
        store.remove("nothing", set())


async def test_an_unknown_name_lists_the_known(store: ImageStore) -> None:
    with pytest.raises(UnknownImage, match="starter, debian"):
        await store.ensure("plan9")


def test_the_known_images_are_described(store: ImageStore) -> None:
    known = {image.name: image for image in store.known()}
    assert set(known) == {"starter", "debian"}
    for image in known.values():
        assert image.about
        assert image.size_bytes > 0 and image.seconds > 0


@needs_tools
async def test_starter_is_built_once_and_says_so(store: ImageStore, tmp_path: Path) -> None:
    told: list[Progress] = []
    first = await store.ensure("starter", told.append)
    assert first.disk.stat().st_mode & 0o777 == 0o444
    assert first.kernel == "6.1.0-test"
    assert store.list() == [first]
    assert await store.build("starter", told.append) == first
    assert "Nothing has changed" in told[-1].step
    assert not list((tmp_path / "images").glob(".building-*"))
    for step in told:
        assert 0 <= step.done <= step.total or step.total == 0


@needs_tools
async def test_two_builds_at_once_make_one_image(store: ImageStore) -> None:
    first, second = await asyncio.gather(store.build("starter"), store.build("starter"))
    assert first == second
    assert store.list() == [first]


@needs_tools
async def test_a_cancelled_build_leaves_nothing(store: ImageStore, tmp_path: Path) -> None:
    writing = asyncio.Event()

    def listen(progress: Progress) -> None:
        if progress.step == "Writing the disk":
            writing.set()

    task = asyncio.create_task(store.build("starter", listen))
    await writing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(p.name for p in (tmp_path / "images").iterdir()) == [".lock"]
    assert (await store.ensure("starter")).disk.is_file()


@needs_tools
@pytest.mark.parametrize("namespaces", [True, False])
async def test_the_disk_is_clean_and_owners_are_right(
    store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, namespaces: bool
) -> None:
    if not namespaces:
        # As on a host where every owner has to be set afterwards.
        async def nobody(place: object) -> tuple[list[str], tuple[int, int]]:
            return [], (4242, 4242)

        monkeypatch.setattr(disk, "_as_root", nobody)
    image = await store.build("starter")
    raw = tmp_path / "raw"
    run("qemu-img", "convert", "-f", "qcow2", "-O", "raw", str(image.disk), str(raw))
    assert raw.stat().st_size == image.virtual_bytes
    check = run("e2fsck", "-fn", str(raw))
    assert check.returncode == 0, check.stdout
    assert "User:  1000   Group:  1000" in debugfs(raw, "stat /home/claw")
    assert "User:     0   Group:     0" in debugfs(raw, "stat /etc/passwd")
    assert "Mode:  01777" in debugfs(raw, "stat /tmp")
    assert "Mode:  0700" in debugfs(raw, "stat /root")
    assert 'Fast link dest: "/bin/busybox"' in debugfs(raw, "stat /bin/sh")
    assert "claw:x:1000:1000" in debugfs(raw, "cat /etc/passwd")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": search_path()}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def debugfs(raw: Path, request: str) -> str:
    return run("debugfs", "-R", request, str(raw)).stdout


def test_static_programs_are_told_from_others(tmp_path: Path) -> None:
    assert not is_static(Path(sys.executable).resolve()) or "static" in sys.executable
    (tmp_path / "script").write_text("#!/bin/sh\n")
    assert not is_static(tmp_path / "script")
    assert not is_static(tmp_path / "nothing")
    found = shutil.which("busybox", path=search_path())
    if found is not None:
        listed = run("ldd", found)
        assert is_static(Path(found)) == ("not a dynamic" in listed.stdout + listed.stderr)


def test_importing_the_package_is_cheap() -> None:
    code = (
        "import sys, boxgrove.images; "
        "print(*(n for n in ('asyncio', 'pydantic', 'tarfile', 'subprocess') if n in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
