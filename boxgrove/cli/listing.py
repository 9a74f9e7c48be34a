"""`ls` and `show`: what boxes there are. Reads the index and the folders, connects to nothing."""

from __future__ import annotations

import click

from boxgrove.cli.render import print_facts, print_json, print_table
from boxgrove.core import sizes
from boxgrove.core.inventory import status_of, take_inventory
from boxgrove.core.model import ListedBox, iso_time, to_json
from boxgrove.core.paths import Paths
from boxgrove.core.store import Store


def _complete(context: click.Context, parameter: click.Parameter, start: str) -> list[str]:
    from boxgrove.cli.context import complete_box

    return complete_box(context, parameter, start)


@click.command("ls")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def ls_command(as_json: bool) -> None:
    """List the boxes.

    \b
    Examples:
      boxgrove ls
      boxgrove ls --json | jq '.[] | select(.state == "running") | .name'
    """
    paths = Paths.from_environment()
    with Store.open(paths) as store:
        boxes = take_inventory(paths, store).boxes
    if as_json:
        print_json([to_json(listed) for listed in boxes])
    elif not boxes:
        click.echo("No boxes yet. Make one: boxgrove create NAME")
    else:
        headers = ("NAME", "STATE", "IMAGE", "CPUS", "MEMORY", "DISK", "UP", "NOTE")
        print_table(headers, [_row(listed) for listed in boxes], state_column=1)


def _row(listed: ListedBox) -> tuple[str, ...]:
    box, status = listed.box, listed.status
    used = sizes.show(status.disk_used_bytes) if status.disk_used_bytes is not None else "missing"
    up = sizes.show_age(status.uptime_s) if status.uptime_s is not None else ""
    return (
        box.name, status.state.value, box.image, str(box.cpus), sizes.show(box.memory_mib * 2**20),
        used, up, status.why,
    )  # fmt: skip


@click.command("show")
@click.argument("name", metavar="NAME", shell_complete=_complete)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def show_command(name: str, as_json: bool) -> None:
    """Show everything about one box.

    \b
    Example:
      boxgrove show a --json
    """
    paths = Paths.from_environment()
    with Store.open(paths) as store:
        box = store.get(name)
    listed = ListedBox(box, status_of(paths, box))
    if as_json:
        print_json(to_json(listed))
        return
    status = listed.status
    facts = [
        ("name", box.name),
        ("id", box.id),
        ("state", status.state.value + (f": {status.why}" if status.why else "")),
        ("engine", f"{box.backend}, {status.accelerator or 'not started yet'}"),
        ("image", f"{box.image} ({box.image_digest[:12]})"),
        ("cpus", str(box.cpus)),
        ("memory", sizes.show(box.memory_mib * 2**20)),
        ("disk", f"{sizes.show(box.disk_bytes)}, {sizes.show(status.disk_used_bytes or 0)} used"),
        ("user", box.user or "root"),
        ("created", iso_time(box.created)),
        ("up", sizes.show_age(status.uptime_s) if status.uptime_s is not None else "no"),
        ("folder", str(paths.box(box.id))),
    ]
    print_facts(facts)
