"""What a host can open in a pretend guest: one method for each kind of the protocol."""

from __future__ import annotations

import errno
import itertools
import os
import signal

from vm_backends.agent.protocol import Kind, Malformed, Packer, Type, Unpacker
from vm_backends.fake import metrics
from vm_backends.fake.archive import Unpacking, pack
from vm_backends.fake.filesystem import failure
from vm_backends.fake.process import BIN_FOLDERS, Nothing, Pipe, Process, Source, World
from vm_backends.fake.programs import USERS
from vm_backends.fake.stream import GRANT, Gone, GuestChannel
from vm_backends.fake.terminal import Session
from vm_backends.spec import MachineSpec


class Kinds:
    """Opens channels. Raises Malformed or OSError: the caller turns either into REFUSED."""

    def __init__(self, world: World, sessions: dict[str, Session], spec: MachineSpec) -> None:
        self._world = world
        self._sessions = sessions
        self._spec = spec

    def open(self, kind: Kind, channel: GuestChannel, take: Unpacker) -> None:
        match kind:
            case Kind.EXEC:
                self._exec(channel, take)
            case Kind.SESSION:
                self._session(channel, take)
            case Kind.SESSIONS:
                take.end()
                self._list_sessions(channel)
            case Kind.GET:
                self._get(channel, take)
            case Kind.PUT:
                self._put(channel, take)
            case Kind.STAT:
                self._stat(channel, take)
            case Kind.METRICS:
                take.end()
                spec = self._spec
                channel.reply(metrics.report(self._world, spec.name, spec.disk_bytes))
            case Kind.POWER:
                how = take.u8()
                take.end()
                channel.reply()
                self._world.power(bool(how))
            case Kind.SETUP:
                self._setup(channel, take)
            case Kind.PING:
                channel.reply(take.rest())

    # Commands

    def _exec(self, channel: GuestChannel, take: Unpacker) -> None:
        flags, user, cwd = take.u8(), take.text(), take.text()
        variables, argv = take.texts(), take.texts()
        take.end()
        typed, stdout, stderr = Pipe(), Pipe(), Pipe()
        no_input = bool(flags & 1)

        def exited() -> None:
            stdout.end_writing()
            stderr.end_writing()
            typed.end_reading()

        stdin: Source = Nothing() if no_input else typed
        process = self._process(user, cwd, variables, argv, stdin, stdout, stderr)
        process.on_exit = exited
        process.spawn()
        channel.on_signal = lambda number: self._world.signal_group(process.group, number)
        channel.on_close = lambda: self._world.signal_group(process.group, signal.SIGHUP)
        channel.opened(Packer().u32(process.pid).done(), 0 if no_input else GRANT)
        spawn = self._world.tasks.spawn
        if not no_input:
            spawn(self._feed(channel, typed), f"stdin of {process.pid}")
        out = spawn(self._drain(channel, stdout, Type.DATA), f"stdout of {process.pid}")
        err = spawn(self._drain(channel, stderr, Type.DATA2), f"stderr of {process.pid}")

        async def finish() -> None:
            status = await process.wait()
            await out
            await err
            await self._world.clock.gate()
            channel.exit(status)

        spawn(finish(), f"exit of {process.pid}")

    def _process(
        self,
        user: str,
        cwd: str,
        variables: list[str],
        argv: list[str],
        stdin: Source,
        stdout: Pipe,
        stderr: Pipe,
    ) -> Process:
        if not argv or not argv[0]:
            raise failure(errno.EINVAL, "command")
        name, home = _user(user)
        self._world.fs.folder(cwd or home)
        env = self._environment(name, home, variables)
        return Process(self._world, argv, env, cwd or home, name, stdin, stdout, stderr)

    def _environment(self, user: str, home: str, variables: list[str]) -> dict[str, str]:
        env = {
            "PATH": ":".join(BIN_FOLDERS),
            "HOME": home,
            "USER": user,
            "LOGNAME": user,
            "SHELL": "/bin/sh",
            "LANG": "C.UTF-8",
        }
        own = ""
        if self._world.fs.exists("/etc/environment"):
            own = self._world.fs.read("/etc/environment").decode("utf-8", "surrogateescape")
        for line in [*own.splitlines(), *variables]:
            key, equals, value = line.partition("=")
            if equals:
                env[key] = value
        return env

    async def _feed(self, channel: GuestChannel, stdin: Pipe) -> None:
        try:
            while data := await channel.read():
                await stdin.write(data)
        except (Gone, BrokenPipeError):
            pass
        stdin.end_writing()
        try:
            # What comes for a process that stopped reading is taken and dropped.
            while await channel.read():
                pass
        except Gone:
            pass

    async def _drain(self, channel: GuestChannel, output: Pipe, type_: Type) -> None:
        """Send on what a process prints; once nobody listens, read and drop it."""
        while data := await output.read():
            try:
                await channel.send(data, type_)
            except Gone:
                await self._world.clock.gate()
        if type_ is Type.DATA:
            channel.tell(Type.EOF)

    # Terminals

    def _session(self, channel: GuestChannel, take: Unpacker) -> None:
        flags, name, user, cwd = take.u8(), take.text(), take.text(), take.text()
        variables, argv = take.texts(), take.texts()
        columns, rows = take.u16(), take.u16()
        take.end()
        if len(name.encode("utf-8", "surrogateescape")) > 64 or not name.isprintable():
            raise failure(errno.EINVAL, "session name")
        there = self._sessions.get(name)
        if there is not None and flags & 2:
            raise failure(errno.EEXIST, name)
        if there is None and not flags & 3:
            raise failure(errno.ENOENT, name)
        session = there or self._new_session(name, user, cwd, variables, argv, columns, rows)
        session.passing = session.passing or bool(flags & 4)
        session.resize(columns, rows)
        session.attach(channel)
        assert session.process is not None
        replay = session.ring.end - session.ring.start
        packed = Packer().u8(there is None).u32(session.process.pid).u32(replay).text(session.name)
        channel.opened(packed.done(), GRANT)
        self._world.tasks.spawn(session.show(channel), f"viewer of {session.name}")
        self._world.tasks.spawn(session.listen(channel), f"keyboard of {session.name}")

    def _new_session(
        self,
        name: str,
        user: str,
        cwd: str,
        variables: list[str],
        argv: list[str],
        columns: int,
        rows: int,
    ) -> Session:
        free = (f"s{number}" for number in itertools.count(1))
        name = name or next(one for one in free if one not in self._sessions)
        session = Session(name, int(self._world.clock.wall_s), columns, rows)
        session_env = ["TERM=xterm-256color", *variables]
        unused = Pipe()
        process = self._process(user, cwd, session_env, argv or ["-sh"], unused, unused, unused)
        process.stdin = process.stdout = process.stderr = process.terminal = session.tty
        session.run(process.spawn())
        self._sessions[name] = session
        self._world.tasks.spawn(self._live(session), f"session {name}")
        return session

    async def _live(self, session: Session) -> None:
        await session.live()
        self._sessions.pop(session.name, None)

    def _list_sessions(self, channel: GuestChannel) -> None:
        packed = Packer().u32(len(self._sessions))
        for one in self._sessions.values():
            assert one.process is not None
            packed.text(one.name).u32(one.process.pid).u16(one.tty.columns).u16(one.tty.rows)
            packed.u16(len(one.ring.cursors)).i64(one.created_s)
            packed.text(" ".join(one.process.argv)[:4096])
        channel.reply(packed.done())

    # Files

    def _get(self, channel: GuestChannel, take: Unpacker) -> None:
        flags, path = take.u8(), take.text()
        take.end()
        node = self._world.fs.lookup(_absolute(path), follow=path.endswith("/"))
        channel.opened()

        async def send() -> None:
            try:
                for piece in pack(node, listing=bool(flags & 1)):
                    await channel.send(piece)
                channel.tell(Type.EOF)
                channel.exit(0)
            except Gone:
                pass

        self._world.tasks.spawn(send(), f"reading {path}")

    def _put(self, channel: GuestChannel, take: Unpacker) -> None:
        flags, path, user = take.u8(), take.text(), take.text()
        take.end()
        uid = USERS[_user(user)[0]][0]
        owner = None if flags & 1 else (uid, uid)
        unpacking = Unpacking(channel, self._world.fs, _absolute(path), owner)
        channel.opened(b"", GRANT)

        async def store() -> None:
            try:
                await unpacking.run()
                channel.exit(0)
            except OSError as error:
                channel.exit(1, f"{error.filename}: {error.strerror}")
            except Malformed as error:
                channel.exit(1, str(error))
            except Gone:
                pass

        self._world.tasks.spawn(store(), f"writing {path}")

    def _stat(self, channel: GuestChannel, take: Unpacker) -> None:
        flags, path = take.u8(), take.text()
        take.end()
        node = self._world.fs.lookup(_absolute(path), follow=bool(flags & 1))
        seconds, nanos = divmod(node.mtime_ns, 1_000_000_000)
        packed = Packer().u8(ord(node.kind)).u32(node.mode).u32(node.uid).u32(node.gid)
        packed.u64(node.size).i64(seconds).u32(nanos).text(node.target)
        channel.reply(packed.done())

    def _setup(self, channel: GuestChannel, take: Unpacker) -> None:
        clock_ns, hostname, machine_id, _entropy = (
            take.i64(),
            take.text(),
            take.text(),
            take.blob(),
        )
        take.end()
        if clock_ns:
            self._world.clock.set_wall(clock_ns / 1e9)
        if hostname:
            self._world.hostname = hostname
            self._world.fs.write("/etc/hostname", f"{hostname}\n".encode())
        if machine_id:
            self._world.fs.write("/etc/machine-id", f"{machine_id}\n".encode())
        channel.reply()


def _user(name: str) -> tuple[str, str]:
    """Name and home of a user, given by name, by number, or not at all."""
    for known, (uid, home) in USERS.items():
        if name in (known, str(uid)) or (not name and uid == 0):
            return known, home
    raise failure(errno.ENOENT, f"user {name}")


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        raise failure(errno.EINVAL, path)
    return os.path.normpath(path)
