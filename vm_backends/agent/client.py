"""What can be asked of a guest: run, look, copy, measure, power off.

`GuestClient` needs only a way to open channels, so it works in a keeper (directly on the link)
and in any client of a keeper alike.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterable, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vm_backends.agent import archive
from vm_backends.agent.link import Channel, printable
from vm_backends.agent.protocol import Kind, Packer, Type, Unpacker
from vm_backends.agent.pty import GuestTerminal, SessionInfo
from vm_backends.agent.stream import ChannelStream, exit_status
from vm_backends.errors import GuestRefused, TimedOut

Opener = Callable[[Kind, bytes], Awaitable[Channel]]
Output = Callable[[bytes], Awaitable[None]]

KILL_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command ended. `status` is 0..255, or minus the number of the signal."""

    status: int
    stdout_bytes: bytes
    stderr_bytes: bytes

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def ok(self) -> bool:
        return self.status == 0

    @property
    def shell_status(self) -> int:
        """The status as a shell reports it: 128 + signal for a command that was killed."""
        return self.status if self.status >= 0 else 128 - self.status


@dataclass(frozen=True, slots=True)
class Metrics:
    """What the guest says of itself; bytes and milliseconds."""

    uptime_ms: int
    cpus: int
    cpu_busy_ms: int
    cpu_total_ms: int
    memory_total: int
    memory_available: int
    disk_total: int
    disk_free: int
    processes: int
    load1_x100: int


@dataclass(frozen=True, slots=True)
class GuestStat:
    """One file of the guest; `kind` is the archive's letter (f, d, l, …)."""

    kind: str
    mode: int
    uid: int
    gid: int
    size: int
    mtime_s: int
    target: str


class GuestCommand:
    """A command that runs: feed it, read it, signal it, wait for it."""

    def __init__(self, stream: ChannelStream, pid: int) -> None:
        self._stream = stream
        self.pid = pid

    async def write(self, data: bytes) -> bool:
        return await self._stream.write(data)

    async def write_eof(self) -> None:
        await self._stream.write_eof()

    async def signal(self, number: int) -> None:
        await self._stream.signal(number)

    async def pump(self, stdout: Output, stderr: Output) -> int:
        """Hand on everything it prints until it ends; its status."""
        while True:
            frame = await self._stream.read()
            if frame.type == Type.DATA:
                await stdout(frame.payload)
            elif frame.type == Type.DATA2:
                await stderr(frame.payload)
            elif frame.type != Type.EOF:
                return exit_status(frame)[0]

    async def finish(
        self,
        *,
        input: bytes | AsyncIterable[bytes] | None = None,
        timeout_s: float | None = None,
        stdout: Output | None = None,
        stderr: Output | None = None,
    ) -> ExecResult:
        """Feed it, take its output (to the callbacks, or into the result), wait for its end.

        After `timeout_s` it gets SIGTERM, then SIGKILL, and TimedOut is raised.
        """
        out, err = bytearray(), bytearray()
        feeder = asyncio.create_task(_feed(self, input)) if input is not None else None
        try:
            pump = self.pump(stdout or _collect(out), stderr or _collect(err))
            status = await _within(pump, self, timeout_s)
        finally:
            if feeder:
                feeder.cancel()
                await asyncio.gather(feeder, return_exceptions=True)
            await self.aclose()
        return ExecResult(status, bytes(out), bytes(err))

    async def aclose(self) -> None:
        await self._stream.aclose()


