"""Where things live: the right home, sockets that fit, folders that are ours alone."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from boxgrove.core.errors import HomeUnwritable, RuntimeUnsafe
from boxgrove.core.model import new_id
from boxgrove.core.paths import SOCKET_LIMIT, Paths

Start = Callable[..., "subprocess.Popen[str]"]
Finish = Callable[..., str]


@pytest.fixture
def short() -> Iterator[Path]:
    """tmp_path is often too long for a socket."""
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="bg"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("environ", "platform", "home"),
    [
        ({"HOME": "/h"}, "linux", "/h/.local/share/boxgrove"),
        ({"HOME": "/h", "XDG_DATA_HOME": "/d"}, "linux", "/d/boxgrove"),
        ({"HOME": "/h", "XDG_DATA_HOME": "d"}, "linux", "/h/.local/share/boxgrove"),
        (
            {"HOME": "/h", "XDG_DATA_HOME": "/d"},
            "darwin",
            "/h/Library/Application Support/Boxgrove",
        ),
        ({"HOME": "/h", "BOXGROVE_HOME": "/b/../c"}, "darwin", "/c"),
        ({"HOME": "/h", "BOXGROVE_HOME": "~/b"}, "linux", "/h/b"),
        ({"HOME": "/h", "BOXGROVE_HOME": ""}, "linux", "/h/.local/share/boxgrove"),
    ],
)
def test_home(environ: dict[str, str], platform: str, home: str) -> None:
    assert Paths.from_environment(environ, platform=platform).home == Path(home)


def test_a_relative_home_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Paths.from_environment({"BOXGROVE_HOME": "x"}).home == tmp_path / "x"


def test_the_runtime_folder_follows_xdg(short: Path) -> None:
    environ = {"BOXGROVE_HOME": "/h", "XDG_RUNTIME_DIR": str(short)}
    runtime = Paths.from_environment(environ).runtime
    assert runtime.parent == short / "boxgrove"
    assert len(runtime.name) == 6


def test_two_homes_never_share_sockets_and_one_home_always_does(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    a, b, link = (
        Paths.from_environment({"BOXGROVE_HOME": str(tmp_path / name)}).runtime
        for name in ("a", "b", "link")
    )
    assert a != b
    assert a == link


@pytest.mark.parametrize("why", ["missing", "long", "relative"])
def test_an_xdg_folder_that_will_not_do_is_passed_over(tmp_path: Path, why: str) -> None:
    folder = tmp_path / ("x" * 90)
    if why == "long":
        folder.mkdir()
    base = "run" if why == "relative" else str(folder)
    runtime = Paths.from_environment({"BOXGROVE_HOME": "/h", "XDG_RUNTIME_DIR": base}).runtime
    expected = {Path(f"/run/user/{os.getuid()}/boxgrove"), Path(f"/tmp/boxgrove-{os.getuid()}")}
    assert runtime.parent in expected


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_an_xdg_folder_of_another_user_is_passed_over(short: Path) -> None:
    os.chown(short, 12345, 12345)
    environ = {"BOXGROVE_HOME": "/h", "XDG_RUNTIME_DIR": str(short)}
    assert short not in Paths.from_environment(environ).runtime.parents


def test_a_chosen_runtime_folder_that_is_too_long_is_refused() -> None:
    with pytest.raises(RuntimeUnsafe) as caught:
        Paths.from_environment({"BOXGROVE_RUNTIME": "/tmp/" + "x" * 90})
    assert "too long" in caught.value.message
    assert caught.value.hint


def test_the_longest_socket_can_really_be_bound(short: Path) -> None:
    # As long as it may get: 85 bytes for the runtime folder.
    base = short / ("x" * (85 - len(str(short)) - len("/") - len("/123456")))
    paths = Paths.from_environment({"BOXGROVE_HOME": "/h", "BOXGROVE_RUNTIME": str(base)})
    paths.prepare_runtime()
    folder = paths.box_run(new_id())
    folder.mkdir()
    path = folder / "12345678"
    assert len(os.fsencode(path)) == SOCKET_LIMIT
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def test_prepare_makes_everything_for_us_alone_and_may_be_repeated(short: Path) -> None:
    paths = Paths.from_environment(
        {"BOXGROVE_HOME": str(short / "h"), "BOXGROVE_RUNTIME": str(short / "r")}
    )
    paths.prepare()
    paths.prepare()
    for folder in (paths.home, paths.boxes, paths.images, paths.boot, paths.trash, paths.cache):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(paths.runtime.stat().st_mode) == 0o700


def test_a_runtime_folder_open_to_others_is_closed(short: Path) -> None:
    paths = Paths(short / "h", short / "r" / "abcdef")
    paths.runtime.mkdir(parents=True)
    paths.runtime.chmod(0o755)
    paths.prepare_runtime()
    assert stat.S_IMODE(paths.runtime.stat().st_mode) == 0o700


def test_a_runtime_parent_that_others_may_write_is_refused(short: Path) -> None:
    paths = Paths(short / "h", short / "r" / "abcdef")
    paths.runtime.parent.mkdir()
    paths.runtime.parent.chmod(0o777)
    with pytest.raises(RuntimeUnsafe, match="others may write"):
        paths.prepare_runtime()
    paths.runtime.parent.chmod(0o1777)
    paths.prepare_runtime()


@pytest.mark.parametrize("which", ["runtime", "its parent"])
def test_a_link_in_place_of_the_runtime_folder_is_refused(short: Path, which: str) -> None:
    paths = Paths(short / "h", short / "r" / "abcdef")
    target = short / "elsewhere"
    target.mkdir()
    link = paths.runtime if which == "runtime" else paths.runtime.parent
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(target)
    with pytest.raises(RuntimeUnsafe, match="somebody else"):
        paths.prepare_runtime()
    assert not list(target.iterdir())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_runtime_folder_of_another_user_is_refused(short: Path) -> None:
    paths = Paths(short / "h", short / "r" / "abcdef")
    paths.runtime.parent.mkdir()
    os.chown(paths.runtime.parent, 12345, 12345)
    with pytest.raises(RuntimeUnsafe, match="somebody else"):
        paths.prepare_runtime()


def test_a_file_in_place_of_the_home_is_a_plain_sentence(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(HomeUnwritable) as caught:
        Paths(tmp_path / "home", tmp_path / "r" / "abcdef").prepare()
    assert caught.value.code == "home-unwritable"
    assert "a file is in its place" in caught.value.message
    assert "BOXGROVE_HOME" in caught.value.hint


@pytest.mark.parametrize("made", ["before", "never"])
def test_a_read_only_disk(
    start: Start, finish: Finish, own_mounts: tuple[str, ...], tmp_path: Path, made: str
) -> None:
    home = tmp_path / "disk" / "home"
    home.parent.mkdir()
    if made == "before":
        Paths(home, tmp_path / "run" / "abcdef").prepare()
    code = """
        import subprocess
        disk = str(home.parent)
        subprocess.run(["mount", "--bind", disk, disk], check=True)
        subprocess.run(["mount", "-o", "remount,ro,bind", disk], check=True)
        try:
            Paths(home, home.parent.parent / "run" / "abcdef").prepare()
        except Exception as error:
            print(error.code, error.message)
    """
    said = finish(start(code, home, *own_mounts))
    assert said.startswith(f"home-unwritable {home} cannot be written")


def test_a_box_id_is_never_a_path(tmp_path: Path) -> None:
    paths = Paths(tmp_path, tmp_path)
    for bad in ("../../etc", "", "a" * 31, "A" * 32, "a" * 31 + "/"):
        with pytest.raises(ValueError, match="not the id"):
            paths.box(bad)
        with pytest.raises(ValueError, match="not the id"):
            paths.box_run(bad)
