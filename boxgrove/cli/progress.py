"""Progress on the terminal: a live line with a bar where it can be one, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vm_backends.events import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


class Meter:
    """Shows what is going on. On a terminal it is a bar that goes away when all is done."""

    def __init__(self, *, quiet_in_pipe: bool = False) -> None:
        self._live = sys.stderr.isatty()
        self._quiet = quiet_in_pipe and not self._live
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._step = ""

    def __call__(self, progress: Progress) -> None:
        if self._live:
            self._show(progress)
        elif not self._quiet and progress.step != self._step:
            sys.stderr.write(f"{progress.step}\n")
            sys.stderr.flush()
        self._step = progress.step

    def bytes(self, step: str, total: int | None = None) -> ByteMeter:
        return ByteMeter(self, step, total or 0)

    def close(self) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None

    def _show(self, progress: Progress) -> None:
        if self._bar is None:
            self._bar = _make_bar()
            self._task = self._bar.add_task(progress.step, total=None)
            self._bar.start()
        assert self._task is not None
        if progress.step != self._step:
            self._bar.reset(self._task, description=progress.step, total=None)
        self._bar.update(
            self._task,
            description=progress.step,
            total=progress.total or None,
            completed=progress.done,
        )


class ByteMeter:
    """Counts bytes into a Meter."""

    def __init__(self, meter: Meter, step: str, total: int) -> None:
        self._meter = meter
        self._step = step
        self._total = total
        self._done = 0
        self._shown = 0

    def __call__(self, count: int) -> None:
        self._done += count
        if self._done - self._shown >= 1024 * 1024:
            self._shown = self._done
            total = max(self._total, self._done) if self._total else 0
            self._meter(Progress(self._step, self._done, total))


def _make_bar() -> Bar:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        SpinnerColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.progress import Progress as Bar

    return Bar(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )


@contextmanager
def meter(*, quiet_in_pipe: bool = False) -> Iterator[Meter]:
    """A meter for one command; whatever happens, the line is cleared."""
    made = Meter(quiet_in_pipe=quiet_in_pipe)
    try:
        yield made
    finally:
        made.close()
