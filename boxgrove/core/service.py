"""BoxService: every verb the product has, for the command line, the library and the desktop.

It joins the store (which boxes there are), the images (what they stand on) and the keepers (what
runs). It is stateless between calls: any number of processes may have one over the same home.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from boxgrove.core import names, trash
from boxgrove.core.box_folder import new_box_folder
from boxgrove.core.durable import fsync_tree, write_atomic
from boxgrove.core.errors import BoxBusy, NameTaken
from boxgrove.core.inventory import status_of, take_inventory
from boxgrove.core.model import Box, Inventory, ListedBox, new_id
from boxgrove.core.paths import Paths
from boxgrove.core.store import Store
from boxgrove.images import Image, ImageStore
from vm_backends import registry
from vm_backends.contract import Backend, Engine
from vm_backends.errors import BadSpec, DiskDamaged, Fault, WrongState
from vm_backends.events import Progress
from vm_backends.keeper import record
from vm_backends.keeper.client import KeptMachine
from vm_backends.spec import GIB, BootFiles, MachineSpec
from vm_backends.state import MachineState

OnProgress = Callable[[Progress], None]
STOP_DEADLINE_S = 20.0


@dataclass(frozen=True, slots=True)
class NewBox:
    """What somebody asks for; the defaults suit an agent's first computer."""

    name: str
    image: str = "debian"
    cpus: int = 0
    """0: two where the host has four or more, else one."""
    memory_mib: int = 1024
    disk_bytes: int = 10 * GIB
    user: str = ""


def _silent(progress: Progress) -> None:
    """Nobody watches."""


