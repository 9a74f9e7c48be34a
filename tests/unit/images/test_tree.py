"""Trees from archives: what is taken over, what is refused, and that no link leads out."""

from __future__ import annotations

import io
import stat
import tarfile
from pathlib import Path

import pytest

from boxgrove.images import ImageFailed
from boxgrove.images.tree import Tree


def entry(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def archive(path: Path, *entries: tarfile.TarInfo, content: bytes = b"hello") -> Path:
    with tarfile.open(path, "w") as tar:
        for info in entries:
            if info.isreg():
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content) if info.isreg() else None)
    return path


def test_owners_modes_times_and_links_are_taken_over(tmp_path: Path) -> None:
    path = archive(
        tmp_path / "a.tar",
        entry("./", tarfile.DIRTYPE),
        entry("./etc", tarfile.DIRTYPE, mtime=1000),
        entry("./etc/shadow", mode=0o640, gid=42, mtime=2000),
        entry("./etc/same", tarfile.LNKTYPE, linkname="./etc/shadow"),
        entry("./etc/away", tarfile.SYMTYPE, linkname="/etc/passwd"),
        entry("./bin", tarfile.SYMTYPE, linkname="usr/bin"),
        entry("./su", mode=0o4755),
        entry("./null", tarfile.CHRTYPE, devmajor=1, devminor=3),
    )
    tree = Tree(tmp_path / "tree")
    tree.unpack(path)
    shadow = (tree.root / "etc/shadow").stat()
    assert stat.S_IMODE(shadow.st_mode) == 0o640
    assert (shadow.st_mtime, shadow.st_nlink) == (2000, 2)
    assert tree.owners["etc/shadow"] == (0, 42)
    assert (tree.root / "etc").stat().st_mtime == 1000
    assert (tree.root / "etc/away").readlink() == Path("/etc/passwd")
    assert stat.S_IMODE((tree.root / "su").stat().st_mode) == 0o4755
    assert not (tree.root / "null").exists()


@pytest.mark.parametrize(
    "entries",
    [
        [entry("../out")],
        [entry("a/../../out")],
        [entry("way", tarfile.SYMTYPE, linkname="/"), entry("way/out")],
        [entry("never/made/file")],
    ],
    ids=["above", "above within", "through a link", "no folder"],
)
def test_an_archive_cannot_leave_its_tree(tmp_path: Path, entries: list[tarfile.TarInfo]) -> None:
    tree = Tree(tmp_path / "tree")
    with pytest.raises(ImageFailed):
        tree.unpack(archive(tmp_path / "a.tar", *entries))
    assert not (tmp_path / "out").exists()


def test_nothing_goes_through_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious")
    tree = Tree(tmp_path / "tree")
    tree.link("way", str(outside))
    tree.link("file", str(outside / "precious"))
    tree.remove("way/*")
    tree.remove("*/precious")
    with pytest.raises(ImageFailed):
        tree.file("way/new", b"")
    tree.file("file", b"of the tree")
    assert [path.name for path in outside.iterdir()] == ["precious"]
    assert (outside / "precious").read_text() == "precious"
    tree.remove("way")
    assert (outside / "precious").exists()


def planted(folder: Path) -> Tree:
    tree = Tree(folder)
    tree.folder("etc")
    tree.file("etc/a", b"a", owner=(1000, 1000))
    tree.link("etc/b", "a")
    return tree


def test_the_digest_is_of_content_owner_mode_and_name(tmp_path: Path) -> None:
    first = planted(tmp_path / "1").digest()
    assert planted(tmp_path / "2").digest() == first
    changed = [planted(tmp_path / f"c{n}") for n in range(4)]
    changed[0].file("etc/a", b"A", owner=(1000, 1000))
    changed[1].file("etc/a", b"a")
    changed[2].file("etc/a", b"a", 0o600, (1000, 1000))
    changed[3].remove("etc/b")
    digests = {tree.digest() for tree in changed}
    assert len(digests) == 4
    assert first not in digests


def test_removing_forgets_the_owners_below(tmp_path: Path) -> None:
    tree = planted(tmp_path / "tree")
    tree.remove("et*")
    assert not tree.owners
    assert not list(tree.root.iterdir())
