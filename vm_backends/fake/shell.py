"""The pretend guest's `sh`: lists, pipes, redirections, a prompt; no loops, no jobs."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace

from vm_backends.fake.filesystem import Filesystem
from vm_backends.fake.process import Nothing, Pipe, Process, Program, Sink, Source
from vm_backends.fake.words import BadSyntax, Command, Pipeline, parse

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


class _Exit(Exception):
    def __init__(self, status: int) -> None:
        self.status = status


class _Content:
    """A file read through `<`."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def read(self) -> bytes:
        data, self._data = self._data, b""
        return data


@dataclass(frozen=True, slots=True)
class _FileSink:
    """A file written through `>`."""

    fs: Filesystem
    path: str

    async def write(self, data: bytes) -> None:
        self.fs.write(self.path, data, append=True)


@dataclass(frozen=True, slots=True)
class _Ends:
    stdin: Source
    stdout: Sink
    stderr: Sink


async def _sh(process: Process) -> int:
    words = process.argv[1:]
    shell = _Shell(process)
    name = process.argv[0].rpartition("/")[2]
    try:
        if name not in ("sh", "-sh", "bash", "-bash"):
            return await shell.run(_script(process, process.argv[0]))
        if words[:1] in (["-c"], ["-lc"]) and len(words) > 1:
            return await shell.run(words[1])
        if words and not words[0].startswith("-"):
            return await shell.run(_script(process, words[0]))
        if process.terminal is not None:
            return await shell.converse()
        text = b""
        while data := await process.stdin.read():
            text += data
        return await shell.run(text.decode("utf-8", "surrogateescape"))
    except _Exit as leave:
        return leave.status


def _script(process: Process, name: str) -> str:
    return process.world.fs.read(process.path(name)).decode("utf-8", "surrogateescape")


