"""Pretend processes: each is a task with pipes, a group, and signals that end it."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from vm_backends.fake.clock import GuestClock
from vm_backends.fake.filesystem import Filesystem, failure

PIPE_SIZE = 64 * 1024
BIN_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_BUG = 70
"""The status of a program that failed through a fault of ours; the loop is told about it."""
_HARMLESS = frozenset(
    {0, signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH, signal.SIGTSTP}
)


class Tasks:
    """Owns tasks; one that fails with a bug is reported to the loop, never swallowed."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def aclose(self) -> None:
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            context = {"message": f"{task.get_name()} failed", "exception": error, "task": task}
            task.get_loop().call_exception_handler(context)


class Source(Protocol):
    async def read(self) -> bytes:
        """The next bytes, b"" at the end."""


class Sink(Protocol):
    async def write(self, data: bytes) -> None: ...


class Nothing:
    """/dev/null, both ways."""

    async def read(self) -> bytes:
        return b""

    async def write(self, data: bytes) -> None:
        return


class Pipe:
    """A bounded pipe: writers wait when it is full, and fail when nobody reads."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._stirred = asyncio.Event()
        self._no_writer = self._no_reader = False

    async def read(self) -> bytes:
        while not self._data and not self._no_writer:
            await self._stir()
        data = bytes(self._data)
        self._data.clear()
        self._stirred.set()
        return data

    async def write(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            while len(self._data) >= PIPE_SIZE and not self._no_reader:
                await self._stir()
            if self._no_reader:
                raise BrokenPipeError
            piece = data[at : at + PIPE_SIZE - len(self._data)]
            self._data += piece
            at += len(piece)
            self._stirred.set()

    def end_writing(self) -> None:
        self._no_writer = True
        self._stirred.set()

    def end_reading(self) -> None:
        self._no_reader = True
        self._data.clear()
        self._stirred.set()

    async def _stir(self) -> None:
        self._stirred.clear()
        await self._stirred.wait()


@dataclass(eq=False)
class World:
    """What the programs of one boot can see and do."""

    fs: Filesystem
    clock: GuestClock
    hostname: str
    cpus: int
    memory_mib: int
    programs: Mapping[str, Program]
    save: Callable[[], Awaitable[None]]
    power: Callable[[bool], None]
    """Begin to switch off, or to reboot if True."""
    tasks: Tasks = field(default_factory=Tasks)
    processes: dict[int, Process] = field(default_factory=dict)
    pids: itertools.count[int] = field(default_factory=lambda: itertools.count(100))

    def program(self, name: str, cwd: str) -> Program:
        """What a command name stands for; OSError as execve would give."""
        folder, _, base = name.rpartition("/")
        if base in self.programs and (not folder or folder in BIN_FOLDERS):
            return self.programs[base]
        if not folder:
            raise failure(errno.ENOENT, name)
        path = os.path.join(cwd, name)
        node = self.fs.lookup(path)
        if node.kind != "f" or not node.mode & 0o111:
            raise failure(errno.EACCES, name)
        if not node.data.startswith(b"#!"):
            raise failure(errno.ENOEXEC, name)
        return self.programs["sh"]

    def signal_group(self, group: int, number: int) -> None:
        for process in list(self.processes.values()):
            if process.group == group:
                process.signal(number)


@dataclass(eq=False)
class Process:
    """One running program. Made by `spawn`; `wait` gives its status."""

    world: World
    argv: list[str]
    env: dict[str, str]
    cwd: str
    user: str
    stdin: Source
    stdout: Sink
    stderr: Sink
    terminal: Terminal | None = None
    parent: Process | None = None
    """Whose group it joins; none: it leads its own."""
    on_exit: Callable[[], None] = lambda: None
    pid: int = 0
    group: int = 0
    killed_by: int = 0
    caught: dict[int, Callable[[], None]] = field(default_factory=dict)
    """Signals that it handles itself."""
    _task: asyncio.Task[int] | None = None

    def spawn(self, *, own_group: bool = False) -> Process:
        """Start it; OSError if there is no such program."""
        program = self.world.program(self.argv[0], self.cwd)
        self.pid = next(self.world.pids)
        self.group = self.pid if own_group or self.parent is None else self.parent.group
        self.world.processes[self.pid] = self
        name = f"pretend process {self.pid} {self.argv[0]}"
        self._task = self.world.tasks.spawn(self._run(program), name)
        # Not a `finally` inside: a task that is cancelled before its first step never gets there.
        self._task.add_done_callback(self._left)
        return self

    async def wait(self) -> int:
        """Its status: 0..255, or minus the signal that ended it."""
        assert self._task is not None
        await asyncio.wait([self._task])
        if self._task.cancelled():
            return -self.killed_by
        return _BUG if self._task.exception() else self._task.result()

    def signal(self, number: int) -> None:
        if number in self.caught and number != signal.SIGKILL:
            self.caught[number]()
        elif number not in _HARMLESS and self._task and not self.killed_by:
            self.killed_by = number
            self._task.cancel()

    async def _run(self, program: Program) -> int:
        try:
            await self.world.clock.gate()
            return await program(self)
        except BrokenPipeError:
            return -signal.SIGPIPE
        except OSError as error:
            return await self.complain(f"{error.filename}: {error.strerror}")
        except ValueError:
            return await self.complain("these arguments are more than it knows", 2)

    def _left(self, task: asyncio.Task[int]) -> None:
        self.world.processes.pop(self.pid, None)
        self.on_exit()

    async def complain(self, message: str, status: int = 1) -> int:
        name = self.argv[0].rpartition("/")[2]
        await self.stderr.write(f"{name}: {message}\n".encode("utf-8", "surrogateescape"))
        return status

    async def say(self, text: str) -> None:
        await self.stdout.write(text.encode("utf-8", "surrogateescape"))

    def path(self, name: str) -> str:
        """A name as the user wrote it, made absolute."""
        return os.path.normpath(os.path.join(self.cwd, name))


class Terminal(Source, Sink, Protocol):
    """What a shell needs of the terminal it runs in."""

    columns: int
    foreground: int

    def echo(self, data: bytes) -> None: ...


Program = Callable[[Process], Awaitable[int]]
