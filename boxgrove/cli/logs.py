"""`logs`: what a box's guest printed on its console, and what its keeper has to say."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from boxgrove.cli.context import box_argument
from boxgrove.core.paths import Paths
from boxgrove.core.store import Store

SOURCES = {"serial": "serial.log", "keeper": "keeper.log", "engine": "qemu.log"}


@click.command("logs")
@box_argument
@click.option("--serial", "only", flag_value="serial", help="Only the guest's console.")
@click.option("--keeper", "only", flag_value="keeper", help="Only the keeper's log.")
@click.option("--engine", "only", flag_value="engine", help="Only what QEMU itself said.")
@click.option("-n", "lines", default=200, show_default=True, help="The last so many lines of each.")
def logs_command(name: str, only: str | None, lines: int) -> None:
    """Show the logs of a box: console, keeper, engine.

    \b
    Examples:
      boxgrove logs a
      boxgrove logs a --serial -n 50
    """
    paths = Paths.from_environment()
    with Store.open(paths) as store:
        folder = paths.box(store.get(name).id)
    for source in [only] if only else SOURCES:
        if not only:
            click.echo(click.style(f"--- {source}", bold=True))
        for line in _last_lines(folder / SOURCES[source], lines):
            click.echo(line)


def _last_lines(path: Path, count: int) -> list[str]:
    """The end of a log. On a terminal the guest's control characters are taken out."""
    text = ""
    for part in (path.with_name(path.name + ".old"), path):
        try:
            text += part.read_bytes()[-1024 * 1024 :].decode("utf-8", "replace")
        except FileNotFoundError:
            continue
    kept = text.splitlines()[-count:] if count > 0 else []
    if not sys.stdout.isatty():
        return kept
    return ["".join(c for c in line if c.isprintable() or c == "\t") for line in kept]
