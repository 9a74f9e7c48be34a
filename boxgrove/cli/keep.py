"""`rename`, `rm`, `trash`: what happens to a box besides running."""

from __future__ import annotations

import time

import click

from boxgrove.cli.context import Grove, box_argument, complete_box, with_grove
from boxgrove.cli.main import tell
from boxgrove.cli.render import print_json, print_table
from boxgrove.core import sizes
from boxgrove.core.model import trashed_to_json
from boxgrove.core.trash import KEEP_S
from vm_backends.errors import Fault


@click.command("rename")
@box_argument
@click.argument("new_name", metavar="NEW")
@with_grove
async def rename_command(grove: Grove, *, name: str, new_name: str) -> None:
    """Give a box another name.

    \b
    Example:
      boxgrove rename a assistant
    """
    box = await grove.get(name)
    old = box.name
    await box.rename(new_name)
    click.echo(f"{old} is now {box.name}")


@click.command("rm")
@click.argument("names", metavar="NAME…", nargs=-1, required=True, shell_complete=complete_box)
@click.option("-f", "--force", is_flag=True, help="Stop it first if it runs.")
@with_grove
async def rm_command(grove: Grove, *, names: tuple[str, ...], force: bool) -> int:
    """Put boxes into the trash; they stay there for seven days.

    \b
    Examples:
      boxgrove rm a
      boxgrove rm --force a b
      boxgrove trash --restore a
    """
    worst = 0
    for name in names:
        try:
            box = await grove.get(name)
            await box.trash(stop=force)
        except Fault as fault:
            worst = tell(fault)
            continue
        click.echo(f"{box.name} is in the trash. Undo: boxgrove trash --restore {box.name}")
    return worst


@click.command("trash")
@click.option("--restore", metavar="NAME", help="Bring a box back.")
@click.option("--empty", is_flag=True, help="Remove everything in it for good.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@with_grove
async def trash_command(
    grove: Grove, *, restore: str | None, empty: bool, yes: bool, as_json: bool
) -> None:
    """Look into the trash, bring a box back, or empty it.

    \b
    Examples:
      boxgrove trash
      boxgrove trash --restore a
      boxgrove trash --empty
    """
    if restore:
        box = await grove.restore(restore)
        click.echo(f"{box.name} is back, stopped")
        return
    boxes = (await grove.service.inventory()).trash
    if empty:
        if boxes and not yes:
            click.confirm(f"Remove {len(boxes)} box(es) for good?", abort=True)
        click.echo(f"{len(await grove.service.empty_trash())} removed")
    elif as_json:
        print_json([trashed_to_json(box) for box in boxes])
    elif not boxes:
        click.echo("The trash is empty.")
    else:
        now = time.time()
        rows = [
            (box.name, box.id[:8], box.image, sizes.show_age(box.trashed + KEEP_S - now))
            for box in boxes
            if box.trashed is not None
        ]
        print_table(("NAME", "ID", "IMAGE", "GONE IN"), rows)
