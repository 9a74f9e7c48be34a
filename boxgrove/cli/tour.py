"""`tour`: everything a box does, once, for real, with the time each step took."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from boxgrove.cli.context import Box, Grove, with_grove
from boxgrove.cli.progress import meter
from boxgrove.core import names
from vm_backends.events import Progress

T = TypeVar("T")
NOTE = "/root/note.txt"
WORDS = "I was here before you turned me off."


class _Guide:
    """Prints one line a step: what is done, what came of it, how long it took."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    async def step(
        self, title: str, work: Callable[[Callable[[Progress], None]], Awaitable[T]],
        outcome: Callable[[T], str] = lambda result: "",
    ) -> T:  # fmt: skip
        began = time.monotonic()
        with meter(quiet_in_pipe=True) as show:
            show(Progress(title))
            result = await work(show)
        took = time.monotonic() - began
        said = outcome(result)
        click.echo(f"{click.style('✓', fg='green')} {title:<38} {took:7.2f} s  {said}".rstrip())
        return result


@click.command("tour")
@click.option("--image", default="starter", show_default=True, help="What the box starts from.")
@with_grove
async def tour_command(grove: Grove, *, image: str) -> None:
    """See a real box from birth to trash, on this computer.

    \b
    Example:
      boxgrove tour
    """
    guide = _Guide()
    service = grove.service
    await guide.step(f"Image {image}", lambda show: service.images.ensure(image, show),
                     lambda found: f"{found.digest[:12]}")  # fmt: skip
    boot = await guide.step("Kernel and guest agent", service.images.boot_files)
    await guide.step("Accelerator", lambda show: service.backend.choose(boot, service.paths.cache),
                     lambda engine: f"{engine.accelerator}: {engine.why}")  # fmt: skip
    taken = {box.name for box in await grove.boxes()}
    name = names.suggest("tour", taken)
    box = await guide.step(
        f"Make a box called {name}",
        lambda show: grove.create(name, image=image, memory="256M", start=False, progress=show),
    )
    try:
        await _walk(guide, box)
    finally:
        if (await box.status()).state.alive:
            await box.kill()
        await box.trash()
        await service.discard(box.row)
    click.echo(f"{click.style('✓', fg='green')} Cleaned up. "
               f"All of it took {time.monotonic() - guide.began:.1f} s.")  # fmt: skip
    click.echo("\nYour own: boxgrove create NAME, then boxgrove shell NAME. More: boxgrove --help")


async def _walk(guide: _Guide, box: Box) -> None:
    async def write(show: object) -> None:
        done = await box.exec("sh", "-c", f"cat > {NOTE}", input=WORDS)
        assert done.ok, done.stderr

    await guide.step("Boot it", box.start)
    await guide.step("Run `uname -a` inside", lambda show: box.exec("uname", "-a"),
                     lambda done: done.stdout.strip())  # fmt: skip
    await guide.step("Write a file", write, lambda _: NOTE)
    await guide.step("Pause", lambda show: box.pause())
    await guide.step("Resume", lambda show: box.resume())
    await guide.step("Stop, cleanly", lambda show: box.stop(),
                     lambda clean: "" if clean else "by force")  # fmt: skip
    await guide.step("Start it again", box.start)
    await guide.step("Read the file", lambda show: box.exec("cat", NOTE),
                     lambda done: f"“{done.stdout.strip()}”")  # fmt: skip
    await guide.step("Stop", lambda show: box.stop())
