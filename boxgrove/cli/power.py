"""`start`, `stop`, `kill`, `pause`, `resume`: one verb, one or several boxes."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import click

from boxgrove.cli.context import Box, Grove, complete_box, with_grove
from boxgrove.cli.main import tell
from boxgrove.cli.progress import Meter, meter
from boxgrove.core import sizes
from vm_backends.errors import Fault
from vm_backends.events import Progress

names_argument = click.argument(
    "names", metavar="NAME…", nargs=-1, required=True, shell_complete=complete_box
)
Verb = Callable[[Box, Meter], Awaitable[str]]


async def _each(grove: Grove, names: tuple[str, ...], verb: Verb) -> int:
    """One after the other; a box that cannot does not keep the others from it."""
    worst = 0
    for name in names:
        began = time.monotonic()
        try:
            with meter(quiet_in_pipe=True) as show:
                said = await verb(await grove.get(name), show)
        except Fault as fault:
            worst = tell(fault)
            continue
        click.echo(f"{said} ({time.monotonic() - began:.2f} s)")
    return worst


@click.command("start")
@names_argument
@with_grove
async def start_command(grove: Grove, *, names: tuple[str, ...]) -> int:
    """Start boxes; returns when they answer.

    \b
    Example:
      boxgrove start a b
    """

    async def start(box: Box, show: Meter) -> str:
        if (await box.status()).state.alive:
            await box.start(show)
            return f"{box.name} was running already"
        await box.start(show)
        return f"{box.name} is running"

    return await _each(grove, names, start)


@click.command("stop")
@names_argument
@click.option(
    "--timeout", default="20s", show_default=True, help="By force if it takes longer than this."
)
@with_grove
async def stop_command(grove: Grove, *, names: tuple[str, ...], timeout: str) -> int:
    """Stop boxes: cleanly, and by force after a deadline.

    \b
    Examples:
      boxgrove stop a
      boxgrove stop a b --timeout 60s
    """
    deadline_s = sizes.parse_duration(timeout)

    async def stop(box: Box, show: Meter) -> str:
        show(Progress(f"Stopping {box.name}"))
        clean = await box.stop(deadline_s)
        return f"{box.name} is stopped" + ("" if clean else ", by force")

    return await _each(grove, names, stop)


@click.command("kill")
@names_argument
@with_grove
async def kill_command(grove: Grove, *, names: tuple[str, ...]) -> int:
    """Pull the plug, at once. Files that were not yet on disk are lost.

    \b
    Example:
      boxgrove kill a
    """

    async def kill(box: Box, show: Meter) -> str:
        await box.kill()
        return f"{box.name} is stopped, the plug was pulled"

    return await _each(grove, names, kill)


@click.command("pause")
@names_argument
@with_grove
async def pause_command(grove: Grove, *, names: tuple[str, ...]) -> int:
    """Freeze boxes where they are.

    \b
    Example:
      boxgrove pause a
    """

    async def pause(box: Box, show: Meter) -> str:
        await box.pause()
        return f"{box.name} is paused"

    return await _each(grove, names, pause)


@click.command("resume")
@names_argument
@with_grove
async def resume_command(grove: Grove, *, names: tuple[str, ...]) -> int:
    """Let paused boxes go on.

    \b
    Example:
      boxgrove resume a
    """

    async def resume(box: Box, show: Meter) -> str:
        await box.resume()
        return f"{box.name} is running"

    return await _each(grove, names, resume)
