"""The process journal of running sessions, which another process reads."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.descriptors import open_files
from support.wait import WAIT_TIMEOUT, wait_until
from workerd.core.lease_trust import KillEntry
from workerd.process import proc_files, process_journal
from workerd.process.keeper import sweep_leftovers


def test_a_journal_lists_sessions_that_began_and_have_not_ended(tmp_path: Path) -> None:
    written = process_journal.Journal(tmp_path, "mark")
    written.add_session(10, 111)
    written.add_session(20, 222)
    written.end_session(10)
    left = process_journal.read_journal(written.path)
    assert left == process_journal.LeftoverProcesses("mark", {20: 222})
    written.close()
    assert process_journal.read_journal(written.path) is None


@contextlib.contextmanager
def room_for(more: int, path: Path) -> Iterator[None]:
    """Limit each file of this process to `more` bytes above the size of `path`."""
    _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_partly_written_line_is_an_error_and_damages_no_other_line(tmp_path: Path) -> None:
    written = process_journal.Journal(tmp_path, "mark")
    with room_for(4, written.path), pytest.raises(OSError, match="partially written"):
        written.add_session(10, 111)
    assert written.path.read_text().endswith("\n+ 10")
    written.add_session(20, 222)
    assert process_journal.read_journal(written.path) == process_journal.LeftoverProcesses(
        "mark", {20: 222}
    )


def parts_of(line: str) -> list[str]:
    return [line[:length] for length in range(1, len(line))]


@pytest.mark.parametrize("part", parts_of("+ 12345 111\n"))
def test_a_truncated_begin_line_is_ignored(tmp_path: Path, part: str) -> None:
    written = process_journal.Journal(tmp_path, "mark")
    written.add_session(123, 7)
    with room_for(len(part), written.path), pytest.raises(OSError, match="partially written"):
        written.add_session(12345, 111)
    assert written.path.read_text().endswith("\n" + part)
    assert process_journal.read_journal(written.path) == process_journal.LeftoverProcesses(
        "mark", {123: 7}
    ), "its writer died now"
    written.add_session(20, 222)
    assert process_journal.read_journal(written.path) == process_journal.LeftoverProcesses(
        "mark", {123: 7, 20: 222}
    )


@pytest.mark.parametrize("part", parts_of("- 12345\n"))
def test_a_truncated_end_line_ends_no_other_session(tmp_path: Path, part: str) -> None:
    written = process_journal.Journal(tmp_path, "mark")
    for session in (1, 12, 123, 1234, 12345):
        written.add_session(session, 7)
    listed = process_journal.read_journal(written.path)
    with room_for(len(part), written.path), pytest.raises(OSError, match="partially written"):
        written.end_session(12345)
    assert written.path.read_text().endswith("\n" + part)
    assert process_journal.read_journal(written.path) == listed, "its writer died now"
    written.end_session(1)
    left = process_journal.read_journal(written.path)
    assert left is not None
    assert set(left.sessions) == {12, 123, 1234, 12345}


def test_an_incomplete_line_of_an_earlier_version_stops_no_sweep(tmp_path: Path) -> None:
    path = tmp_path / f"x{process_journal.SUFFIX}"
    head = f"boot {process_journal.boot_id()}\nmark m\n"
    path.write_text(f"{head}+ 10 111\n+ 12345 \n- \n+ 12345\n+ 20 222\n- 10\n")
    assert process_journal.read_journal(path) == process_journal.LeftoverProcesses("m", {20: 222})


def test_a_journal_that_cant_be_rewritten_leaks_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fd: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    written = process_journal.Journal(tmp_path, "mark")
    written.add_session(10, 111)
    before = open_files()
    with monkeypatch.context() as patch:
        patch.setattr(process_journal.os, "write", full)
        with pytest.raises(OSError, match="No space"):
            written._rewrite()
    assert open_files() == before
    written.add_session(20, 222)
    assert process_journal.read_journal(written.path) == process_journal.LeftoverProcesses(
        "mark", {10: 111, 20: 222}
    )


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Limit each file of this process to zero bytes."""
    _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_journal_rejected_by_a_full_disk_is_created_later(
    tmp_path: Path,
) -> None:
    with full_disk():
        written = process_journal.Journal(tmp_path, "mark")
        assert written.problem
        with pytest.raises(OSError, match=written.problem):
            written.add_session(10, 111)
        written.make()
        assert written.problem
    assert [*tmp_path.iterdir()] == [], "no leftover files after any number of tries"
    written.make()
    assert written.problem == ""
    written.add_session(10, 111)
    written.make()
    assert process_journal.read_journal(written.path) == process_journal.LeftoverProcesses(
        "mark", {10: 111}
    )


