"""Which package sources a Debian image is built from: those of this host, if it is a Debian.

No host name is written down here. On other systems mmdebstrap knows Debian's own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from boxgrove.images import apt

DEFAULT_SUITE = "stable"
_ALIASES = frozenset({"stable", "oldstable", "testing", "unstable", "sid"})
_TAILS = ("", "-updates", "-security", "/updates")
_ONE_LINE = re.compile(
    r"^deb\s+(?:\[(?P<options>[^\]]*)\]\s*)?(?P<uri>\S+)\s+(?P<suite>\S+)(?P<rest>.*)$"
)


@dataclass(frozen=True, slots=True)
class Source:
    """One place of one suite, as apt's one-line format has it."""

    uri: str
    suite: str
    components: tuple[str, ...]
    signed_by: str = ""

    def line(self) -> str:
        options = f"[signed-by={self.signed_by}] " if self.signed_by else ""
        return f"deb {options}{self.uri} {self.suite} main"


def wanted_suite(env: Mapping[str, str] = os.environ) -> str:
    """The Debian release to build: the user's choice, the host's own, or the stable one."""
    if chosen := env.get("BOXGROVE_DEBIAN_SUITE"):
        return chosen
    host = apt.os_release()
    own = host.get("VERSION_CODENAME", "") if host.get("ID") == "debian" else ""
    return own or DEFAULT_SUITE


def host_lines(suite: str, folder: Path = Path("/etc/apt")) -> list[str]:
    """The host's Debian sources, pointed at `suite`; empty where the host is no Debian."""
    host = apt.os_release()
    if host.get("ID") != "debian":
        return []
    own = host.get("VERSION_CODENAME", "")
    lines: dict[str, None] = {}
    for source in read_all(folder):
        for tail in _TAILS:
            base = source.suite.removesuffix(tail) if tail else source.suite
            if base + tail == source.suite and base in {own, *_ALIASES} and _is_debian(source):
                moved = Source(source.uri, suite + tail, source.components, source.signed_by)
                lines[moved.line()] = None
    return list(lines)


def _is_debian(source: Source) -> bool:
    """Other vendors' sources use Debian's suite names too, but not its keys."""
    own_key = not source.signed_by or "debian-archive" in source.signed_by
    remote = source.uri.split(":", 1)[0] in ("http", "https", "mirror+http", "mirror+https")
    return own_key and remote and "main" in source.components


def read_all(folder: Path) -> Iterator[Source]:
    """Every enabled binary source of an apt folder, both formats."""
    parts = folder / "sources.list.d"
    for path in (folder / "sources.list", *sorted(parts.glob("*.list"))):
        yield from _one_line(_text(path))
    for path in sorted(parts.glob("*.sources")):
        yield from _stanzas(_text(path))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _one_line(text: str) -> Iterator[Source]:
    for line in text.splitlines():
        if found := _ONE_LINE.match(line.split("#", 1)[0].strip()):
            options = dict(part.partition("=")[::2] for part in (found["options"] or "").split())
            signed_by = options.get("signed-by", "")
            yield Source(found["uri"], found["suite"], tuple(found["rest"].split()), signed_by)


def _stanzas(text: str) -> Iterator[Source]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for stanza in re.split(r"\n\s*\n", "\n".join(lines)):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line[:1].isspace():
                fields[name] = fields.get(name, "") + "\n" + line.strip()
            else:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        if fields.get("enabled", "yes") == "no" or "deb" not in fields.get("types", "").split():
            continue
        # A key that is written out in place cannot be put on one line.
        signed_by = fields.get("signed-by", "")
        signed_by = "" if "\n" in signed_by else signed_by
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                yield Source(uri, suite, tuple(fields.get("components", "").split()), signed_by)
