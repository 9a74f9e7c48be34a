"""The library without an event loop, for scripts and notebooks.

with boxgrove.blocking.open_grove() as grove:
    box = grove.create("try", image="starter")
    print(box.exec("uname", "-a").stdout)
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from boxgrove import grove as plain
from boxgrove.core.model import BoxStatus
from boxgrove.images import Image
from vm_backends.agent.client import ExecResult, Metrics
from vm_backends.agent.pty import SessionInfo

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], T]
OnProgress = plain.OnProgress


class Box:
    """`boxgrove.Box`, each verb to its end before it returns."""

    def __init__(self, runner: asyncio.Runner, box: plain.Box) -> None:
        self._runner = runner
        self._box = box

    def __repr__(self) -> str:
        return repr(self._box)

    @property
    def id(self) -> str:
        return self._box.id

    @property
    def name(self) -> str:
        return self._box.name

    def status(self) -> BoxStatus:
        return self._runner.run(self._box.status())

    def start(self, progress: OnProgress | None = None) -> None:
        self._runner.run(self._box.start(progress))

    def stop(self, deadline_s: float = 20.0) -> bool:
        return self._runner.run(self._box.stop(deadline_s))

    def kill(self) -> None:
        self._runner.run(self._box.kill())

    def pause(self) -> None:
        self._runner.run(self._box.pause())

    def resume(self) -> None:
        self._runner.run(self._box.resume())

    def exec(
        self,
        *argv: str,
        input: bytes | str | None = None,
        user: str | None = None,
        cwd: str = "",
        env: dict[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> ExecResult:
        """Run a command to its end; its output is in the result."""
        return self._runner.run(
            self._box.exec(*argv, input=input, user=user, cwd=cwd, env=env, timeout_s=timeout_s)
        )

    def sessions(self) -> list[SessionInfo]:
        return self._runner.run(self._box.sessions())

    def copy_in(self, source: str | os.PathLike[str], target: str) -> list[str]:
        return self._runner.run(self._box.copy_in(source, target))

    def copy_out(self, source: str, target: str | os.PathLike[str]) -> list[str]:
        return self._runner.run(self._box.copy_out(source, target))

    def metrics(self) -> Metrics:
        return self._runner.run(self._box.metrics())

    def rename(self, name: str) -> None:
        self._runner.run(self._box.rename(name))

    def trash(self, *, stop: bool = False) -> None:
        self._runner.run(self._box.trash(stop=stop))


class Grove:
    """`boxgrove.Grove` for scripts."""

    def __init__(self, runner: asyncio.Runner, grove: plain.Grove) -> None:
        self._runner = runner
        self._grove = grove

    def create(
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
        made = self._grove.create(
            name, image=image, cpus=cpus, memory=memory, disk=disk, user=user, start=start,
            progress=progress,
        )  # fmt: skip
        return Box(self._runner, self._runner.run(made))

    def get(self, name_or_id: str) -> Box:
        return Box(self._runner, self._runner.run(self._grove.get(name_or_id)))

    def boxes(self) -> list[Box]:
        return [Box(self._runner, box) for box in self._runner.run(self._grove.boxes())]

    def restore(self, name_or_id: str) -> Box:
        return Box(self._runner, self._runner.run(self._grove.restore(name_or_id)))

    def images(self) -> list[Image]:
        return self._runner.run(self._grove.images())

    def build_image(self, name: str, progress: OnProgress | None = None) -> Image:
        return self._runner.run(self._grove.build_image(name, progress))


@contextmanager
def open_grove(
    home: str | os.PathLike[str] | None = None, *, backend: str | None = None
) -> Iterator[Grove]:
    """Open a grove; boxes that run go on running after the block."""
    with asyncio.Runner() as runner:
        opened = plain.open_grove(home, backend=backend)
        grove = runner.run(opened.__aenter__())
        try:
            yield Grove(runner, grove)
        finally:
            runner.run(opened.__aexit__(None, None, None))
