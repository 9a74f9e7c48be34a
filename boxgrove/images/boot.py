"""The kernel and the initial ramdisk that every box boots, kept by content.

    kernels/RELEASE-HASH/      vmlinuz, kernel.json, drivers/NAME.ko
    agents/FINGERPRINT-CC/     boxgrove-agent, where it had to be compiled
    initrds/HASH.img           agent and drivers
    current.json               which of them belong together, and what they were made from

Old ones stay: a box that was made with them may name them, and they are small.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import platform
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from boxgrove.images import agent, kernel
from boxgrove.images.initrd import ramdisk
from boxgrove.images.kernel import Kernel
from boxgrove.images.modules import Driver
from boxgrove.images.workshop import Workshop, workshop
from vm_backends.errors import KernelMissing
from vm_backends.events import Progress
from vm_backends.spec import BootFiles

RECIPE = "1"
"""Raised when the ramdisk is laid out differently, so that cached ones are made anew."""


@dataclass(frozen=True, slots=True)
class Current:
    """What `current.json` says; paths are relative to the boot folder."""

    made_from: str
    release: str
    source: str
    kernel: str
    initrd: str


class BootStore:
    """Finds or makes the boot files. `resources` holds the agent's sources."""

    def __init__(self, root: Path, resources: Path) -> None:
        self._root = root
        self._resources = resources
        self._machine = platform.machine()

    def current(self) -> Current | None:
        try:
            data = json.loads((self._root / "current.json").read_text())
            return Current(**{field: str(data[field]) for field in Current.__slots__})
        except (OSError, ValueError, KeyError, TypeError):
            return None

    async def provide(
        self, progress: Callable[[Progress], None], *, refresh: bool = False
    ) -> BootFiles:
        """The boot files; with `refresh` a newer kernel package is taken if it can be had."""
        if not refresh and (ready := self.ready()) is not None:
            return ready
        async with workshop(self._root, "boot") as place:
            # Somebody else may have made them while we waited for the lock.
            if not refresh and (ready := self.ready()) is not None:
                return ready
            return await self._make(place, progress, refresh)

    def ready(self) -> BootFiles | None:
        current = self.current()
        if current is None or current.made_from != self._made_from(current.source):
            return None
        files = BootFiles(self._root / current.kernel, self._root / current.initrd)
        return files if files.kernel.is_file() and files.initrd.is_file() else None

    def _made_from(self, source: str) -> str:
        """All a ramdisk depends on. A user's kernel counts; a package stays until refreshed."""
        if os.environ.get("BOXGROVE_KERNEL"):
            files = kernel.given()
            assert files is not None
            source = kernel.given_mark(files)
        elif source.startswith("given:"):
            source = "the user's kernel is no longer asked for"
        return f"{RECIPE} {agent.fingerprint(self._resources, self._machine)} {source}"

    async def _make(
        self, place: Workshop, progress: Callable[[Progress], None], refresh: bool
    ) -> BootFiles:
        binary = await agent.provide(
            self._resources, self._machine, self._root / "agents", place, progress
        )
        folder = await self._kernel(place, progress, refresh)
        about = json.loads((folder / "kernel.json").read_text())
        initrd = await asyncio.to_thread(self._ramdisk, binary, folder, about, place)
        current = Current(
            made_from=self._made_from(about["source"]),
            release=about["release"],
            source=about["source"],
            kernel=str((folder / "vmlinuz").relative_to(self._root)),
            initrd=str(initrd.relative_to(self._root)),
        )
        fields = {field: getattr(current, field) for field in Current.__slots__}
        (place.folder / "current.json").write_text(json.dumps(fields, indent=1))
        place.publish("current.json", self._root / "current.json")
        return BootFiles(folder / "vmlinuz", initrd)

    async def _kernel(
        self, place: Workshop, progress: Callable[[Progress], None], refresh: bool
    ) -> Path:
        """The folder of the kernel to use: the user's, the one at hand, a package, the host's."""
        if (files := kernel.given()) is not None:
            return await asyncio.to_thread(self._keep, await kernel.from_user(files), place)
        cached = self._cached()
        if cached is not None and not refresh:
            return cached
        wanted = await kernel.candidate(place)
        if cached is not None and (wanted is None or cached.name.startswith(wanted.release + "-")):
            return cached
        found = None
        try:
            if wanted is not None:
                found = await kernel.from_package(wanted, place, progress)
        except KernelMissing:
            # Offline with a kernel at hand is no reason to stop.
            if cached is not None:
                return cached
            if (found := await kernel.from_host()) is None:
                raise
        if found is None and (found := await kernel.from_host()) is None:
            raise kernel.none_found()
        return await asyncio.to_thread(self._keep, found, place)

    def _cached(self) -> Path | None:
        """The newest kernel that came from a package or the host, with all its files."""
        found: list[tuple[float, Path]] = []
        for path in self._root.glob("kernels/*/kernel.json"):
            with suppress(OSError, ValueError, KeyError):
                about = json.loads(path.read_text())
                if not about["source"].startswith("given:") and _complete(path.parent, about):
                    found.append((path.stat().st_mtime, path.parent))
        return max(found)[1] if found else None

    def _keep(self, found: Kernel, place: Workshop) -> Path:
        folder = place.folder / "keep"
        (folder / "drivers").mkdir(parents=True)
        digest = hashlib.sha256(found.image.read_bytes())
        shutil.copyfile(found.image, folder / "vmlinuz")
        for driver in found.drivers:
            digest.update(driver.name.encode() + driver.data)
            (folder / "drivers" / f"{driver.name}.ko").write_bytes(driver.data)
        about: dict[str, object] = {
            "release": found.release,
            "source": found.source,
            "drivers": [driver.name for driver in found.drivers],
        }
        digest.update(found.source.encode())
        (folder / "kernel.json").write_text(json.dumps(about, indent=1))
        for path in (*folder.glob("*.json"), *folder.glob("drivers/*"), folder / "vmlinuz"):
            path.chmod(0o444)
        target = self._root / "kernels" / f"{found.release}-{digest.hexdigest()[:12]}"
        if target.exists() and not _complete(target, about):
            shutil.rmtree(target)
        place.publish("keep", target)
        return target

    def _ramdisk(
        self, binary: Path, folder: Path, about: dict[str, object], place: Workshop
    ) -> Path:
        names = about["drivers"]
        assert isinstance(names, list)
        drivers = [Driver(n, (folder / "drivers" / f"{n}.ko").read_bytes()) for n in names]
        data = ramdisk(binary.read_bytes(), drivers)
        target = self._root / "initrds" / f"{hashlib.sha256(data).hexdigest()[:20]}.img"
        if not target.is_file():
            (place.folder / "initrd").write_bytes(data)
            (place.folder / "initrd").chmod(0o444)
            place.publish("initrd", target)
        return target


def _complete(folder: Path, about: dict[str, object]) -> bool:
    names = about["drivers"]
    assert isinstance(names, list)
    files = ["vmlinuz", *(f"drivers/{name}.ko" for name in names)]
    return all((folder / name).is_file() for name in files)
