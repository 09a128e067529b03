"""The file of starts: what ran, what never did, what ran again; and when a drain is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.peers.starts import LINE, counted, judge
from bench.peers.watching import watch


def lines(*numbers: int, at: float = 1_764_000_000.0) -> bytes:
    """Starts of these jobs, a second apart."""
    return b"".join(b"%010d %017.6f\n" % (n, at + place) for place, n in enumerate(numbers))


def test_jobs_that_all_ran_once_are_neither_lost_nor_doubled() -> None:
    verdict = judge(lines(2, 0, 1), 3)

    assert (verdict.distinct, verdict.lost, verdict.duplicates, verdict.unknown) == (3, 0, 0, 0)


def test_a_job_without_a_line_is_lost() -> None:
    assert judge(lines(0, 2), 3).lost == 1


def test_each_further_line_of_a_job_is_a_duplicate() -> None:
    verdict = judge(lines(0, 1, 1, 1), 2)

    assert (verdict.lost, verdict.duplicates) == (0, 2)


def test_a_duplicate_doesnt_make_up_for_a_loss() -> None:
    verdict = judge(lines(0, 0), 2)

    assert (verdict.distinct, verdict.lost, verdict.duplicates) == (1, 1, 1)


def test_a_job_that_was_never_submitted_is_unknown() -> None:
    verdict = judge(lines(0, 7), 1)

    assert (verdict.distinct, verdict.unknown) == (1, 1)


def test_the_first_start_is_the_earliest_in_any_order_of_writes() -> None:
    assert judge(lines(1, at=20.0) + lines(0, at=10.0), 2).first == 10.0


def test_a_line_that_was_cut_off_counts_for_nothing() -> None:
    assert judge(lines(0, 1)[:-1], 2).lost == 1


def test_an_empty_file_of_starts_means_that_no_job_ran() -> None:
    assert (judge(b"", 3).lost, judge(b"", 3).first) == (3, None)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where starts are written."""
    return tmp_path / "starts"


def test_lines_are_counted_by_the_size_of_the_file(file: Path) -> None:
    assert counted(file) == 0
    file.write_bytes(lines(3, 1, 2)[:-1])

    assert (len(lines(3)), counted(file)) == (LINE, 2)


def test_a_drain_ends_when_the_store_counts_all_runs_as_completed(file: Path) -> None:
    file.write_bytes(lines(0, 1))
    answers = iter([0, 1, 2])

    watched = watch(file, 2, lambda: next(answers), lambda: True, 10.0)

    assert (watched.completed, watched.trouble) == (2, "")
    assert watched.ended is not None
    assert list(answers) == []


def test_the_store_isnt_asked_while_jobs_are_still_to_start(file: Path) -> None:
    file.write_bytes(lines(0))
    asked: list[None] = []

    def completed() -> int:
        asked.append(None)
        return 1

    watched = watch(file, 2, completed, lambda: True, 0.05)

    assert watched.trouble == "not at its end within 0.05 s"
    assert len(asked) == 1  # what it knew of at last


def test_a_worker_that_ends_too_soon_ends_the_drain(file: Path) -> None:
    watched = watch(file, 2, lambda: 0, lambda: False, 10.0)

    assert watched.ended is None
    assert watched.trouble == "its worker ended before all jobs were complete"


def test_a_worker_that_ends_after_the_last_run_is_not_a_failure(file: Path) -> None:
    file.write_bytes(lines(0, 1))

    assert watch(file, 2, lambda: 2, lambda: False, 10.0).trouble == ""
