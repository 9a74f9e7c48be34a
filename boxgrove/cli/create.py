"""`create`: a new box, running unless you say otherwise."""

from __future__ import annotations

import time

import click

from boxgrove.cli.context import Grove, with_grove
from boxgrove.cli.progress import meter


@click.command("create")
@click.argument("name", metavar="NAME")
@click.option("--image", default="debian", show_default=True, help="What it starts from.")
@click.option("--cpus", type=click.IntRange(min=1), help="Virtual processors.")
@click.option("--memory", default="1G", show_default=True, metavar="SIZE", help="For example 512M.")
@click.option("--disk", default="10G", show_default=True, metavar="SIZE", help="It grows as used.")
@click.option("--user", default="", metavar="USER", help="Who commands run as; root if not given.")
@click.option("--no-start", is_flag=True, help="Only make it.")
@with_grove
async def create_command(
    grove: Grove, *, name: str, image: str, cpus: int | None, memory: str, disk: str,
    user: str, no_start: bool,
) -> None:  # fmt: skip
    """Make a box and start it.

    \b
    Examples:
      boxgrove create a
      boxgrove create try --image starter --memory 256M
      boxgrove create claw --cpus 2 --memory 2G --disk 30G --user claw
    """
    began = time.monotonic()
    with meter() as show:
        box = await grove.create(
            name, image=image, cpus=cpus or 0, memory=memory, disk=disk, user=user,
            start=not no_start, progress=show,
        )  # fmt: skip
    status = await box.status()
    took = time.monotonic() - began
    how = f", {status.accelerator}" if status.accelerator else ""
    click.echo(f"{box.name} is {status.state.value} ({image}{how}, {took:.1f} s)")
