"""`shell`: a terminal in a box. Sessions live in the guest and can be left and come back to."""

from __future__ import annotations

import time

import click

from boxgrove.cli.context import Grove, box_argument, with_grove
from boxgrove.cli.progress import meter
from boxgrove.cli.render import print_json, print_table
from boxgrove.core import sizes


@click.command("shell")
@box_argument
@click.argument("command", metavar="[-- CMD…]", nargs=-1, type=click.UNPROCESSED)
@click.option("--session", metavar="SESSION", help="Attach to this session, or make it.")
@click.option("-u", "--user", metavar="USER", help="As this user of the box.")
@click.option("--list", "list_them", is_flag=True, help="Show the sessions of the box.")
@click.option("--json", "as_json", is_flag=True, help="With --list: for programs.")
@with_grove
async def shell_command(
    grove: Grove, *, name: str, command: tuple[str, ...], session: str | None, user: str | None,
    list_them: bool, as_json: bool,
) -> int:  # fmt: skip
    """Open a terminal in a box. Ctrl-] leaves it; what runs in it goes on.

    \b
    Examples:
      boxgrove shell a
      boxgrove shell a --session work       come back to it any time
      boxgrove shell a --list
    """
    box = await grove.get(name)
    if list_them:
        await _list(grove, name, as_json=as_json)
        return 0
    with meter(quiet_in_pipe=True) as show:
        await grove.service.ensure_running(box.row, show)
    from boxgrove.cli.terminal import open_shell

    return await open_shell(box, session or "", command, user=user, create=True)


async def _list(grove: Grove, name: str, *, as_json: bool) -> None:
    sessions = await (await grove.get(name)).sessions()
    if as_json:
        keys = ("name", "pid", "columns", "rows", "viewers", "created", "command")
        print_json([{key: getattr(one, key) for key in keys} for one in sessions])
        return
    now = time.time()
    rows = [
        (one.name, one.command, f"{one.columns}x{one.rows}", str(one.viewers),
         sizes.show_age(max(0.0, now - one.created)))
        for one in sessions
    ]  # fmt: skip
    print_table(("SESSION", "COMMAND", "SIZE", "VIEWERS", "AGE"), rows)
