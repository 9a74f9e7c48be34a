"""This terminal as the screen of a session in a box: raw keys in, bytes out, size kept in step."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click

from boxgrove.grove import Box
from vm_backends.agent.client import KILL_GRACE_S
from vm_backends.agent.pty import GuestTerminal
from vm_backends.errors import (
    Fault,
    GuestRefused,
    GuestUnreachable,
    KeeperUnreachable,
    TimedOut,
    WrongState,
)
from vm_backends.state import MachineState

LEAVE_KEY = b"\x1d"
"""Ctrl-]: leave, the session goes on."""
REATTACH_S = 20.0
END_OF_INPUT = b"\x04"


class Left(Exception):
    """The person pressed the key to leave."""


async def run_in_terminal(
    box: Box,
    command: tuple[str, ...],
    *,
    user: str | None,
    cwd: str,
    env: dict[str, str],
    timeout_s: float | None,
) -> int:
    """One command in a terminal of its own; its status."""
    columns, rows = _size()
    session = await box.terminal(
        "", *command, columns=columns, rows=rows, user=user, cwd=cwd, env=_with_term(env),
        passing=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(timeout_s):
            return await Screen(box, session, leave_key=False).run()
    except TimeoutError:
        await _end(box, session.name)
        raise TimedOut(f"the command did not end within {timeout_s:g} s") from None


async def _end(box: Box, name: str) -> None:
    """End what runs in a session: politely, then not."""
    with suppress(GuestRefused):  # It has just ended by itself.
        session = await box.terminal(name, create=False)
        try:
            for number in (signal.SIGTERM, signal.SIGKILL):
                await session.signal(number)
                with suppress(TimeoutError):
                    async with asyncio.timeout(KILL_GRACE_S):
                        while await session.read():
                            pass
                        return
        finally:
            await session.aclose()


async def open_shell(
    box: Box, name: str, command: tuple[str, ...], *, user: str | None, create: bool
) -> int:
    """A shell, new or one that was left; its status, or 0 if it is left again."""
    columns, rows = _size()
    session = await box.terminal(
        name, *command, columns=columns, rows=rows, user=user, env=_with_term({}), create=create
    )
    try:
        return await Screen(box, session, leave_key=True).run()
    except Left:
        again = f"boxgrove shell {box.name} --session {session.name}"
        click.echo(f"\r\nLeft; the session goes on. Back to it: {again}", err=True)
        return 0


class Screen:
    """One viewer of a session, on our standard input and output."""

    def __init__(self, box: Box, session: GuestTerminal, *, leave_key: bool) -> None:
        self._box = box
        self._session = session
        self._leave_key = leave_key
        self._keys: asyncio.Queue[bytes] = asyncio.Queue()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        with _raw_terminal(), _reading_keys(self._keys), suppress(NotImplementedError):
            loop.add_signal_handler(signal.SIGWINCH, self._resized)
            try:
                return await self._until_end()
            finally:
                loop.remove_signal_handler(signal.SIGWINCH)
                await self._session.aclose()
        raise AssertionError("unreachable")

    async def _until_end(self) -> int:
        """Show and type until the session ends; a lost keeper is only a pause."""
        typing = asyncio.create_task(self._type())
        try:
            while True:
                showing = asyncio.create_task(self._show())
                await asyncio.wait({typing, showing}, return_when=asyncio.FIRST_COMPLETED)
                if typing.done() and typing.exception():
                    showing.cancel()
                    typing.result()
                try:
                    return await showing
                except (KeeperUnreachable, GuestUnreachable):
                    await self._reattach()
        finally:
            typing.cancel()
            await asyncio.gather(typing, return_exceptions=True)

    async def _show(self) -> int:
        if not self._session.created:
            await self._redraw()
        while data := await self._session.read():
            _write_all(data)
        return 0 if self._session.status is None else _shell_status(self._session.status)

    async def _reattach(self) -> None:
        """Back to the session, as soon as a keeper and the guest's agent answer again."""
        await self._session.aclose()
        deadline = asyncio.get_running_loop().time() + REATTACH_S
        while True:
            await self._refuse_unless_running()
            try:
                await self._attach()
                return
            except (KeeperUnreachable, GuestUnreachable):
                if asyncio.get_running_loop().time() > deadline:
                    raise
                # A keeper that is being replaced tells nobody when it will be there.
                await asyncio.sleep(0.1)

    async def _refuse_unless_running(self) -> None:
        """Attaching would start a box that somebody has just ended."""
        status = await self._box.status()
        if status.state is not MachineState.RUNNING:
            ended = f'the box "{self._box.name}" is {status.state.value}'
            raise WrongState(f"{ended}: {status.why}" if status.why else ended)

    async def _attach(self) -> None:
        columns, rows = _size()
        try:
            self._session = await self._box.terminal(
                self._session.name, columns=columns, rows=rows, create=False
            )
        except GuestRefused as gone:
            raise WrongState("the session is gone: its box was started anew") from gone

    async def _redraw(self) -> None:
        """Full-screen programs paint themselves anew when their window changes size."""
        columns, rows = _size()
        await self._session.resize(columns, max(1, rows - 1))
        await self._session.resize(columns, rows)

    async def _type(self) -> None:
        while True:
            keys = await self._keys.get()
            if not keys:
                await self._session.write(END_OF_INPUT)
                return
            leaving = self._leave_key and LEAVE_KEY in keys
            if leaving:
                keys = keys[: keys.index(LEAVE_KEY)]
            with suppress(KeeperUnreachable, GuestUnreachable):
                await self._session.write(keys)
            if leaving:
                raise Left

    def _resized(self) -> None:
        async def tell() -> None:
            with suppress(Fault):
                await self._session.resize(*_size())

        self._telling = asyncio.ensure_future(tell())


def _size() -> tuple[int, int]:
    for descriptor in (0, 1, 2):
        with suppress(OSError):
            size = os.get_terminal_size(descriptor)
            if size.columns and size.lines:
                return size.columns, size.lines
    return 80, 24


def _with_term(env: dict[str, str]) -> dict[str, str]:
    return {"TERM": os.environ.get("TERM", "xterm-256color"), **env}


def _shell_status(status: int) -> int:
    return status if status >= 0 else 128 - status


@contextmanager
def _raw_terminal() -> Iterator[None]:
    if not os.isatty(0):
        yield
        return
    before = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSADRAIN)  # What was typed meanwhile is for the guest.
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


@contextmanager
def _reading_keys(keys: asyncio.Queue[bytes]) -> Iterator[None]:
    """Standard input into the queue; files cannot be polled and are read at once instead."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        try:
            data = os.read(0, 65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        keys.put_nowait(data)
        if not data:
            loop.remove_reader(0)

    try:
        loop.add_reader(0, read)
    except (PermissionError, ValueError, OSError):
        keys.put_nowait(sys.stdin.buffer.read())
        keys.put_nowait(b"")
    try:
        yield
    finally:
        loop.remove_reader(0)


def _write_all(data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(1, view) :]
        except BlockingIOError:
            import select

            select.select([], [1], [])
