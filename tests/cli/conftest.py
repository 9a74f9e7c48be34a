"""The command line on the fake backend: real processes, real keepers, pretend machines."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

import pytest

from tests.helpers.homes import ROOT, Home, a_home


@pytest.fixture(scope="module")
def shared() -> Iterator[Home]:
    """A home that the tests of a module share; each uses names of its own."""
    with a_home(BOXGROVE_BACKEND="fake") as made:
        yield made


@pytest.fixture
def fresh() -> Iterator[Home]:
    """A home for one test alone."""
    with a_home(BOXGROVE_BACKEND="fake") as made:
        yield made


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]  # pluggy types the yield as None
    if not report.failed or not isinstance(item, pytest.Function):
        return
    target = ROOT / "results" / re.sub(r"[^\w.-]+", "_", item.name)
    shutil.rmtree(target, ignore_errors=True)
    for value in item.funcargs.values():
        if isinstance(value, Home):
            value.keep_evidence(target)
