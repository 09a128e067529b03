"""Files of an attempt: created exclusively, and handed over when all are written."""

from __future__ import annotations

import errno
import os
import pwd
import socket
import time
from pathlib import Path

import pytest

from support.wait import WAIT_TIMEOUT, wait_until
from workerd.core.ids import AssignmentKey
from workerd.executors import scratch as module
from workerd.executors.scratch import Scratch, remove_tree

KEY = AssignmentKey("run", 7)  # type: ignore[arg-type]  # NewTypes of these
USER = pwd.getpwuid(os.getuid())


def test_a_planted_link_is_neither_written_to_nor_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("root's")
    with Scratch(tmp_path / "scratch", KEY, USER) as scratch:
        (scratch.path / "script").symlink_to(victim)
        with pytest.raises(FileExistsError):
            scratch.write("script", b"mine")
    assert victim.read_text() == "root's"


def test_an_existing_directory_isnt_used(tmp_path: Path) -> None:
    (tmp_path / "run-7").mkdir()
    with pytest.raises(FileExistsError), Scratch(tmp_path, KEY, USER):
        pass


def test_the_directory_is_handed_over_when_all_files_are_written(
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


def test_leftovers_are_removed_and_the_directory_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk may not take a new directory."""
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


def deep(folder: Path, levels: int) -> None:
    """Make a tree of so many levels, with a file in each; its paths exceed the system's limit."""
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(levels):
        os.mkdir("a-directory", dir_fd=at)
        deeper = os.open("a-directory", os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)
        os.close(at)
        os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=deeper))
        at = deeper
    os.close(at)


@pytest.mark.slow
def test_a_leftover_tree_of_any_depth_is_removed(tmp_path: Path) -> None:
    with Scratch(tmp_path, KEY, USER) as scratch:
        deep(scratch.path, 3000)
    wait_until(lambda: not scratch.path.exists(), WAIT_TIMEOUT, "the removal")


@pytest.mark.slow
def test_a_deep_tree_of_an_earlier_process_is_removed_at_start(tmp_path: Path) -> None:
    (tmp_path / "run-7").mkdir()
    deep(tmp_path / "run-7", 3000)
    module.clear(tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_leftover_files_of_any_kind_are_removed_and_links_are_not_followed(
    tmp_path: Path,
) -> None:
    victim, tree = tmp_path / "victim", tmp_path / "tree"
    victim.mkdir()
    (victim / "kept").write_text("1")
    (tree / ".0" / "x").mkdir(parents=True)
    (tree / "link").symlink_to(victim)
    (tree / ".0" / "loop").symlink_to(tree)
    os.mkfifo(tree / ".0" / "fifo")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tree / "socket"))
    (tree / os.fsdecode(b"not-\xff-utf8")).mkdir()
    (tree / ".0" / "closed").mkdir(mode=0)
    remove_tree(tree)
    assert not tree.exists()
    assert (victim / "kept").exists()


@pytest.mark.slow
def test_many_files_are_removed_while_the_loop_runs(tmp_path: Path) -> None:
    with Scratch(tmp_path, KEY, USER) as scratch:
        for number in range(20_000):
            os.close(os.open(scratch.path / str(number), os.O_WRONLY | os.O_CREAT))
        since = time.monotonic()
    assert time.monotonic() - since < 0.1, "the caller doesn't wait for it"
    wait_until(lambda: not scratch.path.exists(), WAIT_TIMEOUT, "the removal")


def test_a_tree_that_cant_be_removed_at_start_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "scratch"
    for name in ("run-7", "run-8"):
        (root / name).mkdir(parents=True)
        (root / name / "file").write_text("1")

    def immutable(name: str, **how: int) -> None:
        if name == "run-7":
            raise PermissionError(errno.EPERM, "Operation not permitted", name)
        rmdir(name, **how)

    rmdir = os.rmdir
    (root / "run-7" / "run-7").mkdir()
    monkeypatch.setattr(os, "rmdir", immutable)
    module.clear(root)
    assert [*root.iterdir()] == []
    assert (tmp_path / "scratch-set-aside" / "run-7").is_dir()
    assert "can't be removed" in caplog.text
