"""`exec`: a command in a box, with our input, its output and its exit status."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import click

from boxgrove.cli.context import Grove, box_argument, with_grove
from boxgrove.cli.main import tell
from boxgrove.cli.progress import meter
from boxgrove.core import sizes
from vm_backends.agent.client import GuestCommand
from vm_backends.errors import Fault, GuestRefused, TimedOut

EXIT_OURS = 125
"""Boxgrove itself failed: not a status that the command gave (as docker and env do it)."""
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127
EXIT_TIMED_OUT = 124
CHUNK = 256 * 1024


@click.command("exec", context_settings={"ignore_unknown_options": True})
@box_argument
@click.argument("command", metavar="-- CMD…", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("-t", "--tty", is_flag=True, help="Give it a terminal.")
@click.option("-n", "--no-stdin", is_flag=True, help="Give it no input.")
@click.option("-u", "--user", metavar="USER", help="Run it as this user of the box.")
@click.option("-w", "--cwd", default="", metavar="PATH", help="In this folder of the box.")
@click.option("-e", "--env", multiple=True, metavar="KEY=VALUE", help="Set a variable.")
@click.option("--timeout", metavar="TIME", help="End it after this long (30s, 10m); status 124.")
@with_grove
async def exec_command(
    grove: Grove, *, name: str, command: tuple[str, ...], tty: bool, no_stdin: bool,
    user: str | None, cwd: str, env: tuple[str, ...], timeout: str | None,
) -> int:  # fmt: skip
    """Run a command in a box. Its exit status becomes ours; a stopped box is started.

    \b
    Examples:
      boxgrove exec a -- python3 -c 'print(6*7)'
      echo hi | boxgrove exec a -- cat
      boxgrove exec -t a -- top
      boxgrove exec --timeout 30s a -- make test
    """
    timeout_s = sizes.parse_duration(timeout) if timeout else None
    variables = dict(_variable(text) for text in env)
    try:
        box = await grove.get(name)
        with meter(quiet_in_pipe=True) as show:
            await grove.service.ensure_running(box.row, show)
        if tty:
            from boxgrove.cli.terminal import run_in_terminal

            return await run_in_terminal(
                box, command, user=user, cwd=cwd, env=variables, timeout_s=timeout_s
            )
        running = await box.start_command(
            *command, user=user, cwd=cwd, env=variables, stdin=not no_stdin
        )
        with _handing_on_signals(running):
            result = await running.finish(
                input=None if no_stdin else _standard_input(),
                timeout_s=timeout_s,
                stdout=_Sink(1),
                stderr=_Sink(2),
            )
    except TimedOut as fault:
        return tell(fault, EXIT_TIMED_OUT)
    except GuestRefused as fault:
        return _refused(fault, command[0])
    except Fault as fault:
        return tell(fault, EXIT_OURS)
    except BrokenPipeError:
        return 128 + signal.SIGPIPE  # As in a pipe of ordinary commands: our reader has left.
    return result.shell_status


def _refused(fault: GuestRefused, program: str) -> int:
    """Statuses as a shell gives them, but only if it was the command itself that was refused."""
    if fault.message != os.strerror(fault.errno):
        return tell(fault, EXIT_OURS)  # Its user or its folder: the guest says which.
    shown = repr(program[:80])
    if fault.errno == errno.ENOENT:
        return tell(GuestRefused(f"the box has no command {shown}"), EXIT_NOT_FOUND)
    refused = GuestRefused(f"the box cannot run {shown}: {fault.message}")
    denied = fault.errno in (errno.EACCES, errno.ENOEXEC, errno.EISDIR, errno.ENOTDIR)
    return tell(refused, EXIT_NOT_EXECUTABLE if denied else EXIT_OURS)


def _variable(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.BadParameter(f"{text[:40]!r} is not KEY=VALUE", param_hint="--env")
    return key, value


@contextmanager
def _handing_on_signals(command: GuestCommand) -> Iterator[None]:
    """Ctrl-C and a polite end are for the command in the box; a second Ctrl-C is for us."""
    loop = asyncio.get_running_loop()
    ours = asyncio.current_task()
    assert ours
    tasks: set[asyncio.Task[None]] = set()
    interrupts = 0

    def hand_on(number: int) -> None:
        nonlocal interrupts
        interrupts += number == signal.SIGINT
        if interrupts > 1:
            ours.cancel()
            return
        task = loop.create_task(command.signal(number))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    caught = (signal.SIGINT, signal.SIGTERM)
    for number in caught:
        loop.add_signal_handler(number, hand_on, number)
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)


class _Sink:
    """Writes to one of our descriptors; a slow reader there slows the guest, as it should."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def __call__(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:
                await asyncio.to_thread(_wait_writable, self._descriptor)


def _wait_writable(descriptor: int) -> None:
    import select

    select.select([], [descriptor], [])


async def _standard_input() -> AsyncIterator[bytes]:
    """Our standard input in pieces, read by a thread that is never more than one piece ahead.

    A thread, because files and terminals cannot be waited for by the event loop.
    """
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes] = asyncio.Queue()
    wanted = threading.Semaphore(1)

    def read() -> None:
        while True:
            wanted.acquire()
            try:
                data = os.read(0, CHUNK)
            except BlockingIOError:
                import select

                select.select([0], [], [])
                wanted.release()
                continue
            except OSError:
                data = b""
            try:
                loop.call_soon_threadsafe(pieces.put_nowait, data)
            except RuntimeError:
                return  # The command has ended, and the loop with it.
            if not data:
                return

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while data := await pieces.get():
        wanted.release()
        yield data
