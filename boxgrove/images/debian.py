"""The `debian` image: a small real Debian, made by mmdebstrap as root or as an ordinary user."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from boxgrove.images import process, sources
from boxgrove.images.errors import ImageFailed
from boxgrove.images.process import ToolFailed, tool
from boxgrove.images.tree import Tree
from boxgrove.images.workshop import MIB, Workshop
from vm_backends.errors import NoSpace
from vm_backends.events import Progress

RECIPE = "debian-2"
CLAW = (1000, 1000)
PACKAGES = (
    # What a person, or an agent that works like one, reaches for on the first day. git is the
    # one large guest (95 MB with perl); everything else is one `apt install` away.
    *("apt", "bash", "ca-certificates", "curl", "git", "iproute2", "less", "libnss-myhostname"),
    *("netbase", "openssh-client", "procps", "python3", "python3-venv", "sudo", "tmux", "unzip"),
    *("vim", "xz-utils"),
)
LEFT_OUT = ("/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/doc/*")
APT_OPTIONS = ('APT::Install-Recommends "false"', 'Acquire::Languages "none"')
KEPT = ("/usr/share/doc/*/copyright",)
TEMPORARY_BYTES = 700 * MIB
MODES = {"etc/sudoers.d/claw": 0o440}
_HOOKS = Path("/usr/share/mmdebstrap/hooks/maybe-merged-usr")
_OFFLINE = re.compile(
    r"Temporary failure resolving|Could not (?:resolve|connect)|Network is unreachable"
    r"|Connection (?:timed out|refused|failed)|Unable to connect|No route to host"
)
Listener = Callable[[Progress], None]


class Debian:
    """`skeleton` holds the files that are laid over the finished tree."""

    space_bytes = 1500 * MIB
    least_bytes = 256 * MIB

    def __init__(self, skeleton: Path) -> None:
        self._skeleton = skeleton
        self._packages: frozenset[str] = frozenset()
        self._suite = sources.wanted_suite()

    async def made_from(self, place: Workshop, progress: Listener) -> str:
        """The recipe and the exact packages that apt would install today."""
        progress(Progress("Reading the package lists"))
        output = await self._mmdebstrap(place, "/dev/null", ["--format=null", "--simulate"], None)
        found = re.findall(r"^Inst (\S+) \((\S+)", output, re.MULTILINE)
        self._packages = frozenset(name for name, _ in found)
        if not found:
            raise ImageFailed("mmdebstrap did not say which packages it would install")
        files = [(str(p.relative_to(self._skeleton)), p.read_text()) for p in self._files()]
        return repr((RECIPE, self._suite, sorted(set(found)), LEFT_OUT, KEPT, files))

    async def plant(self, tree: Tree, place: Workshop, progress: Listener) -> None:
        archive = place.folder / "root.tar"
        watcher = InstallWatcher(len(self._packages), progress)
        await self._mmdebstrap(place, str(archive), ["--format=tar"], watcher.line)
        size, loop = archive.stat().st_size, asyncio.get_running_loop()

        def seen(offset: int) -> None:
            report = Progress("Unpacking the tree", offset // MIB, size // MIB)
            loop.call_soon_threadsafe(progress, report)

        await asyncio.to_thread(tree.unpack, archive, seen)
        archive.unlink()
        await asyncio.to_thread(self._dress, tree)

    async def _mmdebstrap(
        self,
        place: Workshop,
        target: str,
        more: list[str],
        on_line: Callable[[str], None] | None,
    ) -> str:
        program = tool("mmdebstrap", "mmdebstrap")
        command = [program, "--verbose", "--variant=minbase", *more]
        if os.geteuid() == 0:
            # As root it mounts /proc and parts of /dev into its tree. In a mount namespace of its
            # own these vanish with it, even when it is killed, and nothing of the host is in reach.
            command = [tool("unshare", "util-linux"), "--mount", "--", *command]
        command.append("--include=" + ",".join(PACKAGES))
        command += [f"--aptopt={option}" for option in APT_OPTIONS]
        command += [f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT]
        command += [f"--dpkgopt=path-include={pattern}" for pattern in KEPT]
        # The tree is thrown away if anything fails: no need to wait for the disk at every file.
        command.append("--dpkgopt=force-unsafe-io")
        if _HOOKS.is_dir():
            # Merged from the start, instead of by a package that drags all of perl along.
            command.append(f"--hook-dir={_HOOKS}")
        command += [self._suite, target, *sources.host_lines(self._suite)]
        env = {"TMPDIR": str(_temporary(place)), **await _proxies(place)}
        try:
            return await process.run(command, place.log, env=env, on_line=on_line)
        except ToolFailed as error:
            raise _explained(error, self._suite) from error

    def _files(self) -> list[Path]:
        return sorted(path for path in self._skeleton.rglob("*") if path.is_file())

    def _dress(self, tree: Tree) -> None:
        """What makes the plain tree a box's: no traces of the host, a user, our few files."""
        for pattern in ("dev/*", "run/*", "tmp/*", "var/log/apt", "var/log/*.log", "etc/*-"):
            tree.remove(pattern)
        for pattern in ("var/lib/apt/lists/*_*", "var/cache/apt/*.bin", "var/cache/debconf/*-old"):
            tree.remove(pattern)
        # Owned by whoever fetched, which differs between root and others; apt makes them anew.
        for pattern in ("var/lib/apt/lists/partial", "var/cache/apt/archives/partial"):
            tree.remove(pattern)
        for pattern in ("etc/apt/apt.conf.d/99mmdebstrap", "etc/dpkg/dpkg.cfg.d/99mmdebstrap"):
            tree.remove(pattern)
        # The first packages are unpacked before dpkg knows what to leave out.
        for pattern in ("man/*", "info/*", "locale/*", "doc/*/[!c]*", "doc/*/c[!o]*"):
            tree.remove(f"usr/share/{pattern}")
        tree.file("etc/hostname", b"box\n")
        for path in ("etc/resolv.conf", "etc/machine-id"):
            tree.file(path, b"")
        _add_claw(tree)
        for file in self._files():
            path = str(file.relative_to(self._skeleton))
            tree.file(path, file.read_bytes(), MODES.get(path, 0o644))
        tree.edit("etc/bash.bashrc", lambda text: text + "\n. /etc/boxgrove.bashrc\n")


