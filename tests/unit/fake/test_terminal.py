"""Sessions of the pretend guest: typing, several viewers, the ring and its gaps."""

from __future__ import annotations

import asyncio

from vm_backends.agent.frames import MAX_PAYLOAD, Frame
from vm_backends.agent.link import AgentLink, LinkChannel
from vm_backends.agent.protocol import Kind, Packer, Type, Unpacker, open_payload
from vm_backends.agent.pty import GuestTerminal
from vm_backends.conformance import Bench
from vm_backends.conformance.steps import until_printed
from vm_backends.fake.terminal import RING, Ring, Tty

PROMPT = b"claw@check-1:~$ "


async def _printed(terminal: GuestTerminal, words: bytes) -> bytes:
    seen = b""
    async with asyncio.timeout(10):
        while words not in seen:
            seen += await terminal.read()
    return seen


async def test_typing(fake_bench: Bench) -> None:
    async with fake_bench as bench:
        _, guest = await bench.running()
        terminal = await guest.session(user="claw")
        assert terminal.name == "s1" and terminal.created and terminal.replay == 0
        await _printed(terminal, PROMPT)
        await terminal.write("echo häx".encode() + b"\x7f\x7fi\x1b[A\r")
        seen = await _printed(terminal, b"hi\r\n" + PROMPT)
        assert seen.startswith("echo häx".encode() + b"\b \b" * 2 + b"i\r\n")
        await terminal.write(b"nonsense\x15cd /tmp\r")
        await _printed(terminal, b"claw@check-1:/tmp$ ")
        await terminal.write(b"half a line\x03")
        assert (await _printed(terminal, b"^C\r\nclaw@check-1:/tmp$ ")).startswith(b"half")
        await terminal.write(b"cat\rtwice\r")
        await _printed(terminal, b"twice\r\ntwice\r\n")
        await terminal.write(b"\x04sleep 1000\r")
        await _printed(terminal, b"sleep 1000\r\n")
        while not any("sleep" in line for line in (await guest.exec("ps")).stdout.splitlines()):
            pass
        await terminal.write(b"\x03")
        await _printed(terminal, b"^C\r\n")
        await terminal.write(b"echo $?\r")
        await _printed(terminal, b"130\r\n")
        await terminal.write(b"\x04")
        while await terminal.read():
            pass
        assert terminal.status == 0
        assert await guest.sessions() == []


async def test_two_viewers_and_one_that_comes_later(fake_bench: Bench) -> None:
    async with fake_bench as bench:
        _, guest = await bench.running()
        first = await guest.session("work", user="claw")
        second = await guest.session("work")
        assert not second.created and second.pid == first.pid
        await first.write(b"echo from''one\r")
        await until_printed(second, b"fromone\r\n")
        await second.resize(100, 30)
        await second.write(b"echo from''two\r")
        await until_printed(first, b"fromtwo\r\n")
        [info] = await guest.sessions()
        assert (info.name, info.columns, info.rows, info.viewers) == ("work", 100, 30, 2)
        await first.aclose()
        await second.aclose()
        third = await guest.session("work", create=False)
        assert third.replay > 0
        old = await _printed(third, b"fromtwo\r\n")
        assert old.index(b"fromone\r\n") < old.index(b"fromtwo\r\n")


async def _view(link: AgentLink, window: int) -> LinkChannel:
    packed = Packer().u8(1).text("s").text("").text("").texts([]).texts(["cat"]).u16(80).u16(24)
    channel = LinkChannel(link, open_payload(Kind.SESSION, packed.done(), window))
    assert (await channel.receive()).type == Type.OPENED
    return channel


async def _next(channel: LinkChannel) -> Frame:
    return await asyncio.wait_for(channel.receive(), 10)


async def test_a_slow_viewer_gets_a_gap_and_the_newest(fake_bench: Bench) -> None:
    async with fake_bench as bench:
        machine, guest = await bench.running()
        slow = await _view(machine.link, 10)
        keen = await guest.session("s")
        line = b"x" * 99 + b"\n"
        for _ in range(RING // 100):
            await keen.write(line)
            await _printed(keen, b"x" * 99 + b"\r\n" + b"x" * 99 + b"\r\n")
        assert (await _next(slow)).payload == b"x" * 10
        await slow.send(Type.CREDIT, Packer().u32(RING).done())
        gap = await _next(slow)
        assert gap.type == Type.GAP
        missed = Unpacker(gap.payload).u64()
        rest = b""
        while len(rest) < RING:
            rest += (await _next(slow)).payload
        assert 10 + missed + RING == 202 * (RING // 100)
        assert rest.endswith(b"x" * 99 + b"\r\n")


async def test_when_nobody_keeps_up_the_program_waits() -> None:
    ring = Ring()
    tty = Tty(ring, 80, 24)
    ring.cursors["slow"] = 0
    writing = asyncio.create_task(tty.write(bytes(2 * RING)))
    await asyncio.wait([writing], timeout=0.05)
    assert not writing.done() and ring.start == 0 and ring.end == RING
    ring.cursors["slow"] = 100_000
    ring.stir()
    await asyncio.wait([writing], timeout=0.05)
    assert not writing.done() and ring.end - 100_000 <= RING
    ring.cursors.clear()
    ring.stir()
    await asyncio.wait_for(writing, 5)
    assert ring.end == 2 * RING and ring.start == RING


async def test_a_line_without_end_is_bounded() -> None:
    ring = Ring()
    tty = Tty(ring, 80, 24)
    tty.type(b"a" * MAX_PAYLOAD)
    tty.type(b"\r")
    assert len(await tty.read()) == 4097
    for _ in range(100):
        tty.type(b"a" * 4000 + b"\r")
    assert sum(map(len, tty._lines)) <= MAX_PAYLOAD
