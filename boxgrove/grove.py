"""The library's face: a grove of boxes, each with the verbs you would expect.

Everything is a coroutine; `boxgrove.blocking` has the same without an event loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from boxgrove.core import sizes
from boxgrove.core.errors import shown
from boxgrove.core.model import Box as BoxRow
from boxgrove.core.model import BoxStatus
from boxgrove.core.paths import Paths
from boxgrove.core.service import BoxService, NewBox
from boxgrove.core.store import Store
from boxgrove.core.trash import collect_leftovers
from boxgrove.images import Image, ImageStore
from boxgrove.images.pretend import PretendImages
from vm_backends.agent.archive import CopyFailed
from vm_backends.agent.client import ExecResult, GuestCommand, Metrics, Output
from vm_backends.agent.pty import GuestTerminal, SessionInfo
from vm_backends.errors import GuestRefused
from vm_backends.events import Progress
from vm_backends.spec import MIB
from vm_backends.state import MachineState

OnProgress = Callable[[Progress], None]


class Box:
    """One box: a handle that may be kept, passed around and dropped; the box does not mind."""

    def __init__(self, service: BoxService, row: BoxRow) -> None:
        self._service = service
        self._row = row

    def __repr__(self) -> str:
        return f"<Box {self.name} {self.id[:8]}>"

    @property
    def id(self) -> str:
        return self._row.id

    @property
    def name(self) -> str:
        return self._row.name

    @property
    def row(self) -> BoxRow:
        """What the store knows of it: image, sizes, default user, age."""
        return self._row

    async def status(self) -> BoxStatus:
        """What is true right now: state, why, accelerator, uptime, disk."""
        return (await self._service.look(self.id)).status

    async def start(self, progress: OnProgress | None = None) -> None:
        """Boot it; returns once its guest answers. Nothing happens if it runs already."""
        await self._service.start(self._row, progress or _ignore)

    async def stop(self, deadline_s: float = 20.0) -> bool:
        """Power off cleanly, by force after the deadline; True if it was clean."""
        return await self._service.stop(self._row, deadline_s)

    async def kill(self) -> None:
        """Pull the plug."""
        await self._service.kill(self._row)

    async def pause(self) -> None:
        """Freeze it where it is."""
        await self._service.pause(self._row)

    async def resume(self) -> None:
        """Let a paused box go on."""
        await self._service.resume(self._row)

    async def exec(
        self,
        *argv: str,
        input: bytes | str | AsyncIterable[bytes] | None = None,
        user: str | None = None,
        cwd: str = "",
        env: dict[str, str] | None = None,
        timeout_s: float | None = None,
        stdout: Output | None = None,
        stderr: Output | None = None,
    ) -> ExecResult:
        """Run a command to its end; a stopped box is started for it.

        Output is collected in the result, or handed to `stdout` and `stderr` as it comes.
        """
        machine = await self._service.ensure_running(self._row)
        data = input.encode() if isinstance(input, str) else input
        return await machine.guest.exec(
            *argv, input=data, user=self._user(user), cwd=cwd, env=env, timeout_s=timeout_s,
            stdout=stdout, stderr=stderr,
        )  # fmt: skip

    async def start_command(
        self,
        *argv: str,
        user: str | None = None,
        cwd: str = "",
        env: dict[str, str] | None = None,
        stdin: bool = True,
    ) -> GuestCommand:
        """Start a command and stay in touch: write to it, signal it, pump its output."""
        machine = await self._service.ensure_running(self._row)
        return await machine.guest.start(
            *argv, user=self._user(user), cwd=cwd, env=env, stdin=stdin
        )

    async def terminal(
        self,
        session: str = "",
        *argv: str,
        columns: int = 80,
        rows: int = 24,
        user: str | None = None,
        cwd: str = "",
        env: dict[str, str] | None = None,
        create: bool = True,
        passing: bool = False,
    ) -> GuestTerminal:
        """A terminal session: made, or attached to by its name with its recent output.

        It waits for its next viewer when this one closes, unless it was made a `passing` one.
        """
        machine = await self._service.ensure_running(self._row)
        return await machine.guest.session(
            session, *argv, columns=columns, rows=rows, user=self._user(user), cwd=cwd, env=env,
            create=create, passing=passing,
        )  # fmt: skip

    async def sessions(self) -> list[SessionInfo]:
        machine = await self._service.ensure_running(self._row)
        return await machine.guest.sessions()

    async def copy_in(
        self, source: str | os.PathLike[str], target: str,
        on_bytes: Callable[[int], None] | None = None, user: str | None = None,
    ) -> list[str]:  # fmt: skip
        """Copy a file or a tree into the box, as `cp -r` would; what was skipped, and why."""
        _refuse_relative(target)
        machine = await self._service.ensure_running(self._row)
        origin = Path(source)
        found = await machine.guest.stat(target)
        if found and found.kind == "d":
            target = f"{target.rstrip('/')}/{origin.resolve().name}"
        target = target.rstrip("/") or "/"
        with _about(f"the box cannot write {shown(target, 120)}"):
            return await machine.guest.copy_in(
                origin, target, user=self._user(user), on_bytes=on_bytes
            )

    async def copy_out(
        self, source: str, target: str | os.PathLike[str],
        on_bytes: Callable[[int], None] | None = None,
    ) -> list[str]:  # fmt: skip
        """Copy a file or a tree out of the box, as `cp -r` would; what was skipped, and why."""
        _refuse_relative(source)
        machine = await self._service.ensure_running(self._row)
        goal = Path(target)
        if goal.is_dir():
            goal = goal / (source.rstrip("/").rsplit("/", 1)[-1] or "root")
        with _about(f"the box cannot read {shown(source, 120)}"):
            return await machine.guest.copy_out(source.rstrip("/") or "/", goal, on_bytes=on_bytes)

    async def metrics(self) -> Metrics:
        """Processor, memory, disk and processes, as the guest counts them."""
        return await self._service.machine(self._row).guest.metrics()

    async def rename(self, name: str) -> None:
        """Give it another name; its guest learns of it at the next start."""
        self._row = await self._service.rename(self._row, name)

    async def trash(self, *, stop: bool = False) -> None:
        """Throw it away; for seven days `Grove.restore` brings it back."""
        self._row = await self._service.trash(self._row, stop=stop)

    async def states(self) -> AsyncIterator[MachineState]:
        """Every state it enters from now on, while it runs."""
        async for event in self._service.machine(self._row).watch():
            yield MachineState(event["state"])

    def _user(self, user: str | None) -> str:
        return self._row.user if user is None else user


class Grove:
    """All boxes of one home."""

    def __init__(self, service: BoxService) -> None:
        self.service = service

    async def create(
        self,
        name: str,
        *,
        image: str = "debian",
        cpus: int = 0,
        memory: str | int = "1G",
        disk: str | int = "10G",
        user: str = "",
        start: bool = True,
        progress: OnProgress | None = None,
    ) -> Box:
        """Make a box and start it. Sizes are bytes or texts such as 512M and 1.5G."""
        new = NewBox(
            name, image, cpus, _bytes(memory) // MIB, _bytes(disk), user
        )  # fmt: skip
        box = Box(self.service, await self.service.create(new, progress or _ignore))
        if start:
            await box.start(progress)
        return box

    async def get(self, name_or_id: str) -> Box:
        """The box of that name, id, or beginning of an id."""
        return Box(self.service, (await self.service.look(name_or_id)).box)

    async def boxes(self) -> list[Box]:
        listed = (await self.service.inventory()).boxes
        return [Box(self.service, one.box) for one in listed]

    async def restore(self, name_or_id: str) -> Box:
        """Bring a box back from the trash."""
        return Box(self.service, await self.service.restore(name_or_id))

    async def images(self) -> list[Image]:
        return await asyncio.to_thread(self.service.images.list)

    async def build_image(self, name: str, progress: OnProgress | None = None) -> Image:
        return await self.service.images.build(name, progress or _ignore)


@asynccontextmanager
async def open_grove(
    home: str | os.PathLike[str] | None = None, *, backend: str | None = None
) -> AsyncIterator[Grove]:
    """Open the grove of a home (BOXGROVE_HOME or your data folder). Boxes outlive this."""
    environ = dict(os.environ)
    if home is not None:
        environ["BOXGROVE_HOME"] = os.fspath(home)
    paths = Paths.from_environment(environ)
    store = await asyncio.to_thread(Store.open, paths)
    try:
        await asyncio.to_thread(collect_leftovers, paths, store)
        chosen = backend or environ.get("BOXGROVE_BACKEND") or "qemu"
        kind = PretendImages if chosen == "fake" else ImageStore
        images = kind(paths.images, paths.boot)
        yield Grove(BoxService(paths, store, images, backend=chosen))
    finally:
        store.close()


def _refuse_relative(path: str) -> None:
    if not path.startswith("/"):
        raise CopyFailed(
            f'"{shown(path, 120)}" is not a path in a box', hint="It starts with /, as in a:/root/."
        )


@contextmanager
def _about(what: str) -> Iterator[None]:
    """The guest says only why not; people also want to know what."""
    try:
        yield
    except GuestRefused as refused:
        raise GuestRefused(f"{what}: {refused.message}", errno=refused.errno) from refused


def _bytes(size: str | int) -> int:
    return size if isinstance(size, int) else sizes.parse(size)


def _ignore(progress: Progress) -> None:
    """Nobody watches."""
