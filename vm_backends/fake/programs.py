"""The commands of a pretend guest: enough of each for demos, pictures and tests."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import AsyncIterator

from vm_backends.fake.arithmetic import NotSimple, printed
from vm_backends.fake.filesystem import Node
from vm_backends.fake.process import Process, Program

KERNEL = "6.1.0-pretend"
USERS = {"root": (0, "/root"), "claw": (1000, "/home/claw")}
_PIECE = 16 * 1024


def _flags(process: Process) -> tuple[str, list[str]]:
    """All short options as one string, and the other arguments."""
    words = process.argv[1:]
    flags = [word[1:] for word in words if word.startswith("-") and len(word) > 1]
    return "".join(flags), [w for w in words if not w.startswith("-") or len(w) == 1]


async def _bytes(process: Process, name: str = "-") -> AsyncIterator[bytes]:
    """A file, a device or standard input, piece by piece."""
    path = process.path(name)
    if name == "-":
        while data := await process.stdin.read():
            yield data
    elif path in ("/dev/zero", "/dev/urandom"):
        while True:
            await process.world.clock.gate()
            yield os.urandom(_PIECE) if path.endswith("random") else bytes(_PIECE)
    elif path == "/proc/uptime":
        yield f"{process.world.clock.uptime_s:.2f} 0.00\n".encode()
    elif path != "/dev/null":
        data = process.world.fs.read(path)
        for at in range(0, len(data), _PIECE):
            await process.world.clock.gate()
            yield data[at : at + _PIECE]


async def _cat(process: Process) -> int:
    for name in _flags(process)[1] or ["-"]:
        async for data in _bytes(process, name):
            await process.stdout.write(data)
    return 0


async def _chmod(process: Process) -> int:
    mode, *names = process.argv[1:]
    for name in names:
        process.world.fs.chmod(process.path(name), int(mode, 8) if mode.isdigit() else 0o755)
    return 0


async def _date(process: Process) -> int:
    form = next((word[1:] for word in process.argv[1:] if word[:1] == "+"), "%c UTC")
    await process.say(time.strftime(form, time.gmtime(process.world.clock.wall_s)) + "\n")
    return 0


async def _echo(process: Process) -> int:
    words, end = process.argv[1:], "\n"
    if words[:1] == ["-n"]:
        words, end = words[1:], ""
    await process.say(" ".join(words) + end)
    return 0


async def _env(process: Process) -> int:
    await process.say("".join(f"{key}={value}\n" for key, value in process.env.items()))
    return 0


async def _false(process: Process) -> int:
    return 1


async def _head(process: Process) -> int:
    words = process.argv[1:]
    names = [word for word in words[2:] if word != "-"] or ["-"]
    if len(words) < 2 or words[0] not in ("-c", "-n") or not words[1].isdigit():
        words, names = ["-n", "10"], words or ["-"]
    left = int(words[1])
    async for data in _bytes(process, names[0]):
        if words[0] == "-c":
            piece = data[:left]
            left -= len(piece)
        else:
            lines = data.splitlines(keepends=True)[:left]
            piece = b"".join(lines)
            left -= len(lines)
        await process.stdout.write(piece)
        if left <= 0:
            break
    return 0


async def _hostname(process: Process) -> int:
    await process.say(process.world.hostname + "\n")
    return 0


async def _id(process: Process) -> int:
    uid, user = USERS[process.user][0], process.user
    number = process.argv[1:] == ["-u"]
    await process.say(f"{uid}\n" if number else f"uid={uid}({user}) gid={uid}({user})\n")
    return 0


async def _kill(process: Process) -> int:
    words = process.argv[1:]
    number = 15
    if words and words[0][:1] == "-":
        name = words.pop(0)[1:].removeprefix("SIG")
        number = {"TERM": 15, "KILL": 9, "INT": 2, "HUP": 1}.get(name, 0)
        number = int(name) if name.isdigit() else number
    for word in words:
        target = process.world.processes.get(int(word) if word.isdigit() else 0)
        if target is None:
            return await process.complain(f"{word}: No such process")
        target.signal(number)
    return 0


async def _ln(process: Process) -> int:
    flags, names = _flags(process)
    if len(names) != 2 or "s" not in flags:
        return await process.complain("only `ln -s TARGET NAME` is known here")
    process.world.fs.symlink(names[0], process.path(names[1]))
    return 0


async def _ls(process: Process) -> int:
    flags, names = _flags(process)
    fs = process.world.fs
    for name in names or ["."]:
        node = fs.lookup(process.path(name), follow="l" not in flags)
        if node.kind == "d":
            shown = [
                (n, c) for n, c in sorted(node.children.items()) if n[0] != "." or "a" in flags
            ]
        else:
            shown = [(name, node)]
        if "l" in flags:
            await process.say("".join(_long(child, label) for label, child in shown))
        else:
            between = "  " if process.terminal is process.stdout and "1" not in flags else "\n"
            await process.say(between.join(label for label, _ in shown) + ("\n" if shown else ""))
    return 0


def _long(node: Node, name: str) -> str:
    letters = "".join(
        letter if node.mode >> (8 - place) & 1 else "-" for place, letter in enumerate("rwxrwxrwx")
    )
    owner = "claw" if node.uid == 1000 else "root"
    when = time.strftime("%b %d %H:%M", time.gmtime(node.mtime_ns / 1e9))
    kind = "-" if node.kind == "f" else node.kind
    arrow = f" -> {node.target}" if node.kind == "l" else ""
    return f"{kind}{letters} {owner} {owner} {node.size:>8} {when} {name}{arrow}\n"


async def _mkdir(process: Process) -> int:
    flags, names = _flags(process)
    for name in names:
        process.world.fs.mkdir(process.path(name), parents="p" in flags)
    return 0


async def _poweroff(process: Process) -> int:
    process.world.power(process.argv[0].endswith("reboot"))
    return 0


async def _ps(process: Process) -> int:
    lines = ["  PID USER     COMMAND\n", "    1 root     agent\n"]
    for one in list(process.world.processes.values()):
        lines.append(f"{one.pid:>5} {one.user:<8} {' '.join(one.argv)}\n")
    await process.say("".join(lines))
    return 0


async def _pwd(process: Process) -> int:
    await process.say(process.cwd + "\n")
    return 0


async def _python(process: Process) -> int:
    words = process.argv[1:]
    if words[:1] in (["--version"], ["-V"]):
        await process.say("Python 3.11.2\n")
        return 0
    if len(words) < 2 or words[0] != "-c":
        return await process.complain("this pretend Python knows only -c and --version", 2)
    try:
        await process.say(printed(words[1]))
    except NotSimple as error:
        return await process.complain(str(error))
    return 0


async def _rm(process: Process) -> int:
    flags, names = _flags(process)
    for name in names:
        try:
            process.world.fs.remove(process.path(name), recursive="r" in flags)
        except FileNotFoundError:
            if "f" not in flags:
                raise
    return 0


async def _seq(process: Process) -> int:
    try:
        numbers = [int(word) for word in process.argv[1:]]
        first, step, last = {1: (1, 1, *numbers), 2: (numbers[0], 1, numbers[-1])}.get(
            len(numbers), tuple(numbers)
        )
    except (ValueError, IndexError):
        return await process.complain("give it whole numbers: seq [FIRST [STEP]] LAST")
    for at in range(first, last + 1, step * 1000) if step > 0 else ():
        await process.world.clock.gate()
        piece = range(at, min(at + step * 1000, last + 1), step)
        await process.say("".join(f"{number}\n" for number in piece))
    return 0


async def _sha256sum(process: Process) -> int:
    for name in process.argv[1:] or ["-"]:
        digest = hashlib.sha256()
        async for data in _bytes(process, name):
            digest.update(data)
        await process.say(f"{digest.hexdigest()}  {name}\n")
    return 0


async def _sleep(process: Process) -> int:
    try:
        seconds = sum(float(word) for word in process.argv[1:])
    except ValueError:
        return await process.complain("give it a number of seconds")
    await process.world.clock.sleep(seconds)
    return 0


async def _sync(process: Process) -> int:
    await process.world.save()
    return 0


async def _touch(process: Process) -> int:
    for name in process.argv[1:]:
        process.world.fs.touch(process.path(name))
    return 0


async def _true(process: Process) -> int:
    return 0


async def _uname(process: Process) -> int:
    parts = {
        "s": "Linux",
        "n": process.world.hostname,
        "r": KERNEL,
        "v": "#1 SMP PREEMPT_DYNAMIC",
        "m": os.uname().machine,
        "o": "GNU/Linux",
    }
    flags = _flags(process)[0] or "s"
    chosen = [text for flag, text in parts.items() if flag == "a" or flag in flags or "a" in flags]
    await process.say(" ".join(chosen) + "\n")
    return 0


async def _wc(process: Process) -> int:
    flags, names = _flags(process)
    lines = words = size = 0
    inside = False
    async for data in _bytes(process, names[0] if names else "-"):
        size += len(data)
        lines += data.count(b"\n")
        words += len(data.split()) - (inside and not data[:1].isspace())
        inside = not data[-1:].isspace()
    counts = {"l": lines, "w": words, "c": size}
    shown = [str(count) for flag, count in counts.items() if not flags or flag in flags]
    await process.say(" ".join(shown + names[:1]) + "\n")
    return 0


async def _whoami(process: Process) -> int:
    await process.say(process.user + "\n")
    return 0


async def _yes(process: Process) -> int:
    word = " ".join(process.argv[1:]) or "y"
    line = f"{word}\n".encode("utf-8", "surrogateescape")
    block = line * max(1, 8192 // len(line))
    while True:
        await process.world.clock.gate()
        await process.stdout.write(block)


PROGRAMS: dict[str, Program] = {
    "cat": _cat,
    "chmod": _chmod,
    "date": _date,
    "echo": _echo,
    "env": _env,
    "false": _false,
    "head": _head,
    "hostname": _hostname,
    "id": _id,
    "kill": _kill,
    "ln": _ln,
    "ls": _ls,
    "mkdir": _mkdir,
    "poweroff": _poweroff,
    "ps": _ps,
    "pwd": _pwd,
    "python3": _python,
    "reboot": _poweroff,
    "rm": _rm,
    "seq": _seq,
    "sha256sum": _sha256sum,
    "sleep": _sleep,
    "sync": _sync,
    "touch": _touch,
    "true": _true,
    "uname": _uname,
    "wc": _wc,
    "whoami": _whoami,
    "yes": _yes,
}
