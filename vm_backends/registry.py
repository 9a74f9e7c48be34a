"""Name to driver, imported on first use, so that listing costs nothing."""

from __future__ import annotations

import importlib

from vm_backends.contract import Backend
from vm_backends.errors import Unsupported

_DRIVERS = {
    "qemu": "vm_backends.qemu.backend:QemuBackend",
    "fake": "vm_backends.fake.backend:FakeBackend",
}


def names() -> list[str]:
    return sorted(_DRIVERS)


def backend(name: str) -> Backend:
    """The driver of that name; it may still say that this host lacks what it needs."""
    try:
        module, _, attribute = _DRIVERS[name].partition(":")
    except KeyError:
        raise Unsupported(
            f"there is no engine called {name!r}", hint=f"Known: {', '.join(names())}."
        ) from None
    made: Backend = getattr(importlib.import_module(module), attribute)()
    return made
