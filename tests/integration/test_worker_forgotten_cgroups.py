"""Trees of cgroups that dead workers left: removed when no process holds them, and not before."""

from __future__ import annotations

import fcntl
import os
import subprocess
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.wait import wait_until
from workerd.process import cgroups
from workerd.process.cgroup_spawn import Launcher

pytestmark = pytest.mark.skipif(
    (place := cgroups.tree_of("x")) is None or not os.access(place.parent, os.W_OK),
    reason="no cgroups of version 2 that may be written",
)


@pytest.fixture
def parent() -> Iterator[Path]:
    """A cgroup of the test's own, in which workers keep their trees."""
    tree = cgroups.tree_of("x")
    assert tree is not None
    made = tree.parent / f"test-{uuid.uuid4()}"
    made.mkdir()
    yield made
    for folder, _, _ in os.walk(made, topdown=False):
        Path(folder).rmdir()


def tree_in(parent: Path) -> tuple[Path, str]:
    mark = str(uuid.uuid4())
    return parent / f"workerd-{mark}", mark


def forgotten_tree(parent: Path) -> Path:
    """The tree of a worker that was killed with its keeper."""
    tree, _ = tree_in(parent)
    os.close(cgroups.make(tree))
    (tree / "slot-1").mkdir()
    (tree / "slot-2" / "the job's own").mkdir(parents=True)
    return tree


def test_an_empty_tree_of_a_dead_worker_is_removed_when_it_is_old(parent: Path) -> None:
    tree = forgotten_tree(parent)
    assert cgroups.remove_forgotten(parent) == 0
    assert cgroups.remove_forgotten(parent, age=0.0) == 1
    assert not tree.exists()


def test_the_tree_of_a_running_worker_stays_without_processes_in_it(parent: Path) -> None:
    tree, mark = tree_in(parent)
    launcher = Launcher(tree, mark)
    try:
        idle = launcher.take_starter()
        idle.kill()
        wait_until(idle.remove, 5, "the cradle to end")
        assert cgroups.remove_forgotten(parent, age=0.0) == 0
        assert tree.is_dir()
    finally:
        launcher.close()
    assert not tree.exists()


def test_a_tree_with_a_running_process_stays(parent: Path) -> None:
    tree = forgotten_tree(parent)
    with subprocess.Popen(["sleep", "60"]) as lives:
        try:
            (tree / "slot-1" / "cgroup.procs").write_text(str(lives.pid))
            assert cgroups.remove_forgotten(parent, age=0.0) == 0
            assert (tree / "slot-1").is_dir()
            assert (tree / "slot-2").is_dir()
        finally:
            lives.kill()


def test_a_cgroup_that_no_worker_created_is_kept(parent: Path) -> None:
    (parent / "other").mkdir()
    assert cgroups.remove_forgotten(parent, age=0.0) == 0
    assert (parent / "other").is_dir()


def test_a_tree_removed_as_forgotten_during_its_creation_is_created_again(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, _ = tree_in(parent)
    plain, made = Path.mkdir, []

    def mkdir_and_lose(path: Path) -> None:
        plain(path)
        made.append(path)
        if len(made) == 1:  # another worker looks just now
            assert cgroups.remove_forgotten(parent, age=0.0) == 1

    monkeypatch.setattr(Path, "mkdir", mkdir_and_lose)
    held = cgroups.make(tree)
    assert (made, tree.is_dir()) == ([tree, tree], True)
    os.close(held)


def test_a_tree_removed_while_its_creator_waits_for_the_lock_is_created_again(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, _ = tree_in(parent)
    waits = threading.Event()
    plain = fcntl.flock
    remover: list[int] = []

    def lock(fd: int, how: int) -> None:
        if not remover:  # another worker has looked between, and removes it
            remover.append(os.open(tree, os.O_RDONLY | os.O_DIRECTORY))
            plain(remover[0], fcntl.LOCK_EX)
            threading.Thread(target=remove, name="another worker").start()
            waits.set()
        plain(fd, how)

    def remove() -> None:
        assert waits.wait(5)
        tree.rmdir()
        os.close(remover[0])

    monkeypatch.setattr(fcntl, "flock", lock)
    held = cgroups.make(tree)
    assert tree.is_dir()
    assert os.fstat(held).st_ino == tree.stat().st_ino
    os.close(held)