class _Shell:
    def __init__(self, process: Process) -> None:
        self._me = process
        self._status = 0

    async def converse(self) -> int:
        """Prompt, read, run, until Ctrl-D or `exit`."""
        terminal = self._me.terminal
        assert terminal is not None
        self._me.caught[signal.SIGINT] = lambda: terminal.echo(self._prompt().encode())
        for ignored in (signal.SIGTERM, signal.SIGQUIT):
            self._me.caught[ignored] = lambda: None
        while True:
            await self._me.say(self._prompt())
            line = await self._me.stdin.read()
            if not line:
                await self._me.say("\n")
                return self._status
            await self.run(line.decode("utf-8", "surrogateescape"))

    def _prompt(self) -> str:
        home, cwd = self._me.env.get("HOME", "/"), self._me.cwd
        where = "~" + cwd[len(home) :] if (cwd + "/").startswith(home + "/") else cwd
        sign = "#" if self._me.user == "root" else "$"
        return f"{self._me.user}@{self._me.world.hostname}:{where}{sign} "

    async def run(self, text: str) -> int:
        try:
            pipelines = parse(text)
        except BadSyntax as error:
            self._status = await self._me.complain(f"syntax error: {error}", 2)
            return self._status
        for pipeline in pipelines:
            failed = self._status != 0
            if (pipeline.join == "&&" and failed) or (pipeline.join == "||" and not failed):
                continue
            self._status = await self._pipeline(pipeline)
        return self._status

    async def _pipeline(self, pipeline: Pipeline) -> int:
        ends = _Ends(self._me.stdin, self._me.stdout, self._me.stderr)
        started: list[Process] = []
        status = 0
        for place, command in enumerate(pipeline.commands):
            pipe = Pipe() if place < len(pipeline.commands) - 1 else None
            came_from = ends.stdin if place else None
            mine = replace(ends, stdout=pipe or self._me.stdout)
            done = _closer(came_from, pipe)
            try:
                child = await self._command(command, mine, done, started)
            except OSError as error:
                child = await self._not_started(command, error)
            if isinstance(child, int):
                status = child
                done()
            else:
                started.append(child)
            ends = replace(ends, stdin=pipe or Nothing())
        for child in started:
            status = await self._wait(child)
        return status

    async def _command(
        self, command: Command, ends: _Ends, done: Callable[[], None], group: list[Process]
    ) -> Process | int:
        """Start one command of a pipeline, or do it right here: its status then."""
        variables = {**self._me.env, "?": str(self._status), "$": str(self._me.pid)}
        words = [text for word in command.words if (text := word.expand(variables)) is not None]
        ends = self._redirect(command, ends, variables)
        assigned: dict[str, str] = {}
        while words and _ASSIGNMENT.match(words[0]):
            key, _, assigned[key] = words.pop(0).partition("=")
        if not words:
            self._me.env.update(assigned)
            return 0
        built_in = await self._built_in(words)
        if built_in is not None:
            return built_in
        child = Process(
            self._me.world,
            words,
            {**self._me.env, **assigned},
            self._me.cwd,
            self._me.user,
            ends.stdin,
            ends.stdout,
            ends.stderr,
            terminal=self._me.terminal,
            parent=group[0] if group else self._me,
            on_exit=done,
        )
        return child.spawn(own_group=self._me.terminal is not None and not group)

    async def _not_started(self, command: Command, error: OSError) -> int:
        if error.filename == (command.words[0].expand({}) if command.words else None):
            missing = isinstance(error, FileNotFoundError) and "/" not in error.filename
            words = "not found" if missing else error.strerror
            return await self._me.complain(
                f"{error.filename}: {words}", 127 if isinstance(error, FileNotFoundError) else 126
            )
        return await self._me.complain(f"{error.filename}: {error.strerror}")

    async def _wait(self, child: Process) -> int:
        terminal = self._me.terminal
        if terminal is None:
            status = await child.wait()
        else:
            terminal.foreground = child.group
            try:
                status = await child.wait()
            finally:
                terminal.foreground = self._me.group
        return status if status >= 0 else 128 - status

    def _redirect(self, command: Command, ends: _Ends, variables: dict[str, str]) -> _Ends:
        fs = self._me.world.fs
        for operator, word in command.redirects:
            path = self._me.path(word.expand(variables) or "")
            if operator == "2>&1":
                ends = replace(ends, stderr=ends.stdout)
            elif operator == ">&2":
                ends = replace(ends, stdout=ends.stderr)
            elif operator == "<":
                ends = replace(ends, stdin=_Content(b"" if path == "/dev/null" else fs.read(path)))
            else:
                sink: Sink = Nothing()
                if path != "/dev/null":
                    fs.write(path, b"", append=operator == ">>")
                    sink = _FileSink(fs, path)
                if operator == "2>":
                    ends = replace(ends, stderr=sink)
                else:
                    ends = replace(ends, stdout=sink)
        return ends

    async def _built_in(self, words: list[str]) -> int | None:
        match words:
            case ["cd", *rest]:
                home = self._me.env.get("HOME", "/")
                path = self._me.path(rest[0] if rest else home)
                self._me.world.fs.folder(path)
                self._me.cwd = path
            case ["exit", *rest]:
                valid = rest and rest[0].isdigit()
                raise _Exit(int(rest[0]) % 256 if valid else self._status)
            case ["export", *rest]:
                self._me.env.update(word.partition("=")[::2] for word in rest if "=" in word)
            case [":"]:
                pass
            case ["exec", *_] | ["while", *_] | ["for", *_] | ["if", *_]:
                return await self._me.complain(f"{words[0]} is more than this shell knows", 2)
            case _:
                return None
        return 0


def _closer(read_from: Source | None, write_to: Pipe | None) -> Callable[[], None]:
    """What to do when a command of a pipeline ends: let its neighbours know."""

    def close() -> None:
        if isinstance(read_from, Pipe):
            read_from.end_reading()
        if write_to is not None:
            write_to.end_writing()

    return close


PROGRAMS: dict[str, Program] = {"sh": _sh, "bash": _sh, "-sh": _sh}
