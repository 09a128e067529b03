"""A worker's leftovers in cgroups are found by its log."""

from __future__ import annotations

import os
from pathlib import Path

from faults.leftovers import strange_groups

SAID = "workerd.process.process_supervisor: each attempt of a program gets a cgroup below {}\n"


def tree(folder: Path, name: str, *pids: int) -> Path:
    """As the kernel shows a worker's tree with one attempt's cgroup, these processes in it."""
    slot = folder / name / "slot-1"
    slot.mkdir(parents=True)
    (slot / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    return folder / name


def test_a_process_in_a_slot_other_than_the_waiting_one_is_a_leftover(tmp_path: Path) -> None:
    log = SAID.format(tree(tmp_path, "workerd-a", 1, os.getpid()))
    [found] = strange_groups(log)
    assert found.startswith("slot-1: ")
    assert "python" in found


def test_a_tree_of_an_earlier_worker_process_is_a_leftover(tmp_path: Path) -> None:
    earlier, now = tree(tmp_path, "workerd-a"), tree(tmp_path, "workerd-b", 1)
    log = SAID.format(earlier) + SAID.format(now)
    assert list(strange_groups(log)) == ["workerd-a, of an earlier life"]


def test_processes_for_the_next_attempt_and_ended_ones_are_not_left_over(tmp_path: Path) -> None:
    log = SAID.format(tmp_path / "workerd-gone") + SAID.format(tree(tmp_path, "workerd-b", 1))
    assert not list(strange_groups(log))
