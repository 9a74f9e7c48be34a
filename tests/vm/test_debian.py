"""The debian image as a person meets it: Python, bash, vim, sudo, a locale; and it lasts."""

from __future__ import annotations

import pytest

from tests.helpers.homes import Home
from tests.vm.conftest import MAKE_S, OpenTerminal
from tests.vm.test_clients import editor_survives

pytestmark = [pytest.mark.vm, pytest.mark.debian]


def test_the_first_tour(home: Home, debian: str) -> None:
    assert home.ok("exec", debian, "--", "python3", "-c", "print(6*7)") == "42\n"
    assert home.run("exec", debian, "--", "sh", "-c", "exit 7").returncode == 7
    assert home.run("exec", debian, "--", "cat", input=b"hi\n").stdout == b"hi\n"
    shown = home.show(debian)
    assert (shown["image"], shown["memory_mib"], shown["state"]) == ("debian", 1024, "running")


@pytest.mark.parametrize(
    "program", ["bash", "apt", "python3", "vim", "less", "tmux", "curl", "sudo"]
)
def test_what_it_comes_with(home: Home, debian: str, program: str) -> None:
    assert home.ok("exec", debian, "--", "sh", "-c", f"command -v {program}").strip()


def test_certificates_and_locale(home: Home, debian: str) -> None:
    home.ok("exec", debian, "--", "test", "-s", "/etc/ssl/certs/ca-certificates.crt")
    said = home.ok("exec", debian, "--", "python3", "-c", "print('grün 箱', len('箱'))")
    assert said == "grün 箱 1\n"
    assert "UTF-8" in home.ok("exec", debian, "--", "locale", "charmap")


def test_a_user_with_sudo(home: Home, debian: str) -> None:
    said = home.ok("exec", "-u", "claw", debian, "--", "sh", "-c", "whoami; sudo -n whoami; pwd")
    assert said.split() == ["claw", "root", "/home/claw"]


def test_packages_are_in_order(home: Home, debian: str) -> None:
    assert home.ok("exec", debian, "--", "dpkg", "--audit") == ""
    assert "ii" in home.ok("exec", debian, "--", "sh", "-c", "dpkg -l vim | tail -1")


def test_a_shell_is_bash_with_a_prompt(debian: str, open_terminal: OpenTerminal) -> None:
    terminal = open_terminal("shell", debian, "-u", "claw")
    terminal.keys("echo bash=$BASH_VERSION colours=$(tput colors)\r")
    terminal.expect("bash=5.")
    terminal.expect("colours=256")
    terminal.keys("exit\r")
    assert terminal.wait() == 0


def test_vim_survives_its_keeper(home: Home, debian: str, open_terminal: OpenTerminal) -> None:
    editor_survives(home, debian, open_terminal, "vim")


def test_stop_and_start_keep_files(home: Home, debian: str) -> None:
    home.ok("exec", debian, "--", "sh", "-c", "echo kept > /root/note")
    assert "force" not in home.ok("stop", debian)
    assert home.ok("exec", debian, "--", "cat", "/root/note", timeout=MAKE_S) == "kept\n"
    assert home.ok("exec", debian, "--", "hostname") == f"{debian}\n"
