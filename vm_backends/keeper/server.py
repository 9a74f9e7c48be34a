"""The keeper's inside: owns one Machine, serves its control socket. Knows no driver.

It is a router: a client's channel frames go to the guest's agent and back unread. Memory stays
bounded because nothing is sent on a channel beyond the credit that its far end gave.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from vm_backends.agent import frames
from vm_backends.agent.client import GuestClient
from vm_backends.agent.frames import Frame, FrameReader, StreamLost
from vm_backends.agent.link import AgentLink
from vm_backends.agent.pipe import Pipe
from vm_backends.agent.protocol import ENDS, Malformed, Packer, Type, Unpacker
from vm_backends.contract import Machine
from vm_backends.errors import Fault, Unsupported
from vm_backends.events import MachineEvent, StateChanged
from vm_backends.keeper import record
from vm_backends.keeper.protocol import Talk, message, parse
from vm_backends.keeper.record import MachineRecord
from vm_backends.process import ProcessMark
from vm_backends.state import MachineState

log = logging.getLogger("boxgrove.keeper")
MAX_REQUEST_WINDOW = 4 * 1024 * 1024
FAREWELL_S = 5.0


class Keeper:
    """One machine and everybody who talks to it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._started: float | None = None
        self._clients: set[Client] = set()
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._begun.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._heard = asyncio.Event()
        machine.listen(self._on_event)

    # Life

    async def begin(self, *, start: bool) -> None:
        """Boot the machine, or take note that it already runs; failures are for `ready`."""
        try:
            if not self.machine.state.alive and start:
                await self.machine.start()
            self._write()
            self._begun.set_result(None)
        except Fault as fault:
            log.warning("start failed: %s: %s", fault.code, fault.message)
            self._write(fault)
            self._begun.set_exception(fault)
            return
        except BaseException:
            self._begun.cancel()
            raise
        if self.machine.state is MachineState.RUNNING:
            await tell_the_time(self.machine)

    async def serve(self, path: Path, on_listening: Callable[[], None]) -> None:
        """Listen until the machine has ended and its clients have heard of it."""
        path.unlink(missing_ok=True)
        mask = os.umask(0o177)
        try:
            loop = asyncio.get_running_loop()
            server = await loop.create_unix_server(
                lambda: Pipe(self._connected), str(path), backlog=64
            )
        finally:
            os.umask(mask)
        on_listening()
        try:
            await asyncio.wait([self._begun])
            if self._begun.exception():
                # Whoever asked for the start may not have connected yet: they should hear why.
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._heard.wait(), FAREWELL_S)
            await self.machine.wait_ended()
            server.close()
            await self._say_goodbye()
        finally:
            server.close()
            path.unlink(missing_ok=True)
            await self.machine.aclose()

    async def _say_goodbye(self) -> None:
        """Requests under way get their answer before the keeper goes."""
        busy = [client.task for client in self._clients if client.answering]
        if busy:
            await asyncio.wait(busy, timeout=FAREWELL_S)
        for client in list(self._clients):
            client.close()

    async def _connected(self, pipe: Pipe) -> None:
        client = Client(self, pipe)
        self._clients.add(client)
        try:
            await client.run()
        finally:
            self._clients.discard(client)

    # Requests

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        verbs: dict[str, Callable[[], Awaitable[object]]] = {
            "state": self._nothing,
            "ready": self._ready,
            "pause": self.machine.pause,
            "resume": self.machine.resume,
            "stop": lambda: self.machine.stop(float(request.get("deadline_s", 20.0))),
            "kill": self.machine.kill,
        }
        verb = verbs.get(str(request.get("op")))
        if verb is None:
            raise Unsupported(
                f"this box's keeper does not know {str(request.get('op'))[:40]!r}",
                hint="Stop the box and start it again to get a keeper of this version.",
            )
        result = await verb()
        return {"state": self.machine.state.value, "why": self.machine.why, "result": result}

    async def _nothing(self) -> None:
        return None

    async def _ready(self) -> None:
        try:
            await asyncio.shield(self._begun)
        finally:
            self._heard.set()

    def link(self) -> AgentLink:
        return self.machine.link

    # Telling

    def _on_event(self, event: MachineEvent) -> None:
        if isinstance(event, StateChanged):
            log.info("state: %s %s", event.state.value, event.why)
            if event.state is MachineState.RUNNING and self._started is None:
                self._started = time.time()
            self._write()
            for client in self._clients:
                client.tell({"state": event.state.value, "why": event.why})

    def _write(self, fault: Fault | None = None) -> None:
        machine = self.machine
        mark = ProcessMark.of(machine.pid) if machine.pid else None
        state, why = machine.state, machine.why
        if fault:
            state, why = MachineState.CRASHED, fault.message
        if mark and self._started is None and state.alive:
            self._started = record.read_record(machine.home).started or time.time()
        told = MachineRecord(
            state,
            why,
            code=fault.code if fault else "",
            hint=fault.hint if fault else "",
            accelerator=machine.accelerator,
            started=self._started if state.alive else None,
            pid=machine.pid,
        )
        try:
            record.write_record(machine.home, told, mark)
        except OSError as error:
            log.warning("state not written: %s", error)