class BoxService:
    def __init__(
        self, paths: Paths, store: Store, images: ImageStore, *, backend: str = "qemu"
    ) -> None:
        self.paths = paths
        self.store = store
        self.images = images
        self._backend_name = backend

    @property
    def backend(self) -> Backend:
        return registry.backend(self._backend_name)

    # Looking

    async def inventory(self) -> Inventory:
        return await asyncio.to_thread(take_inventory, self.paths, self.store)

    async def look(self, name_or_id: str) -> ListedBox:
        box = await asyncio.to_thread(self.store.get, name_or_id)
        return ListedBox(box, await asyncio.to_thread(status_of, self.paths, box))

    def machine(self, box: Box) -> KeptMachine:
        """The box's machine as a client sees it; nothing is started or connected yet."""
        return KeptMachine(self.paths.box(box.id), self.paths.box_run(box.id))

    # Making

    async def create(self, new: NewBox, progress: OnProgress = _silent) -> Box:
        """Make a box, stopped. Whole or not at all, whenever it is interrupted."""
        name = names.checked(new.name)
        await asyncio.to_thread(self._refuse_taken, name)
        box = Box(
            id=new_id(), name=name, image=new.image, image_digest="",
            backend=self._backend_name, cpus=new.cpus or _default_cpus(),
            memory_mib=new.memory_mib, disk_bytes=new.disk_bytes, user=new.user,
        )  # fmt: skip
        self._check(box)
        await registry.backend(box.backend).require()
        image = await self.images.ensure(new.image, progress)
        boot = await self.images.boot_files(progress)
        engine = await self._choose(boot, progress)
        progress(Progress("Making the box"))
        return await self._make(_on_image(box, image), image, boot, engine)

    async def _make(self, box: Box, image: Image, boot: BootFiles, engine: Engine) -> Box:
        spec = _spec(box, image.disk, boot, engine)
        with new_box_folder(self.paths, self.store, box.id) as folder:
            await registry.backend(box.backend).create(spec, folder)
            write_atomic(folder / record.SPEC, spec.to_json().encode())
            await asyncio.to_thread(fsync_tree, folder)
            return await asyncio.to_thread(self.store.add_box, box)

    def _refuse_taken(self, name: str) -> None:
        """Fail before an image is built for nothing; `add_box` has the last word."""
        if self.store.refusal:
            raise self.store.refusal
        taken = {box.name for box in self.store.boxes()}
        if name in taken:
            raise NameTaken(
                f'there is a box "{name}" already',
                hint=f"Take another name, for example: {names.suggest(name, taken)}",
            )

    def _check(self, box: Box) -> None:
        nowhere = BootFiles(Path(), Path())
        spec = _spec(box, Path(), nowhere, Engine("auto", ""))
        for problem in registry.backend(box.backend).check(spec):
            raise BadSpec(problem.message, hint=problem.hint)

    async def _choose(self, boot: BootFiles, progress: OnProgress) -> Engine:
        async def tell_if_slow() -> None:
            await asyncio.sleep(0.3)  # a kept verdict is there at once and worth no word
            progress(Progress("Trying the accelerator"))

        telling = asyncio.create_task(tell_if_slow())
        try:
            return await self.backend.choose(boot, self.paths.cache)
        finally:
            telling.cancel()

    # Running

    async def start(self, box: Box, progress: OnProgress = _silent) -> None:
        """Boot it, or do nothing if it runs; returns once its guest answers."""
        machine = self.machine(box)
        told = machine.status()
        if not told.state.alive:
            await self._prepare_start(box, progress)
        progress(Progress("Booting"))
        await machine.start()

    async def _prepare_start(self, box: Box, progress: OnProgress) -> None:
        """Write down what to boot: the newest agent and kernel, the image, the accelerator."""
        image = self.images.find(box.image_digest)
        if image is None:
            raise DiskDamaged(
                f'the image of box "{box.name}" is gone ({box.image}, {box.image_digest[:12]})',
                hint=f"`boxgrove image build {box.image}` makes it again if nothing in it changed.",
            )
        boot = await self.images.boot_files(progress)
        engine = await self._choose(boot, progress)
        spec = _spec(box, image.disk, boot, engine)
        path = self.paths.box(box.id) / record.SPEC
        await asyncio.to_thread(write_atomic, path, spec.to_json().encode())

    async def ensure_running(self, box: Box, progress: OnProgress = _silent) -> KeptMachine:
        """The machine, running: a stopped or crashed box is started, a paused one is refused."""
        machine = self.machine(box)
        told = machine.status()
        if told.state is MachineState.PAUSED:
            why = f" ({told.why})" if told.why else ""
            raise WrongState(
                f'the box "{box.name}" is paused{why}',
                hint=f"`boxgrove resume {box.name}` lets it go on.",
            )
        if told.state is not MachineState.RUNNING:
            await self.start(box, progress)
        return machine

    async def stop(self, box: Box, deadline_s: float = STOP_DEADLINE_S) -> bool:
        """Cleanly, by force after the deadline; True if it was clean."""
        return await self.machine(box).stop(deadline_s)

    async def kill(self, box: Box) -> None:
        await self.machine(box).kill()

    async def pause(self, box: Box) -> None:
        await self.machine(box).pause()

    async def resume(self, box: Box) -> None:
        await self.machine(box).resume()

    # Keeping

    async def rename(self, box: Box, new_name: str) -> Box:
        return await asyncio.to_thread(self.store.rename, box.id, new_name)

    async def trash(self, box: Box, *, stop: bool = False) -> Box:
        """Into the trash, for seven days. A box that runs is refused, or stopped if asked."""
        if self.machine(box).status().state.alive:
            if not stop:
                raise BoxBusy(
                    f'the box "{box.name}" is running',
                    hint="Stop it first, or add --force.",
                )
            await self._end(box)
        return await asyncio.to_thread(self.store.set_trashed, box.id)

    async def _end(self, box: Box) -> None:
        try:
            await self.stop(box)
        except Fault:
            if self.machine(box).status().state.alive:
                await self.kill(box)

    async def restore(self, name_or_id: str) -> Box:
        box = await asyncio.to_thread(lambda: self.store.get(name_or_id, trashed=True))
        return await asyncio.to_thread(self.store.restore, box.id)

    async def empty_trash(self) -> list[Box]:
        return await asyncio.to_thread(trash.empty, self.paths, self.store)

    async def discard(self, box: Box) -> None:
        """Remove one box of the trash for good."""
        await asyncio.to_thread(trash.empty, self.paths, self.store, [box])

    async def remove_image(self, name: str) -> None:
        used = [box.image_digest for box in [*self.store.boxes(), *self.store.trashed()]]
        await asyncio.to_thread(self.images.remove, name, used)


def _on_image(box: Box, image: Image) -> Box:
    size = max(box.disk_bytes, image.virtual_bytes)
    return replace(box, image_digest=image.digest, disk_bytes=size, created=time.time())


def _spec(box: Box, base: Path, boot: BootFiles, engine: Engine) -> MachineSpec:
    return MachineSpec(
        name=names.hostname(box.name),
        backend=box.backend,
        boot=boot,
        base=base,
        cpus=box.cpus,
        memory_mib=box.memory_mib,
        disk_bytes=box.disk_bytes,
        accelerator=engine.accelerator,
    )


def _default_cpus() -> int:
    return 2 if (os.cpu_count() or 1) >= 4 else 1
