"""`cp`: files and trees, into a box and out of it."""

from __future__ import annotations

from pathlib import Path

import click

from boxgrove.cli.context import Grove, with_grove
from boxgrove.cli.progress import meter


@click.command("cp")
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@click.option("-u", "--user", metavar="USER", help="Who owns what is copied in; root if not given.")
@with_grove
async def cp_command(grove: Grove, *, source: str, target: str, user: str | None) -> int:
    """Copy files and folders; NAME:/path is in a box.

    \b
    Examples:
      boxgrove cp notes.txt a:/tmp/
      boxgrove cp src a:/home/claw/src
      boxgrove cp a:/var/log ./logs
    """
    box_of_source, source_path = _split(source)
    box_of_target, target_path = _split(target)
    if (box_of_source is None) == (box_of_target is None):
        raise click.UsageError("exactly one of SRC and DST must be in a box, as NAME:/path")
    with meter(quiet_in_pipe=True) as show:
        if box_of_target is not None:
            box = await grove.get(box_of_target)
            await grove.service.ensure_running(box.row, show)
            count = show.bytes(f"Copying into {box.name}", _bytes_of(Path(source_path)))
            skipped = await box.copy_in(source_path, target_path, count, user)
        else:
            assert box_of_source is not None
            box = await grove.get(box_of_source)
            await grove.service.ensure_running(box.row, show)
            count = show.bytes(f"Copying out of {box.name}")
            skipped = await box.copy_out(source_path, target_path, count)
    for line in skipped:
        click.echo(f"skipped {line}", err=True)
    return 1 if skipped else 0


def _split(text: str) -> tuple[str | None, str]:
    """`NAME:/path` names a box; anything with a slash before the colon is a path of ours."""
    name, colon, path = text.partition(":")
    if not colon or "/" in name or not name:
        return None, text
    return name, path


def _bytes_of(source: Path) -> int | None:
    """What a progress bar can count to; for a folder that takes longer than it is worth."""
    try:
        return source.stat().st_size if source.is_file() else None
    except OSError:
        return None
