"""Every failure a person can act on, as one tree with a stable code each.

    Fault                          code, message, hint
    ├── WrongState                 wrong-state         not allowed in this state
    ├── Unsupported                unsupported         this engine cannot do it, and why
    ├── BadSpec                    bad-spec            a machine that cannot be made as asked
    ├── EngineMissing              engine-missing      no QEMU (or other engine) here
    │   └── EngineTooOld           engine-too-old
    ├── EngineFailed               engine-failed       the engine refused or died
    ├── KernelMissing              kernel-missing      kernel or initial ramdisk not readable
    ├── DiskDamaged                disk-damaged        a disk file is missing or not a disk
    ├── NoSpace                    no-space            the host's disk is full
    ├── TimedOut                   timed-out           a deadline that the caller set passed
    ├── GuestUnreachable           guest-unreachable   the agent did not answer in time
    │   └── GuestGarbage           guest-garbage       it answered with bytes that mean nothing
    ├── GuestRefused               guest-refused       the guest's system said no (errno)
    └── KeeperUnreachable          keeper-unreachable  the box's keeper does not answer

``boxgrove.core.errors`` adds the ones about boxes. Bugs are not Faults: they rise as they are.
"""

from __future__ import annotations

from typing import Any, ClassVar


class Fault(Exception):
    """A failure with a code for programs, a sentence for people and, often, a way out."""

    code: ClassVar[str] = "fault"
    hint: str = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if hint is not None:
            self.hint = hint

    def __str__(self) -> str:
        return self.message

    def to_wire(self) -> dict[str, Any]:
        """What crosses the keeper's control socket."""
        return {"code": self.code, "message": self.message, "hint": self.hint}


class WrongState(Fault):
    code = "wrong-state"


class Unsupported(Fault):
    code = "unsupported"


class BadSpec(Fault):
    code = "bad-spec"


class EngineMissing(Fault):
    code = "engine-missing"


class EngineTooOld(EngineMissing):
    code = "engine-too-old"


class EngineFailed(Fault):
    code = "engine-failed"


class KernelMissing(Fault):
    code = "kernel-missing"
    hint = "Run `boxgrove image build starter` to fetch the kernel again."


class DiskDamaged(Fault):
    code = "disk-damaged"


class NoSpace(Fault):
    code = "no-space"
    hint = "Free some space on that disk and try again; nothing was lost."


class TimedOut(Fault):
    code = "timed-out"


class GuestUnreachable(Fault):
    code = "guest-unreachable"
    hint = "`boxgrove logs NAME` shows what the guest printed; `boxgrove stop NAME` ends it."


class GuestGarbage(GuestUnreachable):
    code = "guest-garbage"


class GuestRefused(Fault):
    """The guest's own system refused: ``errno`` says how (Linux numbers)."""

    code = "guest-refused"

    def __init__(self, message: str, *, errno: int = 0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.errno = errno

    def to_wire(self) -> dict[str, Any]:
        return super().to_wire() | {"errno": self.errno}


class KeeperUnreachable(Fault):
    code = "keeper-unreachable"
    hint = "Try again: the next command starts a new keeper, which takes up the running box."


def fault_classes(root: type[Fault] = Fault) -> dict[str, type[Fault]]:
    """Every class of the tree by its code, those of other packages included once imported."""
    found = {root.code: root}
    for child in root.__subclasses__():
        found |= fault_classes(child)
    return found


def from_wire(data: dict[str, Any]) -> Fault:
    """The Fault that `Fault.to_wire` described; an unknown code becomes a plain Fault."""
    kind = fault_classes().get(str(data.get("code")), Fault)
    message, hint = str(data.get("message", "")), str(data.get("hint", ""))
    if issubclass(kind, GuestRefused):
        return kind(message, errno=int(data.get("errno", 0)), hint=hint)
    return kind(message, hint=hint)
