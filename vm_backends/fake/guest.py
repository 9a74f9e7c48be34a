"""The inside of a fake machine: the guest's half of resources/guest/PROTOCOL.md, in Python."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from vm_backends.agent import frames
from vm_backends.agent.protocol import (
    VERSION,
    GuestEvent,
    Hello,
    Kind,
    Malformed,
    Packer,
    Type,
    Unpacker,
)
from vm_backends.fake import programs, shell
from vm_backends.fake.clock import GuestClock
from vm_backends.fake.faults import Agent, FakeFaults
from vm_backends.fake.filesystem import Filesystem, dump, write_atomically
from vm_backends.fake.kinds import Kinds
from vm_backends.fake.process import Tasks, World
from vm_backends.fake.stream import Conversation, GuestChannel, GuestParser, Sync
from vm_backends.fake.terminal import Session
from vm_backends.spec import MachineSpec

SAVE_EVERY_S = 3.0
MAX_CHANNELS = 256
_READ_SIZE = 128 * 1024


class FakeGuest:
    """A computer that boots, talks over a socket, and ends: cleanly, by a crash, or unplugged."""

    def __init__(
        self, spec: MachineSpec, fs: Filesystem, disk: Path, faults: FakeFaults, stop_delay_s: float
    ) -> None:
        self._spec = spec
        self._fs = fs
        self._disk = disk
        self._faults = faults
        self._stop_delay_s = stop_delay_s
        self._tasks = Tasks()
        self._writer: asyncio.StreamWriter | None = None
        self._talk: Conversation | None = None
        self._saved = fs.changes
        self._saving = asyncio.Lock()
        self._powering = False
        self.clock = GuestClock()
        fs.now = lambda: self.clock.wall_s
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Empty once it has switched itself off, else why it crashed."""
        self.on_reboot: Callable[[], None] = lambda: None
        self._boot()

    def _boot(self) -> None:
        self._epoch = os.urandom(16).hex()
        self._parser = GuestParser()
        self.world = World(
            fs=self._fs,
            clock=self.clock,
            hostname=self._spec.name,
            cpus=self._spec.cpus,
            memory_mib=self._spec.memory_mib,
            programs={**programs.PROGRAMS, **shell.PROGRAMS},
            save=self.save,
            power=self.power,
        )
        self.sessions: dict[str, Session] = {}
        self._kinds = Kinds(self.world, self.sessions, self._spec)

    async def serve(self, port: socket.socket) -> None:
        """Begin to live; returns at once."""
        reader, self._writer = await asyncio.open_connection(sock=port)
        self._tasks.spawn(self._listen(reader), "pretend guest")
        self._tasks.spawn(self._keep_saving(), "pretend guest's disk")
        if self._faults.crash_after_s is not None:
            self._tasks.spawn(self._crash(self._faults.crash_after_s), "pretend crash")
        if self._faults.reboot_after_s is not None:
            self._tasks.spawn(self._reboot_after(self._faults.reboot_after_s), "pretend reboot")

    async def unplug(self) -> None:
        """Gone, this instant; what was not saved is lost. May be called twice."""
        if not self.ended.done():
            self.ended.set_result("the plug was pulled")
        self._forget()
        await self._tasks.aclose()
        await self.world.tasks.aclose()
        async with self._saving:
            # A write that was under way reaches the disk, as in a real computer.
            if self._writer is not None:
                self._writer.close()
                with suppress(OSError):
                    await self._writer.wait_closed()

    async def save(self) -> None:
        """Everything that was written so far is on the host's disk when this returns."""
        await asyncio.shield(self._tasks.spawn(self._save(), "pretend guest saves"))

    async def _save(self) -> None:
        async with self._saving:
            if self._saved == self._fs.changes:
                return
            changes, data = self._fs.changes, dump(self._fs)
            writing = asyncio.ensure_future(asyncio.to_thread(write_atomically, self._disk, data))
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                await writing
                raise
            self._saved = changes

    def power(self, reboot: bool) -> None:
        """Begin to end cleanly, or to start again."""
        if not self._powering:
            self._powering = True
            self._tasks.spawn(self._power(reboot), "pretend power off")

    # Ending

    async def _power(self, reboot: bool) -> None:
        what = GuestEvent.REBOOTING if reboot else GuestEvent.POWERING_OFF
        if self._talk is not None:
            self._talk.send(Type.EVENT, 0, Packer().u8(what).done())
        await self.clock.sleep(0 if reboot else self._stop_delay_s)
        processes = list(self.world.processes.values())
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in processes:
                process.signal(number)
        for process in processes:
            await process.wait()
        await self.clock.gate()
        await self._save()
        if reboot:
            await self._start_again()
        elif not self.ended.done():
            self.ended.set_result("")

    async def _start_again(self) -> None:
        self._forget()
        await self.world.tasks.aclose()
        self._boot()
        self._powering = False
        self.on_reboot()

    async def _reboot_after(self, seconds: float) -> None:
        await self.clock.sleep(seconds)
        self.power(True)

    async def _crash(self, seconds: float) -> None:
        await self.clock.sleep(seconds)
        if not self.ended.done():
            self.ended.set_result(f"the fake machine was told to crash after {seconds:g} s")

    async def _keep_saving(self) -> None:
        while True:
            await self.clock.sleep(SAVE_EVERY_S)
            await self._save()

    # Talking

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while data := await reader.read(_READ_SIZE):
                await self.clock.gate()
                parser = self._parser
                for got in parser.feed(data):
                    if parser is not self._parser:
                        break
                    await self.clock.gate()
                    if isinstance(got, Sync):
                        await self._greet(got.nonce)
                    else:
                        self._take(got)

    async def _greet(self, nonce: bytes) -> None:
        self._forget()
        if self._faults.agent is Agent.SILENT:
            return
        if self._faults.agent is Agent.LATE:
            await self.clock.sleep(self._faults.late_s)
        assert self._writer is not None
        self._writer.write(frames.sync_record(nonce))
        if self._faults.agent is Agent.GARBAGE:
            self._writer.write(b"\x17 this is not a frame " * 40)
            return
        self._talk = Conversation(self._writer, self.clock)
        hello = Hello(VERSION, self._epoch, True, programs.KERNEL, self.world.hostname)
        self._talk.send(Type.HELLO, 0, hello.pack())

    def _forget(self) -> None:
        if self._talk is not None:
            self._talk.end()
            self._talk = None

    def _take(self, frame: frames.Frame) -> None:
        if self._talk is None:
            return
        channel = self._talk.channels.get(frame.channel)
        if frame.type == Type.OPEN and channel is None and frame.channel:
            self._open(self._talk, frame)
        elif channel is not None:
            try:
                channel.take(frame)
            except Malformed as error:
                channel.on_close()
                channel.refuse(errno.EPROTO, str(error))

    def _open(self, talk: Conversation, frame: frames.Frame) -> None:
        full = len(talk.channels) >= MAX_CHANNELS
        channel = GuestChannel(talk, frame.channel, 0)
        if full:
            channel.refuse(errno.EMFILE)
            return
        try:
            fields = Unpacker(frame.payload)
            kind, credit = fields.u8(), fields.u32()
            channel.allow(credit)
            self._kinds.open(Kind(kind), channel, fields)
        except (Malformed, ValueError) as error:
            channel.refuse(errno.EPROTO, str(error))
        except OSError as error:
            channel.refuse(error.errno or errno.EIO, f"{error.filename}: {error.strerror}")
