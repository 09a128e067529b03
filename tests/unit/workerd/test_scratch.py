"""The files of an attempt: made anew, and nobody else's until all are there."""

from __future__ import annotations

import errno
import os
import pwd
from pathlib import Path

import pytest

from workerd.core.ids import Key
from workerd.executors import scratch as module
from workerd.executors.scratch import Scratch

KEY = Key("run", 7)  # type: ignore[arg-type]  # NewTypes of these
USER = pwd.getpwuid(os.getuid())


def test_what_somebody_put_in_its_place_is_neither_written_to_nor_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("root's")
    with Scratch(tmp_path / "scratch", KEY, USER) as scratch:
        (scratch.path / "script").symlink_to(victim)
        with pytest.raises(FileExistsError):
            scratch.write("script", b"mine")
    assert victim.read_text() == "root's"


def test_a_directory_that_is_there_already_isnt_taken(tmp_path: Path) -> None:
    (tmp_path / "run-7").mkdir()
    with pytest.raises(FileExistsError), Scratch(tmp_path, KEY, USER):
        pass


def test_it_is_handed_over_when_all_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []
    monkeypatch.setattr(
        os,
        "fchown",
        lambda fd, _uid, _gid: given.append(Path(f"/proc/self/fd/{fd}").readlink().name),
    )
    with Scratch(tmp_path, KEY, USER) as scratch:
        scratch.write("payload", b"1")
        assert given == ["payload"]
        scratch.hand_over()
        assert given == ["payload", "run-7"]
    assert not scratch.path.exists()


def test_what_was_left_is_cleared_and_the_directory_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk may take none anew."""
    (tmp_path / "run-7").mkdir()
    (tmp_path / "run-7" / "payload").write_text("1")
    (tmp_path / "there").symlink_to(tmp_path.parent)
    (tmp_path / "file").write_text("1")
    before = tmp_path.stat().st_ino
    module.clear(tmp_path)
    assert [*tmp_path.iterdir()] == []
    assert tmp_path.stat().st_ino == before


def test_a_directory_that_couldnt_be_made_at_the_start_is_made_when_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    root = tmp_path / "scratch"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", full)
        module.clear(root)
    assert not root.exists()
    with Scratch(root, KEY, USER):
        assert (root.stat().st_mode & 0o777) == 0o711