def test_a_journal_that_never_existed_can_be_closed(tmp_path: Path) -> None:
    with full_disk():
        written = process_journal.Journal(tmp_path, "mark")
    before = open_files()
    written.close()
    assert open_files() == before
    assert [*tmp_path.iterdir()] == []


def test_a_journal_names_the_tree_of_its_cgroups(tmp_path: Path) -> None:
    written = process_journal.Journal(tmp_path, "mark", Path("/sys/fs/a b"))
    written.add_session(10, 111)
    assert process_journal.read_journal(written.path) == process_journal.LeftoverProcesses(
        "mark", {10: 111}, Path("/sys/fs/a b")
    )


GROUPED, PLAIN = KillEntry(10, 111, 2.5, "r-1", 7, "slot-3"), KillEntry(20, 222, 10.0, "r-2", 8)


def test_a_journal_lists_runs_that_end_with_the_lease_while_they_run(tmp_path: Path) -> None:
    written = process_journal.Journal(tmp_path, "mark")
    for each in (GROUPED, PLAIN):
        written.add_session(each.session, each.start, each)
    written.add_session(30, 333)
    both = process_journal.read_journal(written.path)
    assert both is not None
    assert both.mortals == {10: GROUPED, 20: PLAIN}
    assert both.sessions == {10: 111, 20: 222, 30: 333}
    written._rewrite()
    assert process_journal.read_journal(written.path) == both
    written.end_session(10)
    written.add_session(10, 999)
    left = process_journal.read_journal(written.path)
    assert left is not None
    assert left.mortals == {20: PLAIN}, "the number was reused by a run that may finish"


@pytest.mark.parametrize("part", parts_of("! 10 111 2.5 r-1 7 slot-3\n"))
def test_a_truncated_line_of_a_run_that_ends_with_the_lease_is_ignored(
    tmp_path: Path, part: str
) -> None:
    written = process_journal.Journal(tmp_path, "mark")
    with room_for(len(part), written.path), pytest.raises(OSError, match="partially written"):
        written.add_session(GROUPED.session, GROUPED.start, GROUPED)
    assert written.path.read_text().endswith("\n" + part)
    written.add_session(20, 222, PLAIN)
    assert process_journal.read_journal(written.path) == process_journal.LeftoverProcesses(
        "mark", {20: 222}, mortals={20: PLAIN}
    )


def test_a_long_journal_is_rewritten_with_the_same_content(tmp_path: Path) -> None:
    written = process_journal.Journal(tmp_path, "mark")
    written.add_session(1, 5)
    for session in range(2, 20_000):
        written.add_session(session, 7)
        written.end_session(session)
    assert written.path.stat().st_size < 300 * 1024
    assert process_journal.read_journal(written.path) == process_journal.LeftoverProcesses(
        "mark", {1: 5}
    )


def test_a_journal_of_another_boot_or_a_truncated_line_kills_nothing(tmp_path: Path) -> None:
    path = tmp_path / f"x{process_journal.SUFFIX}"
    path.write_text("boot another\nmark m\n+ 1 2\n")
    assert process_journal.read_journal(path) is None
    path.write_text(f"boot {process_journal.boot_id()}\nmark m\n+ 10 111\n+ 2")
    assert process_journal.read_journal(path) == process_journal.LeftoverProcesses("m", {10: 111})


def sleeper(mark: str = "") -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(300)"],
        start_new_session=True,
        stdout=subprocess.PIPE,
        env={**os.environ, proc_files.MARK: mark} if mark else None,
    )


def test_a_session_is_killed_only_if_number_and_start_time_match(tmp_path: Path) -> None:
    ours, reused = sleeper(), sleeper()
    try:
        born = proc_files.read_process(ours.pid)
        other = proc_files.read_process(reused.pid)
        assert born is not None
        assert other is not None
        written = process_journal.Journal(tmp_path, "no-such-mark")
        written.add_session(ours.pid, born.start)
        written.add_session(reused.pid, other.start - 1)
        assert sweep_leftovers(tmp_path) >= 1
        assert wait_until(lambda: ours.poll() == -signal.SIGKILL, WAIT_TIMEOUT, "the end of ours")
        assert reused.poll() is None, "a number that was given to another is left in peace"
        assert not [*tmp_path.glob(f"*{process_journal.SUFFIX}")]
    finally:
        for each in (ours, reused):
            each.kill()
            each.communicate()


def test_a_process_with_the_mark_is_killed_without_a_journal_entry(tmp_path: Path) -> None:
    marked = sleeper("this-mark")
    try:
        assert marked.stdout is not None
        marked.stdout.readline()
        process_journal.Journal(tmp_path, "this-mark")
        assert sweep_leftovers(tmp_path) == 1
        assert wait_until(lambda: marked.poll() == -signal.SIGKILL, WAIT_TIMEOUT, "its end")
    finally:
        marked.kill()
        marked.communicate()
