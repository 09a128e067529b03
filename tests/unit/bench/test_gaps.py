"""Gaps: what rows tell of a fault."""

from __future__ import annotations

from bench.gaps import Gap, Instant, reckon, seconds_between

FAULT = 2.5


def rows(*late: float | None, job: str = "a") -> list[Instant]:
    """Instants from 3 on, each so late; None never started."""
    return [
        Instant(job, 3.0 + n, None if one is None else 3.0 + n + one, one is not None)
        for n, one in enumerate(late)
    ]


def gap(*given: Instant, jobs: str = "a", last: float = 7.0) -> Gap:
    return reckon(given, jobs, fault=FAULT, first=FAULT, last=last)


def test_jobs_that_are_never_late_have_no_gap() -> None:
    assert gap(*rows(0.125, 0.25)[:2], last=4.0) == Gap((0.0,), 0.25, 0, 0, 0, 0)


def test_a_gap_ends_with_the_first_run_on_time_after_the_last_late_one() -> None:
    seen = gap(*rows(0.1, 2.0, 1.0, 0.1, 0.1))
    assert seen.backs == (6.1 - FAULT,)
    assert (seen.latest, seen.late) == (2.0, 2)


def test_a_gap_of_a_job_that_stays_late_never_ends() -> None:
    assert gap(*rows(0.1, 0.1, 0.1, 0.1, 3.0)).backs == (float("inf"),)


def test_an_instant_without_a_row_and_one_that_did_not_succeed_are_lost() -> None:
    some = rows(0.1, 0.1, 0.1, None, 0.1)
    assert gap(*some[1:]).lost == 2


def test_a_second_row_of_an_instant_is_a_double_and_hides_no_loss() -> None:
    some = rows(0.1, 0.1, 0.1, 0.1, 0.1)
    seen = gap(*some[:4], some[0])
    assert (seen.lost, seen.doubled) == (1, 1)


def test_each_job_has_its_own_gap_and_other_jobs_are_not_counted() -> None:
    a, b = rows(0.1, 3.0, 0.1, 0.1, 0.1), rows(0.1, 0.1, 0.1, 0.1, 0.1, job="b")
    assert gap(*a, *b, jobs="ab").backs == (5.1 - FAULT, 0.0)
    assert gap(*a, *b, jobs="b") == Gap((0.0,), b[0].late, 0, 0, 0, 0)


def test_a_run_due_before_the_fault_isnt_counted() -> None:
    before = Instant("a", 2.0, 9.0, True, 2)
    seen = gap(before, *rows(0.1, 0.1, 0.1, 0.1, 0.1))
    assert (seen.late, seen.again, seen.doubled) == (0, 0, 0)


def test_seconds_between_are_those_past_the_first_up_to_the_last() -> None:
    assert seconds_between(2.5, 7.0) == 5
    assert seconds_between(2.0, 7.0) == 5
    assert seconds_between(2.0, 1.0) == 0
