"""What every Machine must pass: first what is forbidden, then that each verb has its effect.

    async with Bench(backend, spec, folder) as bench:
        for outcome in await run_all(bench):
            ...

Ours and other people's drivers run it; nothing here depends on a test framework. A check names
what it wants of a guest in commands that the smallest busybox has, and waits for events, so that
an emulated machine passes as well as a quick one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from vm_backends.conformance import talk, verbs
from vm_backends.conformance.bench import Bench, Check, DoesNotApply, NotConforming

__all__ = ["CHECKS", "Bench", "Check", "DoesNotApply", "NotConforming", "Outcome", "run_all"]

CHECKS: tuple[Check, ...] = (*verbs.CHECKS, *talk.CHECKS)


@dataclass(frozen=True, slots=True)
class Outcome:
    check: Check
    seconds: float
    failure: Exception | None = None
    skipped: str = ""

    @property
    def ok(self) -> bool:
        return self.failure is None


async def run_all(bench: Bench) -> list[Outcome]:
    """Every check in turn; a failure is an outcome, not an exception."""
    outcomes = []
    for check in CHECKS:
        began = time.monotonic()
        failure: Exception | None = None
        skipped = ""
        try:
            await check.run(bench)
        except DoesNotApply as reason:
            skipped = str(reason)
        except Exception as error:
            failure = error
        outcomes.append(Outcome(check, time.monotonic() - began, failure, skipped))
        await bench.clear()
    return outcomes
