"""What commands share: opening the grove, running a coroutine, finishing names."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import click

from boxgrove.grove import Box, Grove, open_grove

P = ParamSpec("P")
T = TypeVar("T")


def with_grove(work: Callable[..., Awaitable[T]]) -> Callable[..., T]:
    """Makes `async def command(grove, …)` an ordinary click callback.

    Ctrl-C cancels the coroutine, which leaves a consistent state, and ends with status 130.
    """

    @wraps(work)
    def callback(*args: Any, **kwargs: Any) -> T:
        async def session() -> T:
            async with open_grove() as grove:
                return await work(grove, *args, **kwargs)

        try:
            return asyncio.run(session())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None

    return callback


def complete_box(context: click.Context, parameter: click.Parameter, start: str) -> list[str]:
    """Names of boxes for the shell's completion; silence rather than an error."""
    from boxgrove.core.errors import BoxError
    from boxgrove.core.paths import Paths
    from boxgrove.core.store import Store

    try:
        with Store.open(Paths.from_environment()) as store:
            return [box.name for box in store.boxes() if box.name.startswith(start)]
    except BoxError:
        return []


box_argument = click.argument("name", metavar="NAME", shell_complete=complete_box)

__all__ = ["Box", "Grove", "box_argument", "complete_box", "with_grove"]
