"""A home of its own for tests: the command line run in it, its processes found, nothing left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from boxgrove.core.inventory import take_inventory
from boxgrove.core.paths import Paths
from boxgrove.core.store import Store
from vm_backends.keeper.record import read_record

ROOT = Path(__file__).resolve().parents[2]
EVIDENCE = ("serial.log", "serial.log.old", "keeper.log", "qemu.log", "state.json", "machine.json")
SHARED = ("images", "boot", "cache")

Done = subprocess.CompletedProcess[bytes]


def wait_until(
    true: Callable[[], object], timeout: float = 30.0, what: str = "", every: float = 0.05
) -> None:
    """Wait for a condition that has no event a test could wait on; fail when it never comes."""
    deadline = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what or true}"
        time.sleep(every)


@dataclass
class Home:
    """One BOXGROVE_HOME. `environ` is what its commands run with."""

    path: Path
    runtime: Path
    environ: dict[str, str] = field(default_factory=dict)
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @staticmethod
    def make(**variables: str) -> Home:
        # Not tmp_path: sockets have short paths, and its names grow with those of the tests.
        top = Path(tempfile.mkdtemp(prefix="bgt-"))
        home = Home(top / "h", top / "r")
        home.path.mkdir(mode=0o700)
        home.runtime.mkdir(mode=0o700)
        home.environ = os.environ | home.variables() | variables
        home.environ["PYTHONPATH"] = str(ROOT)
        home.environ.pop("BOXGROVE_FAKE", None)
        home.environ |= variables
        return home

    def variables(self) -> dict[str, str]:
        return {"BOXGROVE_HOME": str(self.path), "BOXGROVE_RUNTIME": str(self.runtime)}

    def take_images_of(self, other: Path) -> None:
        """Start with the images, kernels and verdicts of another home."""
        for name in SHARED:
            if (other / name).is_dir():
                shutil.copytree(other / name, self.path / name, symlinks=True, dirs_exist_ok=True)

    # The command line

    def run(
        self,
        *words: str,
        input: bytes | None = None,
        timeout: float = 60,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Done:
        """One command to its end."""
        feed: dict[str, Any] = {"stdin": subprocess.DEVNULL} if input is None else {"input": input}
        return subprocess.run(
            self._command(words),
            capture_output=True,
            timeout=timeout,
            env=self.environ | dict(env or {}),
            cwd=cwd or self.path.parent,
            **feed,
        )

    def ok(self, *words: str, input: bytes | None = None, timeout: float = 60) -> str:
        """One command that must work; what it printed."""
        done = self.run(*words, input=input, timeout=timeout)
        assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stderr.decode()}"
        return done.stdout.decode()

    def start(self, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        """One command that goes on; `end_commands` ends it if the caller does not."""
        settings: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "env": self.environ,
            "cwd": self.path.parent,
        }
        self._started.append(subprocess.Popen(self._command(words), **(settings | options)))
        return self._started[-1]

    def end_commands(self) -> None:
        """End what `start` started and a failed test did not."""
        for command in self._started:
            if command.poll() is None:
                command.kill()
            command.wait()
            for pipe in (command.stdin, command.stdout, command.stderr):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
        self._started.clear()

    def _command(self, words: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "boxgrove", *words]

    # Looking

    def paths(self) -> Paths:
        return Paths.from_environment(self.environ)

    def show(self, name: str) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(self.ok("show", name, "--json"))
        return shown

    def state(self, name: str) -> str:
        return str(self.show(name)["state"])

    def folder(self, name: str) -> Path:
        return self.path / "boxes" / str(self.show(name)["id"])

    def box_folders(self) -> set[str]:
        folder = self.path / "boxes"
        return {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()

    def engine_pid(self, name: str) -> int:
        pid = read_record(self.folder(name)).pid
        assert pid, f"{name} has no machine: {self.show(name)}"
        return pid

    def keeper_pid(self, name: str) -> int:
        folder = str(self.folder(name))
        found = [
            pid for pid, words in processes() if "vm_backends.keeper" in words and folder in words
        ]
        assert len(found) == 1, f"keepers of {name}: {found}"
        return found[0]

    def processes(self) -> list[str]:
        """Everything that runs for this home: keepers, wrappers, engines, commands."""
        mark = f"{self.path}/"
        return [
            f"{pid}: {' '.join(words)[:160]}"
            for pid, words in processes()
            if any(mark in word for word in words)
        ]

    def processes_of(self, name: str) -> list[str]:
        identity = str(self.show(name)["id"])
        return [line for line in self._with_arguments() if identity in line]

    def _with_arguments(self) -> list[str]:
        return [f"{pid}: {' '.join(words)}" for pid, words in processes()]

    # Ending

    def end_boxes(self) -> None:
        """Pull every plug, in whatever state a failed test left things."""
        paths = self.paths()
        with Store.open(paths) as store:
            listed = take_inventory(paths, store).boxes
        for one in listed:
            if one.status.state.alive:
                self.run("kill", one.box.id)

    def remove(self) -> None:
        """End and remove everything; whatever still runs for this home is a failure."""
        try:
            self.end_commands()
            self.end_boxes()
            wait_until(lambda: not self.processes(), 20, "processes of the home end")
        except AssertionError as error:
            raise AssertionError(f"left running: {self.processes()}") from error
        finally:
            make_removable(self.path)
            shutil.rmtree(self.path.parent)

    def keep_evidence(self, target: Path) -> None:
        """Copy what tells why a test failed."""
        for folder in self.path.glob("boxes/*"):
            for name in EVIDENCE:
                if (folder / name).is_file():
                    (target / folder.name).mkdir(parents=True, exist_ok=True)
                    shutil.copy(folder / name, target / folder.name / name)


def processes() -> Iterator[tuple[int, list[str]]]:
    """Every live process with its words; kernel threads and the dead have none."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
        except OSError:
            continue
        if words:
            yield int(folder.name), words


def make_removable(folder: Path) -> None:
    for here, names, _ in os.walk(folder):
        for name in names:
            path = os.path.join(here, name)
            if not os.path.islink(path):
                os.chmod(path, 0o700)


@contextmanager
def a_home(**variables: str) -> Iterator[Home]:
    home = Home.make(**variables)
    try:
        yield home
    finally:
        home.remove()


def assert_fault(done: Done, code: str, *parts: str, status: int = 1) -> None:
    """The promise of every failure: a status, one plain sentence with its code, no traceback."""
    said = done.stderr.decode()
    assert done.returncode == status, f"status {done.returncode}: {said}"
    assert "Traceback" not in said, said
    sentences = [line for line in said.splitlines() if line.startswith("boxgrove: ")]
    assert len(sentences) == 1, said
    assert sentences[0].endswith(f"[{code}]"), said
    for part in parts:
        assert part in said, f"{part!r} is not in: {said}"
