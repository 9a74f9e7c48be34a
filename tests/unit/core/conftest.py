"""What the tests of the core share: homes in tmp_path, boxes by name, and real processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from boxgrove.core.model import Box, new_id
from boxgrove.core.paths import Paths
from boxgrove.core.store import Store

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 60

MakeBox = Callable[..., Box]
Start = Callable[..., "subprocess.Popen[str]"]


def _make_box(name: str = "try", **changes: object) -> Box:
    values: dict[str, object] = {
        "id": new_id(),
        "name": name,
        "image": "starter",
        "image_digest": "sha256:" + "a" * 64,
        "backend": "fake",
        "cpus": 1,
        "memory_mib": 512,
        "disk_bytes": 10 * 1024**3,
        "created": 1_700_000_000.0,
    }
    return Box(**(values | changes))  # type: ignore[arg-type]  # the values are typed where used


@pytest.fixture
def make_box() -> MakeBox:
    return _make_box


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = Paths(tmp_path / "home", tmp_path / "run" / "abcdef")
    made.prepare()
    return made


@pytest.fixture
def store(paths: Paths) -> Iterator[Store]:
    with Store(paths.index) as opened:
        yield opened


_PRELUDE = """
import os, sys, time
from pathlib import Path
from boxgrove.core.model import Box, new_id
from boxgrove.core.paths import Paths
from boxgrove.core.store import Store

home = Path(sys.argv[1])
paths = Paths(home, home / "run")

def make_box(name, **changes):
    return Box(**(dict(
        id=new_id(), name=name, image="starter", image_digest="d", backend="fake",
        cpus=1, memory_mib=512, disk_bytes=1, created=time.time(),
    ) | changes))
"""


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python in another process; `paths`, `home` and `make_box` are there for it."""
    started: list[subprocess.Popen[str]] = []

    def run(code: str, home: Path, *before: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*before, sys.executable, "-c", _PRELUDE + textwrap.dedent(code), str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait(DEADLINE_S)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def own_mounts() -> tuple[str, ...]:
    """The command to run something with mounts of its own, which end with it."""
    program = shutil.which("unshare")
    if program is None or sys.platform != "linux":
        pytest.skip("needs Linux with the program unshare")
    command = (program, "--mount") if os.getuid() == 0 else (program, "--map-root-user", "--mount")
    probe = [*command, "sh", "-c", "mount -t tmpfs none /mnt"]
    if subprocess.run(probe, capture_output=True, timeout=DEADLINE_S, check=False).returncode:
        pytest.skip("this host does not let us mount anything")
    return command


@pytest.fixture
def finish() -> Callable[..., str]:
    """Wait for a process that must end well; what it printed."""

    def wait(process: subprocess.Popen[str], text: str | None = None) -> str:
        out, err = process.communicate(text, timeout=DEADLINE_S)
        assert process.returncode == 0, err
        return out

    return wait
