"""The files of an attempt: made anew, and nobody else's until all are there."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from workerd.core.ids import Key
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
