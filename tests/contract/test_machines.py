"""Every driver that this host has, against every promise of the contract."""

from __future__ import annotations

import pytest

from vm_backends.conformance import CHECKS, Bench, Check, DoesNotApply, run_all

DRIVERS = [
    "fake_bench",
    pytest.param("qemu_bench", marks=pytest.mark.vm),
]


@pytest.fixture(params=DRIVERS)
def bench(request: pytest.FixtureRequest) -> Bench:
    made: Bench = request.getfixturevalue(request.param)
    return made


@pytest.mark.parametrize("check", CHECKS, ids=[check.name for check in CHECKS])
async def test_driver_keeps_its_promise(check: Check, bench: Bench) -> None:
    try:
        async with bench:
            await check.run(bench)
    except DoesNotApply as reason:
        pytest.skip(str(reason))


async def test_the_whole_suite_can_be_run_without_pytest(fake_bench: Bench) -> None:
    async with fake_bench:
        outcomes = await run_all(fake_bench)
    assert [outcome.check for outcome in outcomes] == list(CHECKS)
    assert not [(o.check.name, o.failure) for o in outcomes if not o.ok]
    skipped = {outcome.check.name: outcome.skipped for outcome in outcomes if outcome.skipped}
    assert skipped["taken_up_again"] == "a fake machine lives inside its keeper"
