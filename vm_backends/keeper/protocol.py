"""What a keeper and its clients say to one another, in the agent's own frames.

A connection carries requests (JSON, answered one by one) or, after an OPEN, one channel of the
guest's agent: its frames pass through unread, with the channel number 0.
"""

from __future__ import annotations

import json
from enum import IntEnum
from typing import Any

from vm_backends.agent.frames import encode


class Talk(IntEnum):
    """Frame types above the agent's own."""

    REQUEST = 64
    RESPONSE = 65
    FAULT = 66
    EVENT = 67


def message(type_: Talk, data: dict[str, Any]) -> bytes:
    return encode(type_, 0, json.dumps(data).encode())


def parse(payload: bytes) -> dict[str, Any]:
    data = json.loads(payload)
    if not isinstance(data, dict):
        raise ValueError("not an object")
    return data
