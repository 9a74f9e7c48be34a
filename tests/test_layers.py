"""The architecture, checked: imports point down, no Qt outside app/, a keeper stays lean."""

from __future__ import annotations

import subprocess
import sys


def test_import_contracts_hold() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _modules_after(statement: str) -> set[str]:
    words = [sys.executable, "-c", f"{statement}; import sys; print(*sys.modules)"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_a_keeper_loads_nothing_it_does_not_need() -> None:
    loaded = _modules_after("import vm_backends.keeper.__main__, vm_backends.qemu.backend")
    assert not loaded & {"PySide6", "qasync", "pydantic", "rich", "click", "boxgrove", "sqlite3"}


def test_listing_loads_no_event_loop() -> None:
    loaded = _modules_after("import boxgrove.cli.main, boxgrove.cli.listing")
    assert not loaded & {"asyncio", "rich", "pydantic", "subprocess", "boxgrove.grove"}
