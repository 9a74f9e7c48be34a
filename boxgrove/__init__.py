"""Boxgrove: small virtual machines for agents, that keep their state for ever.

    async with boxgrove.open_grove() as grove:
        box = await grove.create("try", image="starter")
        print((await box.exec("uname", "-a")).stdout)

Scripts without an event loop use `boxgrove.blocking.open_grove()`, with the same verbs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from boxgrove.version import __version__

if TYPE_CHECKING:
    from boxgrove.core.errors import BoxError as BoxError
    from boxgrove.core.model import BoxStatus as BoxStatus
    from boxgrove.grove import Box as Box
    from boxgrove.grove import Grove as Grove
    from boxgrove.grove import open_grove as open_grove
    from vm_backends.agent.client import ExecResult as ExecResult
    from vm_backends.agent.client import Metrics as Metrics
    from vm_backends.errors import Fault as Fault
    from vm_backends.events import Progress as Progress
    from vm_backends.state import MachineState as MachineState

_HOMES = {
    "Box": "boxgrove.grove",
    "BoxError": "boxgrove.core.errors",
    "BoxStatus": "boxgrove.core.model",
    "ExecResult": "vm_backends.agent.client",
    "Fault": "vm_backends.errors",
    "Grove": "boxgrove.grove",
    "MachineState": "vm_backends.state",
    "Metrics": "vm_backends.agent.client",
    "Progress": "vm_backends.events",
    "open_grove": "boxgrove.grove",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    """Names are loaded on first use: `boxgrove ls` needs none of them."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
