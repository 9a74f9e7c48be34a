"""The bench of fake machines, for the contract and for the fake's own tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from vm_backends.conformance import Bench
from vm_backends.fake.backend import PRETEND_BOOT, FakeBackend
from vm_backends.spec import MIB, MachineSpec


@pytest.fixture
def fake_bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.delenv("BOXGROVE_FAKE", raising=False)
    # Not tmp_path: sockets have short paths, and its names grow with those of the tests.
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        spec = MachineSpec("check", "fake", PRETEND_BOOT, Path("none"), disk_bytes=64 * MIB)
        yield Bench(FakeBackend(), spec, Path(folder))