class InstallWatcher:
    """Turns apt's and dpkg's words into one honest bar.

    Every package is fetched, unpacked and set up once: three steps each, counted as they happen.
    """

    STEPS = (
        (re.compile(r"^Get:\d+ \S+ \S+ \S+ (\S+) \S+ \S+ \["), "Fetching packages"),
        (re.compile(r"^Unpacking ([^\s:]+)"), "Unpacking packages"),
        (re.compile(r"^Setting up ([^\s:]+)"), "Setting up packages"),
    )

    def __init__(self, packages: int, progress: Listener) -> None:
        self._total = packages * len(self.STEPS)
        self._seen: set[tuple[int, str]] = set()
        self._progress = progress

    def line(self, text: str) -> None:
        for number, (pattern, step) in enumerate(self.STEPS):
            found = pattern.match(text)
            if found and (number, found[1]) not in self._seen:
                self._seen.add((number, found[1]))
                self._progress(Progress(step, min(len(self._seen), self._total), self._total))


def _add_claw(tree: Tree) -> None:
    """The user of the box: may become root without a password, as the box is theirs."""
    tree.edit("etc/passwd", lambda t: t + "claw:x:1000:1000:claw,,,:/home/claw:/bin/bash\n")
    tree.edit("etc/group", lambda t: _join(t, "sudo") + "claw:x:1000:\n")
    tree.edit("etc/gshadow", lambda t: _join(t, "sudo") + "claw:!::\n")
    # The day of the last password change is the day of the build: it would make images differ.
    same_day = re.compile(r"^([^:]*:[^:]*):\d+:", re.MULTILINE)
    line = "claw:*:19723:0:99999:7:::\n"
    tree.edit("etc/shadow", lambda t: same_day.sub(r"\1:19723:", t) + line)
    tree.folder("home/claw", 0o755, CLAW)
    for file in sorted((tree.root / "etc/skel").iterdir()):
        tree.file(f"home/claw/{file.name}", file.read_bytes(), 0o644, CLAW)


def _join(text: str, group: str) -> str:
    """The group file with claw in `group`; its members are the last field of a line."""
    return re.sub(rf"^({group}:.*?)$", r"\1claw", text, count=1, flags=re.MULTILINE)


def _temporary(place: Workshop) -> Path:
    """A folder for mmdebstrap's tree.

    For root it is ours, and goes with it. For others the tree belongs to subordinate users, who
    cannot reach into a private home, so it is a public temporary folder, tidied by mmdebstrap.
    """
    if os.geteuid() == 0:
        folder = place.folder / "mmdebstrap"
        folder.mkdir(exist_ok=True)
        return folder
    choices = [Path(p) for p in (os.environ.get("TMPDIR", ""), "/var/tmp", "/tmp") if p]
    public = [path for path in choices if _is_public(path)]
    for path in public:
        if shutil.disk_usage(path).free >= TEMPORARY_BYTES:
            return path
    raise NoSpace(
        f"building Debian takes {TEMPORARY_BYTES // MIB} MiB in a temporary folder, "
        f"and neither of {', '.join(map(str, public)) or 'the usual ones'} has that"
    )


def _is_public(path: Path) -> bool:
    try:
        return all(p.stat().st_mode & 0o001 for p in (path, *path.resolve().parents))
    except OSError:
        return False


async def _proxies(place: Workshop) -> dict[str, str]:
    """The proxies that the host's apt is told to use; mmdebstrap starts from a clean slate."""
    found = {}
    for scheme in ("http", "https"):
        option = f"Acquire::{scheme}::Proxy"
        try:
            output = await process.run(["apt-config", "shell", "V", option], place.log)
        except (ToolFailed, OSError):
            return {}
        if match := re.match(r"V='(.+)'$", output.strip()):
            found[f"{scheme}_proxy"] = match[1]
    return found


def _explained(error: ToolFailed, suite: str) -> Exception:
    """mmdebstrap's failure in a sentence, where it is one that we know."""
    text = error.tail
    if _OFFLINE.search(text):
        return ImageFailed(
            f"the package sources of Debian {suite} could not be reached",
            hint="Check the network and try again. The starter image needs none.",
        )
    if "unable to pick chroot mode" in text or "newuidmap" in text or "subuid" in text:
        return ImageFailed(
            "this user may not build a Debian image: it has no range of subordinate users",
            hint="Install the package uidmap, then run `sudo usermod --add-subuids 100000-165535 "
            "--add-subgids 100000-165535 $USER`.",
        )
    if "NO_PUBKEY" in text or "not signed" in text:
        return ImageFailed(
            f"the keys that Debian {suite} is signed with are not on this computer",
            hint="Install the package debian-archive-keyring.",
        )
    return error
