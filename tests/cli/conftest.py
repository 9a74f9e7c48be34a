"""The command line on the fake backend: real processes, real keepers, pretend machines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.homes import Home, a_home


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
