"""A million frames, right and wrong, through the agent's own code under the sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.agent.conftest import GUEST, SANITIZERS, compile_agent

FRAMES = 1_000_000
DEADLINE_S = 240


def test_a_million_frames_without_complaint(tmp_path: Path, agent_sources: list[Path]) -> None:
    sources = [*agent_sources, GUEST / "fuzz" / "fuzz.c"]
    fuzz = compile_agent(tmp_path / "fuzz", sources, "-DBOXGROVE_FUZZ", *SANITIZERS)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = subprocess.run(
        [fuzz, "20", str(FRAMES), scratch], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == f"{FRAMES} frames, no complaint\n"
    assert {path.name for path in tmp_path.iterdir()} == {"fuzz", "scratch"}
