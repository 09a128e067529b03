"""Files are replaced completely, all of them or none."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from schedctl.files import SECRET, File, write


@pytest.fixture
def open_to_all() -> Iterator[None]:
    """A umask that takes nothing from anybody."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_to_all")
def test_a_secret_is_never_readable_by_other_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The secret is private in the temporary file and in the file that it replaces."""
    seen = []
    synced = os.fsync

    def looking(opened: int) -> None:
        seen.extend(stat.S_IMODE(file.stat().st_mode) for file in tmp_path.glob(".*"))
        synced(opened)

    monkeypatch.setattr(os, "fsync", looking)
    file = tmp_path / "key"
    file.write_text("readable by all users")
    write(File(file, b"secret", SECRET))
    assert seen == [SECRET]
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"secret", SECRET)


def test_a_failed_write_replaces_no_file(tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.write_bytes(b"before")
    with pytest.raises(FileNotFoundError):
        write(File(first, b"after"), File(tmp_path / "nowhere" / "second", b"after"))
    assert first.read_bytes() == b"before"
    assert [*tmp_path.iterdir()] == [first], "nor is anything left beside it"


def test_an_unreplaceable_path_replaces_no_file(tmp_path: Path) -> None:
    first, folder = tmp_path / "first", tmp_path / "folder"
    first.write_bytes(b"before")
    folder.mkdir()
    with pytest.raises(IsADirectoryError):
        write(File(first, b"after"), File(folder, b"after"))
    assert first.read_bytes() == b"before"
    assert {*tmp_path.iterdir()} == {first, folder}


def test_a_failed_replacement_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write(File(tmp_path / "folder", b"content"))
    assert [*tmp_path.iterdir()] == [tmp_path / "folder"]
