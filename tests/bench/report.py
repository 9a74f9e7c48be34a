"""One row a promise: our figure, the baseline's, the ratio, what was promised."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    ours: str
    baseline: str
    ratio: float | None
    promise: str
    kept: bool


def at_most(what: str, ours: float, baseline: float, limit: float, unit: str, name: str) -> Row:
    """Lower is better: ours may be `limit` times the baseline."""
    ratio = ours / baseline
    return Row(
        what, f"{ours:.3g} {unit}", f"{baseline:.3g} {unit} ({name})", ratio,
        f"≤ {limit:g}×", ratio <= limit,
    )  # fmt: skip


def at_least(what: str, ours: float, baseline: float, limit: float, unit: str, name: str) -> Row:
    """Higher is better: ours must be `limit` times the baseline or more."""
    ratio = ours / baseline
    return Row(
        what, f"{ours:.3g} {unit}", f"{baseline:.3g} {unit} ({name})", ratio,
        f"≥ {limit:g}×", ratio >= limit,
    )  # fmt: skip


def below(what: str, ours: float, limit: float, unit: str) -> Row:
    return Row(what, f"{ours:.3g} {unit}", "", None, f"≤ {limit:g} {unit}", ours <= limit)


def p50(values: Sequence[float]) -> float:
    return statistics.median(values)


def p95(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * 0.95)]


def print_rows(rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="make bench", title_justify="left")
    for header in ("what", "ours", "baseline", "ratio", "promise", ""):
        table.add_column(header)
    for row in rows:
        mark = "[green]kept[/]" if row.kept else "[red]MISSED[/]"
        ratio = f"{row.ratio:.2f}×" if row.ratio is not None else ""
        table.add_row(row.what, row.ours, row.baseline, ratio, row.promise, mark)
    Console(width=120).print(table)
