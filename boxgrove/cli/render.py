"""Tables and JSON: coloured on a terminal, plain in a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

STATE_STYLES = {
    "running": "green",
    "paused": "yellow",
    "crashed": "bold red",
    "stopped": "dim",
}


def print_json(data: object) -> None:
    sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def print_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, state_column: int | None = None
) -> None:
    """Aligned columns; the last one is free to be long."""
    if sys.stdout.isatty():
        _coloured(headers, rows, state_column)
    else:
        _plain(headers, rows)


def _plain(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    lines = [list(headers), *[list(row) for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def _coloured(
    headers: Sequence[str], rows: Sequence[Sequence[str]], state_column: int | None
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for header in headers:
        table.add_column(header, overflow="fold")
    for row in rows:
        cells = [Text(cell) for cell in row]
        if state_column is not None:
            cells[state_column].stylize(STATE_STYLES.get(row[state_column], ""))
        table.add_row(*cells)
    Console().print(table)


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """One `key  value` line each."""
    width = max(len(key) for key, _ in facts)
    for key, value in facts:
        sys.stdout.write(f"{key.ljust(width)}  {value}\n")
