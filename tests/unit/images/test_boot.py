"""Boot files are made once, again when what they are made from changes, and never half."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from boxgrove.images import ImageFailed, ImageStore
from tests.unit.images.test_initrd import parse
from vm_backends.errors import KernelMissing
from vm_backends.events import Progress

needs_compiler = pytest.mark.skipif(
    not (shutil.which("musl-gcc") or shutil.which("cc")), reason="there is no C compiler here"
)


@needs_compiler
async def test_kernel_and_ramdisk_are_made_and_kept(store: ImageStore) -> None:
    told: list[Progress] = []
    first = await store.boot_files(told.append)
    assert told
    found = parse(first.initrd.read_bytes())
    assert found["init"].data[:4] == b"\x7fELF"
    assert b"/modules/virtio_blk.ko" in found["modules.list"].data
    told.clear()
    assert await store.boot_files(told.append) == first
    assert not told, "nothing was to be done"


@needs_compiler
async def test_a_changed_agent_gives_a_new_ramdisk(store: ImageStore, resources: Path) -> None:
    first = await store.boot_files()
    (resources / "guest/agent/main.c").write_text("int main(void) { return 7; }\n")
    second = await store.boot_files()
    assert second.initrd != first.initrd
    assert second.kernel == first.kernel
    assert first.initrd.is_file(), "a running box may still name the old one"


@needs_compiler
async def test_a_lost_ramdisk_is_made_again(store: ImageStore) -> None:
    first = await store.boot_files()
    content = first.initrd.read_bytes()
    first.initrd.unlink()
    assert (await store.boot_files()).initrd.read_bytes() == content


@needs_compiler
async def test_a_lost_driver_is_put_back(store: ImageStore) -> None:
    first = await store.boot_files()
    shutil.rmtree(first.kernel.parent / "drivers")
    first.initrd.unlink()
    assert (await store.boot_files()).initrd == first.initrd


@needs_compiler
async def test_the_users_kernel_is_left_when_it_is_no_longer_asked_for(
    store: ImageStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = await store.boot_files()
    monkeypatch.setenv("BOXGROVE_KERNEL", str(tmp_path / "gone"))
    with pytest.raises(KernelMissing, match="gone"):
        await store.boot_files()
    assert first.kernel.is_file()


@needs_compiler
async def test_an_agent_that_does_not_compile_quotes_the_compiler(
    store: ImageStore, resources: Path, tmp_path: Path
) -> None:
    (resources / "guest/agent/main.c").write_text("int main(void) { return wrong; }\n")
    with pytest.raises(ImageFailed, match="wrong") as caught:
        await store.boot_files()
    assert str(tmp_path / "boot" / "logs") in caught.value.hint
    assert not list((tmp_path / "boot").glob(".building-*"))


async def test_a_shipped_agent_needs_no_compiler(
    store: ImageStore, resources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import platform

    folder = resources / "guest" / "bin" / platform.machine()
    folder.mkdir(parents=True)
    (folder / "boxgrove-agent").write_bytes(b"a shipped agent")
    monkeypatch.setattr("boxgrove.images.agent.find_compiler", lambda machine: None)
    files = await store.boot_files()
    assert parse(files.initrd.read_bytes())["init"].data == b"a shipped agent"


async def test_without_compiler_and_agent_it_says_what_to_install(
    store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("boxgrove.images.agent.find_compiler", lambda machine: None)
    with pytest.raises(ImageFailed, match="compiler") as caught:
        await store.boot_files()
    assert "musl-tools" in caught.value.hint
