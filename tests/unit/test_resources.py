"""Where our data is found, in a checkout and in a wheel."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from boxgrove.resources import resource


def test_resources_of_the_checkout() -> None:
    assert resource("guest/PROTOCOL.md").read_text().startswith("#")
    with pytest.raises(FileNotFoundError, match="lacks resources/guest/nothing"):
        resource("guest/nothing")
    for bad in ("../pyproject.toml", "/etc/passwd"):
        with pytest.raises(ValueError, match="not a name"):
            resource(bad)


def test_resources_of_an_installed_wheel(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    (tmp_path / "boxgrove").mkdir()
    for module in ("__init__.py", "resources.py", "version.py"):
        shutil.copy(root / "boxgrove" / module, tmp_path / "boxgrove" / module)
    (tmp_path / "boxgrove" / "_resources" / "guest").mkdir(parents=True)
    (tmp_path / "boxgrove" / "_resources" / "guest" / "x").write_text("ours")
    (tmp_path / "resources" / "guest").mkdir(parents=True)
    (tmp_path / "resources" / "guest" / "x").write_text("somebody else's")
    code = "from boxgrove.resources import resource; print(resource('guest/x').read_text())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "ours\n"
