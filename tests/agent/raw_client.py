"""A small blocking host for one agent process, so that tests see every byte and every frame."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from vm_backends.agent.frames import PADDING, Frame, FrameReader, encode, sync_record
from vm_backends.agent.protocol import (
    ENDS,
    WINDOW,
    Hello,
    Kind,
    Packer,
    Type,
    Unpacker,
    open_payload,
)

DEADLINE_S = 30.0


@dataclass
class Outcome:
    """Everything a channel said until its end."""

    end: Frame
    opened: bytes | None = None
    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)
    eof: bool = False
    gaps: list[int] = field(default_factory=list)

    @property
    def status(self) -> int:
        assert self.end.type == Type.EXIT, self.end
        return Unpacker(self.end.payload).i32()

    @property
    def message(self) -> str:
        take = Unpacker(self.end.payload)
        take.i32()
        return take.text()

    @property
    def errno(self) -> int:
        assert self.end.type == Type.REFUSED, self.end
        return Unpacker(self.end.payload).i32()

    @property
    def reply(self) -> Unpacker:
        assert self.end.type == Type.REPLY, self.end
        return Unpacker(self.end.payload)


class RawClient:
    """Starts an agent on a socket pair and talks to it, one blocking step at a time."""

    def __init__(self, binary: Path) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(DEADLINE_S)
        with theirs:
            self.process = subprocess.Popen(
                [binary, "--fd", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        self._reader = FrameReader()
        self._waiting: list[Frame] = []
        self._channel = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()
        try:
            _, complaints = self.process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise
        assert self.process.returncode == 0, complaints.decode()

    # The stream

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, type_: int, channel: int, payload: bytes = b"") -> None:
        self.socket.sendall(encode(type_, channel, payload))

    def sync(self, padding: bytes = PADDING) -> Hello:
        """Start a new conversation and return the greeting."""
        nonce = os.urandom(16)
        self._reader = FrameReader(nonce)
        self._waiting.clear()
        self.send_bytes(padding + sync_record(nonce))
        hello = self.next()
        assert (hello.type, hello.channel) == (Type.HELLO, 0)
        return Hello.unpack(hello.payload)

    def next(self, wanted: Callable[[Frame], bool] = lambda frame: True) -> Frame:
        """The next frame that is wanted; others wait for their turn."""
        for i, frame in enumerate(self._waiting):
            if wanted(frame):
                return self._waiting.pop(i)
        until = time.monotonic() + DEADLINE_S
        while time.monotonic() < until:
            data = self.socket.recv(1 << 18)
            assert data, "the agent closed the stream"
            found = None
            for frame in self._reader.feed(data):
                if found is None and wanted(frame):
                    found = frame
                else:
                    self._waiting.append(frame)
            if found:
                return found
        raise TimeoutError("no such frame came")

    def of(self, channel: int) -> Frame:
        return self.next(lambda frame: frame.channel == channel)

    def silent(self, channel: int) -> bool:
        """Nothing for a channel comes before the answer to a PING that is asked now."""
        self.ping(b"is it quiet?")
        return all(frame.channel != channel for frame in self._waiting)

    # Requests

    def open(self, kind: Kind, arguments: bytes = b"", window: int = WINDOW) -> int:
        self._channel += 1
        self.send(Type.OPEN, self._channel, open_payload(kind, arguments, window))
        return self._channel

    def ask(self, kind: Kind, arguments: bytes = b"") -> Outcome:
        return self.finish(self.open(kind, arguments))

    def ping(self, data: bytes) -> None:
        assert self.ask(Kind.PING, data).end == Frame(Type.REPLY, self._channel, data)

    def finish(self, channel: int) -> Outcome:
        """Read a channel to its end, giving credit for everything that comes."""
        outcome = Outcome(Frame(0, channel, b""))
        while (frame := self.of(channel)).type not in ENDS:
            if frame.type == Type.OPENED:
                outcome.opened = frame.payload
            elif frame.type in (Type.DATA, Type.DATA2):
                (outcome.out if frame.type == Type.DATA else outcome.err).extend(frame.payload)
                self.credit(channel, len(frame.payload))
            elif frame.type == Type.EOF:
                outcome.eof = True
            elif frame.type == Type.GAP:
                outcome.gaps.append(Unpacker(frame.payload).u64())
        outcome.end = frame
        return outcome

    def credit(self, channel: int, amount: int) -> None:
        self.send(Type.CREDIT, channel, Packer().u32(amount).done())

    def signal(self, channel: int, number: int) -> None:
        self.send(Type.SIGNAL, channel, Packer().u32(number).done())

    def exec_open(
        self,
        *argv: str,
        stdin: bool = False,
        user: str = "",
        cwd: str = "",
        env: Sequence[str] = (),
        window: int = WINDOW,
    ) -> int:
        packed = Packer().u8(0 if stdin else 1).text(user).text(cwd).texts(list(env))
        return self.open(Kind.EXEC, packed.texts(list(argv)).done(), window)

    def exec(self, *argv: str, user: str = "", cwd: str = "", env: Sequence[str] = ()) -> Outcome:
        return self.finish(self.exec_open(*argv, user=user, cwd=cwd, env=env))

    def session(
        self,
        name: str,
        *argv: str,
        flags: int = 1,
        user: str = "",
        columns: int = 80,
        rows: int = 24,
        window: int = WINDOW,
    ) -> int:
        packed = Packer().u8(flags).text(name).text(user).text("").texts([]).texts(list(argv))
        return self.open(Kind.SESSION, packed.u16(columns).u16(rows).done(), window)

    def attached(self, channel: int) -> tuple[bool, int, int, str]:
        """created, pid, replay, name of a session that was opened."""
        frame = self.of(channel)
        assert frame.type == Type.OPENED, frame
        take = Unpacker(frame.payload)
        assert take.u32() > 0
        answer = (bool(take.u8()), take.u32(), take.u32(), take.text())
        take.end()
        return answer

    def read_until(self, channel: int, text: bytes) -> bytes:
        """Output of a channel up to and with `text`."""
        seen = b""
        while text not in seen:
            frame = self.of(channel)
            assert frame.type == Type.DATA, (frame, seen[-500:])
            seen += frame.payload
            self.credit(channel, len(frame.payload))
        return seen