class Client:
    """One connection: requests, or one channel to the guest."""

    def __init__(self, keeper: Keeper, pipe: Pipe) -> None:
        self._keeper = keeper
        self._pipe = pipe
        self._channel: int | None = None
        self._link: AgentLink | None = None
        self._watching = False
        self.answering = False
        task = asyncio.current_task()
        assert task
        self.task = task

    async def run(self) -> None:
        incoming = FrameReader()
        try:
            while data := await self._pipe.read():
                for frame in incoming.feed(data):
                    await self._take(frame)
                if self._link:
                    await self._link.drained()
        except (StreamLost, Malformed, OSError, Fault, ValueError) as error:
            log.info("a client went: %s", error)
        finally:
            if self._channel is not None and self._link:
                self._link.abandon(self._channel)
            self._pipe.close()

    async def _take(self, frame: Frame) -> None:
        if frame.type == Talk.REQUEST:
            await self._answer(parse(frame.payload))
        elif frame.type == Type.OPEN:
            self._open(frame.payload)
        elif self._channel is not None and self._link:
            self._link.forward(self._channel, frame.type, frame.payload)

    async def _answer(self, request: dict[str, Any]) -> None:
        self.answering = True
        try:
            if request.get("op") == "watch":
                self._watching = True
                request = {"op": "state"}
            answer = message(Talk.RESPONSE, await self._keeper.answer(request))
        except Fault as fault:
            answer = message(Talk.FAULT, fault.to_wire())
        finally:
            self.answering = False
        self._pipe.write(answer)
        with suppress(OSError):
            await self._pipe.drained()

    def _open(self, payload: bytes) -> None:
        try:
            take = Unpacker(payload)
            kind, window = take.u8(), min(take.u32(), MAX_REQUEST_WINDOW)
            bounded = Packer().u8(kind).u32(window).raw(take.rest()).done()
            self._link = self._keeper.link()
            self._channel = self._link.attach(bounded, window, self._hand_back)
        except Fault as fault:
            self._hand_back(fault)

    def _hand_back(self, got: Frame | Fault) -> None:
        if isinstance(got, Fault):
            self._channel = None
            self._pipe.write(message(Talk.FAULT, got.to_wire()))
            return
        if got.type in ENDS:
            self._channel = None
        self._pipe.write(frames.encode(got.type, 0, got.payload))

    def tell(self, event: dict[str, Any]) -> None:
        if self._watching:
            self._pipe.write(message(Talk.EVENT, event))

    def close(self) -> None:
        self._pipe.close()


async def tell_the_time(machine: Machine) -> None:
    """Emulated clocks start off by up to a second; a failure here is only that."""
    with suppress(Fault):
        await GuestClient(machine.link.open).setup(clock_ns=time.time_ns())
