"""Real guests: one home for the whole run, boxes that tests share, evidence when one fails."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.helpers.homes import Home
from tests.helpers.terminals import Terminal

MAKE_S = 120
BUILD_S = 1200

MakeBox = Callable[..., str]
OpenTerminal = Callable[..., Terminal]


@pytest.fixture(scope="session")
def cli(home: Home) -> Callable[..., object]:
    return home.run


@pytest.fixture(scope="module")
def starter(home: Home, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a small box that runs, shared by the tests of a module."""
    name = re.sub(r"[^a-z]", "-", request.module.__name__.rsplit("test_", 1)[-1]) + "-box"
    home.ok("create", name, "--image", "starter", "--memory", "256M", timeout=MAKE_S)
    yield name
    home.ok("rm", "--force", name, timeout=MAKE_S)


@pytest.fixture(scope="session")
def debian(home: Home) -> Iterator[str]:
    """The name of a debian box that runs; its image is built the first time."""
    home.ok("create", "deb", "--image", "debian", "--memory", "1G", timeout=BUILD_S)
    yield "deb"
    home.ok("rm", "--force", "deb", timeout=MAKE_S)


@pytest.fixture
def make_box(home: Home) -> Iterator[MakeBox]:
    """Makes boxes that go with the test."""
    made: list[str] = []

    def make(name: str, *words: str) -> str:
        made.append(name)
        sizes = ("--image", "starter", "--memory", "256M")
        home.ok("create", name, *sizes, *words, timeout=MAKE_S)
        return name

    yield make
    for name in made:
        if home.run("show", name).returncode == 0:
            home.run("kill", name)
            home.ok("rm", "--force", name, timeout=MAKE_S)


@pytest.fixture(autouse=True)
def end_commands(home: Home) -> Iterator[None]:
    yield
    home.end_commands()


@pytest.fixture
def open_terminal(home: Home) -> Iterator[OpenTerminal]:
    """Opens commands of ours on terminals of their own, and ends them with the test."""
    opened: list[Terminal] = []

    def open_one(*words: str, columns: int = 80, rows: int = 24) -> Terminal:
        command = [sys.executable, "-m", "boxgrove", *words]
        opened.append(Terminal(command, home.environ, columns, rows))
        return opened[-1]

    yield open_one
    for terminal in opened:
        terminal.__exit__(None, None, None)