class GuestClient:
    """Every request to a guest's agent, as a coroutine."""

    def __init__(self, opener: Opener) -> None:
        self._open = opener

    async def _ask(self, kind: Kind, arguments: bytes, deadline_s: float) -> Unpacker:
        stream = ChannelStream(await self._open(kind, arguments))
        try:
            return await asyncio.wait_for(stream.reply(), deadline_s)
        except TimeoutError:
            raise TimedOut(f"the guest did not answer within {deadline_s:g} s") from None
        finally:
            await stream.aclose()

    async def start(
        self,
        *argv: str,
        user: str = "",
        cwd: str = "",
        env: dict[str, str] | None = None,
        stdin: bool = True,
    ) -> GuestCommand:
        """Start a command; REFUSED becomes GuestRefused with the guest's errno."""
        if not argv:
            raise GuestRefused("there is no command to run", errno=22)
        variables = [f"{key}={value}" for key, value in (env or {}).items()]
        packed = Packer().u8(0 if stdin else 1).text(user).text(cwd).texts(variables)
        stream = ChannelStream(await self._open(Kind.EXEC, packed.texts(argv).done()))
        try:
            return GuestCommand(stream, (await stream.opened()).u32())
        except BaseException:
            await stream.aclose()
            raise

    async def exec(
        self,
        *argv: str,
        input: bytes | AsyncIterable[bytes] | None = None,
        user: str = "",
        cwd: str = "",
        env: dict[str, str] | None = None,
        timeout_s: float | None = None,
        stdout: Output | None = None,
        stderr: Output | None = None,
    ) -> ExecResult:
        """Run a command to its end: `start`, then `GuestCommand.finish`."""
        command = await self.start(*argv, user=user, cwd=cwd, env=env, stdin=input is not None)
        return await command.finish(input=input, timeout_s=timeout_s, stdout=stdout, stderr=stderr)

    async def session(
        self,
        name: str = "",
        *argv: str,
        columns: int = 80,
        rows: int = 24,
        user: str = "",
        cwd: str = "",
        env: dict[str, str] | None = None,
        create: bool = True,
        passing: bool = False,
    ) -> GuestTerminal:
        """Attach to the terminal session of that name, or make it.

        A `passing` one is hung up on when its last viewer closes; others wait for the next.
        """
        variables = [f"{key}={value}" for key, value in (env or {}).items()]
        flags = (1 if create else 0) | (4 if passing else 0)
        packed = Packer().u8(flags).text(name).text(user).text(cwd).texts(variables)
        packed.texts(argv).u16(columns).u16(rows)
        stream = ChannelStream(await self._open(Kind.SESSION, packed.done()))
        try:
            return await GuestTerminal.opened(stream)
        except BaseException:
            await stream.aclose()
            raise

    async def sessions(self) -> list[SessionInfo]:
        take = await self._ask(Kind.SESSIONS, b"", 10)
        return [SessionInfo.unpack(take) for _ in range(min(take.u32(), 1024))]

    async def stat(self, path: str, *, follow: bool = True) -> GuestStat | None:
        """What is at a path, None if nothing is."""
        packed = Packer().u8(1 if follow else 0).text(path).done()
        try:
            take = await self._ask(Kind.STAT, packed, 10)
        except GuestRefused as refused:
            if refused.errno in (2, 20):
                return None
            raise
        kind, mode, uid, gid = chr(take.u8()), take.u32(), take.u32(), take.u32()
        size, mtime_s, _ns = take.u64(), take.i64(), take.u32()
        return GuestStat(kind, mode & 0o7777, uid, gid, size, mtime_s, take.text())

    async def copy_in(
        self, source: Path, target: str, *, user: str = "", on_bytes: archive.Counter | None = None
    ) -> list[str]:
        """Put a file or a tree of the host at exactly `target`; what was skipped, and why."""
        packed = Packer().u8(2).text(target).text(user).done()
        stream = ChannelStream(await self._open(Kind.PUT, packed))
        try:
            await stream.opened()
            sender = asyncio.create_task(archive.send(source, stream, on_bytes))
            ending = asyncio.create_task(_ending(stream))
            try:
                # A source that cannot be read ends it as well: the guest would wait for more.
                await asyncio.wait({sender, ending}, return_when=asyncio.FIRST_EXCEPTION)
                if sender.done():
                    sender.result()
                status, message = await ending
            finally:
                for task in (sender, ending):
                    task.cancel()
                await asyncio.gather(sender, ending, return_exceptions=True)
            if status != 0:
                raise GuestRefused(message or "the guest could not store it")
            return sender.result()
        finally:
            await stream.aclose()

    async def copy_out(
        self, source: str, target: Path, *, on_bytes: archive.Counter | None = None
    ) -> list[str]:
        """Put a file or a tree of the guest at exactly `target` on the host; what was skipped."""
        packed = Packer().u8(0).text(source).done()
        stream = ChannelStream(await self._open(Kind.GET, packed))
        receiver = archive.Receiver(target, on_bytes)
        try:
            await stream.opened()
            frame = await archive.receive(stream, receiver)
            if frame.type == Type.EOF:
                frame = await stream.read()
            status, message = exit_status(frame)
            if status != 0:
                raise GuestRefused(message or "the guest could not read it")
            await asyncio.to_thread(receiver.finish)
            return [printable(warning) for warning in receiver.warnings]
        finally:
            receiver.close()
            await stream.aclose()

    async def metrics(self, deadline_s: float = 5.0) -> Metrics:
        take = await self._ask(Kind.METRICS, b"", deadline_s)
        count = take.u32()
        values = [take.u64() for _ in range(min(count, 64))]
        return Metrics(*(values + [0] * 10)[:10])

    async def ping(self, deadline_s: float = 5.0) -> None:
        await self._ask(Kind.PING, b"?", deadline_s)

    async def power_off(self, *, reboot: bool = False) -> None:
        """Ask for a clean end; returns once the guest has said it will."""
        await self._ask(Kind.POWER, Packer().u8(1 if reboot else 0).done(), 10)

    async def setup(
        self, *, clock_ns: int = 0, hostname: str = "", machine_id: str = "", entropy: bytes = b""
    ) -> None:
        """Tell the guest who it is and what time it is."""
        packed = Packer().i64(clock_ns).text(hostname).text(machine_id)
        await self._ask(Kind.SETUP, packed.text(entropy.hex()).done(), 10)


async def _ending(stream: ChannelStream) -> tuple[int, str]:
    """Status and message of a transfer, once the guest has ended it."""
    while (frame := await stream.read()).type not in (Type.EXIT, Type.CLOSED):
        pass
    return exit_status(frame)


def _collect(into: bytearray) -> Output:
    async def take(data: bytes) -> None:
        into.extend(data)

    return take


async def _feed(command: GuestCommand, data: bytes | AsyncIterable[bytes]) -> None:
    if isinstance(data, bytes):
        await command.write(data)
    else:
        async for piece in data:
            if not await command.write(piece):
                return
    await command.write_eof()


async def _within(pump: Awaitable[int], command: GuestCommand, timeout_s: float | None) -> int:
    if timeout_s is None:
        return await pump
    task = asyncio.ensure_future(pump)
    try:
        return await asyncio.wait_for(asyncio.shield(task), timeout_s)
    except TimeoutError:
        await command.signal(signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(task), KILL_GRACE_S)
        if not task.done():
            await command.signal(signal.SIGKILL)
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(task), KILL_GRACE_S)
        raise TimedOut(f"the command did not end within {timeout_s:g} s") from None
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
