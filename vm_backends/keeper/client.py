"""A machine that really lives in a keeper: start one, talk to it, open channels through it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from vm_backends import errors
from vm_backends.agent.client import GuestClient
from vm_backends.agent.frames import Frame, FrameReader, encode
from vm_backends.agent.pipe import Pipe
from vm_backends.agent.protocol import Kind, Type, open_payload
from vm_backends.errors import EngineFailed, KeeperUnreachable, WrongState
from vm_backends.keeper import record
from vm_backends.keeper.protocol import Talk, message, parse
from vm_backends.keeper.record import MachineRecord, keeper_alive, read_record
from vm_backends.state import MachineState, Verb, allowed, why_not

CONNECT_S = 15.0


class KeptMachine:
    """One machine's folder, seen by a client. Cheap to make; connects when asked."""

    def __init__(self, home: Path, run: Path) -> None:
        self.home = home
        self.run = run
        self.guest = GuestClient(self.open)

    def status(self) -> MachineRecord:
        return read_record(self.home)

    # Verbs

    async def start(self) -> None:
        """Bring it up, or find that it is up: returns once the guest answers."""
        state = self.status().state
        if state is MachineState.PAUSED:
            message_, hint = why_not(Verb.START, state)
            raise WrongState(message_, hint=hint)
        connection = await self._reach(start=True)
        try:
            await connection.request("ready")
        except KeeperUnreachable:
            self._raise_recorded()
            raise
        finally:
            connection.close()

    async def pause(self) -> None:
        await self._do(Verb.PAUSE)

    async def resume(self) -> None:
        await self._do(Verb.RESUME)

    async def stop(self, deadline_s: float = 20.0) -> bool:
        """True if the guest went down by itself, False if it was forced."""
        answer = await self._do(Verb.STOP, deadline_s=deadline_s)
        return bool(answer.get("result"))

    async def kill(self) -> None:
        await self._do(Verb.KILL)

    async def watch(self) -> AsyncIterator[dict[str, Any]]:
        """State changes from now on, until the keeper goes."""
        connection = await self._reach(start=False)
        try:
            yield await connection.request("watch")
            with suppress(KeeperUnreachable):
                while True:
                    frame = await connection.receive()
                    if frame.type == Talk.EVENT:
                        yield parse(frame.payload)
        finally:
            connection.close()

    async def open(self, kind: Kind, arguments: bytes = b"") -> KeeperChannel:
        """A channel to the guest's agent, on a connection of its own."""
        self._refuse_unless(Verb.USE)
        connection = await self._reach(start=False)
        await connection.send(encode(Type.OPEN, 0, open_payload(kind, arguments)))
        return KeeperChannel(connection)

    async def _do(self, verb: Verb, **arguments: object) -> dict[str, Any]:
        self._refuse_unless(verb)
        connection = await self._reach(start=False)
        try:
            return await connection.request(verb.value, **arguments)
        finally:
            connection.close()

    def _refuse_unless(self, verb: Verb) -> None:
        told = self.status()
        passing = told.kept and told.state.alive
        if not allowed(verb, told.state) and not passing:
            words, hint = why_not(verb, told.state)
            if told.state is MachineState.CRASHED and told.why:
                words = f"{words} ({told.why})"
            raise WrongState(words, hint=hint)

    # Reaching the keeper

    async def _reach(self, *, start: bool) -> Connection:
        """A connection to the keeper, which is started if there is none."""
        deadline = asyncio.get_running_loop().time() + CONNECT_S
        while asyncio.get_running_loop().time() < deadline:
            with suppress(OSError):
                return await Connection.make(self.run / record.SOCKET)
            if keeper_alive(self.home):
                # Another client started it a moment ago, or it is just leaving: neither of the
                # two can be waited for from here.
                await asyncio.sleep(0.02)
            else:
                await self._spawn(start=start)
        raise KeeperUnreachable("the box's keeper is there but does not answer")

    async def _spawn(self, *, start: bool) -> None:
        """Start a keeper and wait until it listens; a no if it failed before that."""
        ready, tell = os.pipe()
        words = [sys.executable, "-m", "vm_backends.keeper", str(self.home), str(self.run)]
        words += ["--ready-fd", str(tell), *(["--start"] if start else [])]
        log = os.open(self.home / record.LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            child = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[tell],
                start_new_session=True,
                env=os.environ | {"MALLOC_ARENA_MAX": "1"},
            )
        except OSError as error:
            os.close(ready)
            raise EngineFailed(f"the keeper could not be started: {error.strerror}") from error
        finally:
            os.close(tell)
            os.close(log)
        try:
            told = await _one_byte(ready, CONNECT_S)
        finally:
            os.close(ready)
            # It has made itself independent by now, or failed: no child of ours stays behind.
            await asyncio.to_thread(child.wait)
        if told:
            return
        self._raise_recorded()
        raise EngineFailed(
            "the box's keeper ended before it was ready",
            hint=f"Its log is {self.home / record.LOG}.",
        )

    def _raise_recorded(self) -> None:
        """The reason that a keeper left behind when it could not start its machine."""
        told = self.status()
        if told.code:
            raise errors.from_wire({"code": told.code, "message": told.why, "hint": told.hint})


class Connection:
    """One socket to a keeper, in frames."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._incoming = FrameReader()
        self._frames: list[Frame] = []

    @staticmethod
    async def make(path: Path) -> Connection:
        return Connection(await Pipe.connect(path))

    async def send(self, data: bytes) -> None:
        try:
            self._pipe.write(data)
            await self._pipe.drained()
        except OSError as error:
            raise KeeperUnreachable("the box's keeper went away") from error

    async def receive(self) -> Frame:
        while not self._frames:
            try:
                data = await self._pipe.read()
            except OSError as error:
                raise KeeperUnreachable("the box's keeper went away") from error
            if not data:
                raise KeeperUnreachable("the box's keeper went away")
            self._frames = list(self._incoming.feed(data))
            self._frames.reverse()
        frame = self._frames.pop()
        if frame.type == Talk.FAULT:
            raise errors.from_wire(parse(frame.payload))
        return frame

    async def request(self, op: str, **arguments: object) -> dict[str, Any]:
        await self.send(message(Talk.REQUEST, {"op": op, **arguments}))
        while (frame := await self.receive()).type != Talk.RESPONSE:
            pass
        return parse(frame.payload)

    def close(self) -> None:
        self._pipe.close()


class KeeperChannel:
    """A channel of the guest's agent that passes through its keeper."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def send(self, type_: int, payload: bytes = b"") -> None:
        await self._connection.send(encode(type_, 0, payload))

    async def receive(self) -> Frame:
        return await self._connection.receive()

    async def aclose(self) -> None:
        self._connection.close()


async def _one_byte(descriptor: int, deadline_s: float) -> bytes:
    """Wait for a byte on a pipe; nothing if it was closed or none came in time."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await asyncio.wait_for(readable.wait(), deadline_s)
        return os.read(descriptor, 1)
    except TimeoutError:
        return b""
    finally:
        loop.remove_reader(descriptor)
