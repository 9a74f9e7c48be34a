"""The agent, compiled for this machine: once plain, once under the sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.agent.raw_client import RawClient

GUEST = Path(__file__).parents[2] / "resources" / "guest"
WARNINGS = ("-std=gnu11", "-Wall", "-Wextra", "-Werror")
SANITIZERS = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def compile_agent(target: Path, sources: Sequence[Path], *flags: str) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "a C compiler is needed: install the package gcc"
    command = [compiler, *WARNINGS, *flags, "-o", str(target), *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="session")
def agent_sources() -> list[Path]:
    return sorted((GUEST / "agent").glob("*.c"))


@pytest.fixture(scope="session")
def plain_agent(tmp_path_factory: pytest.TempPathFactory, agent_sources: list[Path]) -> Path:
    return compile_agent(tmp_path_factory.mktemp("agent") / "plain", agent_sources, "-Os")


@pytest.fixture(scope="session")
def checked_agent(tmp_path_factory: pytest.TempPathFactory, agent_sources: list[Path]) -> Path:
    return compile_agent(tmp_path_factory.mktemp("agent") / "checked", agent_sources, *SANITIZERS)


@pytest.fixture(params=["plain", "checked"])
def client(request: pytest.FixtureRequest) -> Iterator[RawClient]:
    """A synced conversation with an agent; at its end the agent must leave without complaint."""
    with RawClient(request.getfixturevalue(f"{request.param}_agent")) as client:
        client.sync()
        yield client
