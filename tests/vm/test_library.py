"""The library as the README shows it, and its face for scripts."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from boxgrove import blocking
from tests.helpers.homes import ROOT, Home
from vm_backends.errors import GuestRefused, TimedOut
from vm_backends.state import MachineState

pytestmark = pytest.mark.vm


def test_the_example_of_the_readme(home: Home) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", example], env=home.environ, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"Linux try \S+ .* GNU/Linux\n\n", done.stdout)
    assert home.state("try") == "running", "boxes outlive the program that made them"
    home.ok("rm", "--force", "try")


def test_a_script_without_an_event_loop(home: Home, tmp_path: object) -> None:
    steps: list[str] = []
    with blocking.open_grove(home.path) as grove:
        box = grove.create(
            "script", image="starter", memory="256M", progress=lambda step: steps.append(step.step)
        )
        try:
            assert "Booting" in steps
            assert box.exec("cat", input="hello").stdout == "hello"
            assert box.exec("sh", "-c", "echo no >&2; exit 3").status == 3
            with pytest.raises(GuestRefused, match="No such file"):
                box.exec("not-a-command")
            with pytest.raises(TimedOut):
                box.exec("sleep", "60", timeout_s=0.5)
            box.pause()
            assert box.status().state is MachineState.PAUSED
            box.resume()
            assert box.metrics().processes > 0
            assert [one.name for one in grove.boxes() if one.name == "script"] == ["script"]
            assert box.stop()
        finally:
            box.trash(stop=True)
        assert grove.restore("script").id == box.id
        box.trash()
