"""What `--json` promises."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import pytest

from boxgrove.core.model import Box, BoxStatus, ListedBox, new_id, to_json, trashed_to_json
from vm_backends.state import MachineState

MakeBox = Callable[..., Box]


def test_json_has_exactly_the_promised_keys(make_box: MakeBox) -> None:
    box = make_box("try", created=1_700_000_000.9)
    status = BoxStatus(MachineState.RUNNING, accelerator="tcg", uptime_s=12.5, pid=7)
    assert json.loads(json.dumps(to_json(ListedBox(box, status)))) == {
        "name": "try",
        "id": box.id,
        "state": "running",
        "why": "",
        "backend": "fake",
        "accelerator": "tcg",
        "image": "starter",
        "cpus": 1,
        "memory_mib": 512,
        "disk_bytes": 10 * 1024**3,
        "disk_used_bytes": None,
        "created": "2023-11-14T22:13:20Z",
        "uptime_s": 12.5,
    }


@pytest.mark.parametrize("state", [MachineState.STOPPED, MachineState.CRASHED])
def test_what_does_not_run_has_no_uptime(make_box: MakeBox, state: MachineState) -> None:
    told = to_json(ListedBox(make_box(), BoxStatus(state, why="it was killed", uptime_s=3.0)))
    assert told["uptime_s"] is None
    assert told["why"] == "it was killed"


def test_the_trash_says_when(make_box: MakeBox) -> None:
    told = trashed_to_json(make_box("old", trashed=1_700_000_060.0))
    assert told["trashed"] == "2023-11-14T22:14:20Z"


def test_a_box_is_a_value(make_box: MakeBox) -> None:
    box = make_box()
    with pytest.raises(dataclasses.FrozenInstanceError):
        box.name = "other"  # type: ignore[misc]  # the point of the test
    assert box == dataclasses.replace(box)
    assert len({new_id() for _ in range(100)}) == 100
