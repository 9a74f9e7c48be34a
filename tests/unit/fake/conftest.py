"""A bench of fake machines for the tests of this folder."""

from __future__ import annotations

from tests.helpers.benches import fake_bench

__all__ = ["fake_bench"]
