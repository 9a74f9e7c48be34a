"""`doctor`: what this computer offers, what is missing, and the one step that mends it."""

from __future__ import annotations

import click

from boxgrove.cli.context import Grove, with_grove
from boxgrove.cli.progress import meter
from boxgrove.cli.render import print_json
from boxgrove.core.checkup import Finding, Verdict, examine

MARKS = {Verdict.GOOD: ("ok", "green"), Verdict.POOR: ("!!", "yellow"), Verdict.BAD: ("NO", "red")}


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@with_grove
async def doctor_command(grove: Grove, *, as_json: bool) -> int:
    """Check this computer: engine, accelerator, confinement, disk, versions.

    \b
    Examples:
      boxgrove doctor
      boxgrove doctor --json
    """
    with meter(quiet_in_pipe=True) as show:
        findings = await examine(grove.service, show)
    healthy = all(finding.verdict is not Verdict.BAD for finding in findings)
    if as_json:
        print_json({"ok": healthy, "findings": [finding.to_json() for finding in findings]})
    else:
        for finding in findings:
            _print(finding)
    return 0 if healthy else 1


def _print(finding: Finding) -> None:
    mark, colour = MARKS[finding.verdict]
    click.echo(f"{click.style(mark, fg=colour, bold=True)}  {finding.name:<12} {finding.detail}")
    if finding.fix:
        click.echo(f"    {'':<12} fix: {finding.fix}")
