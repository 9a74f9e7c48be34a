"""How tests run: async ones on plain asyncio, and nothing may be left running afterwards."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.homes import ROOT, Home

ASYNC_DEADLINE_S = 300.0
BUILD_S = 1200
CACHED = "BOXGROVE_TEST_IMAGES"
"""A home whose images, kernel and verdicts are taken over: for developers; CI builds for real."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run `async def` tests; each has a deadline, so that nothing can hang a whole run."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    async def within_deadline() -> None:
        async with asyncio.timeout(ASYNC_DEADLINE_S):
            await pyfuncitem.obj(**arguments)

    asyncio.run(within_deadline())
    return True


@pytest.fixture(scope="session", autouse=True)
def nothing_left_running() -> Iterator[None]:
    """No keeper and no QEMU of this run may outlive it."""
    yield
    left = list(_processes_of_this_run())
    assert not left, f"left running: {left}"


def _processes_of_this_run() -> Iterator[str]:
    """Processes that carry this session's mark in their environment."""
    mark = f"BOXGROVE_TEST_RUN={os.getpid()}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")[:200]
                if int(folder.name) != os.getpid():
                    yield f"{folder.name}: {command.decode(errors='replace')}"
        except OSError:
            continue


def pytest_configure(config: pytest.Config) -> None:
    os.environ["BOXGROVE_TEST_RUN"] = str(os.getpid())


@pytest.fixture(scope="session")
def home() -> Iterator[Home]:
    made = Home.make()
    if cached := os.environ.get(CACHED):
        made.take_images_of(Path(cached))
    before = {name: os.environ.get(name) for name in made.variables()}
    os.environ.update(made.variables())
    try:
        made.ok("image", "build", "starter", timeout=BUILD_S)
        yield made
    finally:
        try:
            made.remove()
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Iterator[None]:
    """A test that fails leaves its boxes' logs in results/."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]  # pluggy types the yield as None
    if not report.failed or not isinstance(item, pytest.Function):
        return
    target = ROOT / "results" / re.sub(r"[^\w.-]+", "_", item.name)
    shutil.rmtree(target, ignore_errors=True)
    for value in item.funcargs.values():
        if isinstance(value, Home):
            value.keep_evidence(target)
