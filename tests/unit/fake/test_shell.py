"""The pretend shell and its commands, asked the way a host asks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vm_backends.conformance import Bench
from vm_backends.errors import GuestRefused
from vm_backends.fake.arithmetic import NotSimple, printed
from vm_backends.fake.words import BadSyntax, parse

LINES = {
    "echo hi": (0, "hi\n", ""),
    "exit 7": (7, "", ""),
    "true && echo yes || echo no": (0, "yes\n", ""),
    "false && echo yes || echo no": (0, "no\n", ""),
    "false; echo $?": (0, "1\n", ""),
    "echo a > f; echo b >> f; cat f": (0, "a\nb\n", ""),
    "cat < f": (1, "", "sh: /root/f: No such file or directory\n"),
    "echo err >&2": (0, "", "err\n"),
    "nope 2> /dev/null; nope 2>&1": (127, "", "sh: nope: not found\n" * 2),
    "cat missing 2>&1": (1, "cat: /root/missing: No such file or directory\n", ""),
    "seq 3 | cat | wc -l": (0, "3\n", ""),
    "yes | head -c 6": (0, "y\ny\ny\n", ""),
    "yes | true": (0, "", ""),
    "mkdir -p a/b && cd a/b && pwd && ls ..": (0, "/root/a/b\nb\n", ""),
    "touch x; rm x; ls": (0, "", ""),
    "rm x": (1, "", "rm: /root/x: No such file or directory\n"),
    "X=1; echo \"$X\" '$X' \\$X ${X}2": (0, "1 $X $X 12\n", ""),
    "X=1 env | head -n 1; echo [$X]": (0, None, ""),
    "whoami; hostname; id -u": (0, "root\ncheck-1\n0\n", ""),
    "ln -s f g; echo in > g; cat f": (0, "in\n", ""),
    "echo '#!/bin/sh\necho script' > s; chmod 755 s; ./s": (0, "script\n", ""),
    "echo x > s; ./s": (126, "", "sh: ./s: Permission denied\n"),
    "python3 -c 'print(6*7)'": (0, "42\n", ""),
    "python3 -c 'import os'": (1, "", "python3: this pretend Python only prints and does sums\n"),
    "printf x": (127, "", "sh: printf: not found\n"),
    "echo 'no end": (2, "", "sh: syntax error: a ' has no end\n"),
    "sleep 1 &": (2, "", "sh: syntax error: & is more than this pretend shell knows\n"),
    "wc -c /bin": (1, "", "wc: /bin: Is a directory\n"),
    "echo hi # a comment": (0, "hi\n", ""),
    "sleep x": (1, "", "sleep: give it a number of seconds\n"),
    "chmod": (2, "", "chmod: these arguments are more than it knows\n"),
}


@pytest.mark.parametrize("line", LINES)
async def test_lines(line: str, fake_bench: Bench) -> None:
    async with fake_bench as bench:
        _, guest = await bench.running()
        result = await guest.exec("sh", "-c", line)
    status, stdout, stderr = LINES[line]
    assert result.status == status
    assert stdout is None or result.stdout == stdout
    assert result.stderr == stderr


async def test_commands_without_a_shell(fake_bench: Bench) -> None:
    async with fake_bench as bench:
        _, guest = await bench.running()
        assert "check-1" in (await guest.exec("uname", "-a")).stdout
        env = await guest.exec("env", env={"A": "b"}, user="claw")
        assert {"A=b", "HOME=/home/claw", "USER=claw"} <= set(env.stdout.split())
        assert (await guest.exec("/bin/pwd", cwd="/tmp")).stdout == "/tmp\n"
        for argv, number in ((["nope"], 2), (["/etc/passwd"], 13), (["./true"], 2)):
            with pytest.raises(GuestRefused) as refused:
                await guest.exec(*argv)
            assert refused.value.errno == number
        with pytest.raises(GuestRefused, match="user nobody"):
            await guest.exec("true", user="nobody")


async def test_kill_and_ps(fake_bench: Bench) -> None:
    async with fake_bench as bench:
        _, guest = await bench.running()
        sleeping = await guest.start("sleep", "1000", stdin=False)
        assert f"{sleeping.pid} root     sleep 1000" in (await guest.exec("ps")).stdout
        assert (await guest.exec("kill", "-KILL", str(sleeping.pid))).ok

        async def nothing(data: bytes) -> None:
            raise AssertionError(data)

        assert await sleeping.pump(nothing, nothing) == -9
        assert not (await guest.exec("kill", str(sleeping.pid))).ok


@settings(deadline=None)
@given(st.text("abc \"'\\$;|&<>#\n~{}2", max_size=40))
def test_any_line_is_read_or_refused(line: str) -> None:
    try:
        pipelines = parse(line)
    except BadSyntax:
        return
    for pipeline in pipelines:
        for command in pipeline.commands:
            [word.expand({"a": "x"}) for word in command.words]


@settings(deadline=None)
@given(
    st.recursive(
        st.integers(0, 99).map(str),
        lambda e: st.tuples(e, st.sampled_from(["+", "-", "*", "//", "%"]), e).map(
            lambda t: f"({t[0]}{t[1]}{t[2]})"
        ),
        max_leaves=8,
    )
)
def test_sums_are_right(sum_: str) -> None:
    try:
        expected = f"{eval(sum_)}\n"
    except ZeroDivisionError:
        with pytest.raises(NotSimple, match="ZeroDivisionError"):
            printed(f"print({sum_})")
    else:
        assert printed(f"print({sum_})") == expected


@pytest.mark.parametrize(
    "code",
    [
        "print(9**9**9)",
        "print('x' * 10**9)",
        "print('%99999999999d' % 1)",
        "print(__import__('os'))",
        "print((1).__class__)",
        "x = 1",
        "(" * 500,
        "print(" + "-" * 5000 + "1)",
        "print(1 .bit_length())",
    ],
)
def test_nothing_large_or_clever_is_evaluated(code: str) -> None:
    with pytest.raises(NotSimple):
        printed(code)
