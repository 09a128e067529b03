"""The next state of a run after an attempt."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from schedd.core.ids import Id, JobId, RunId, ShardId
from schedd.core.jobs.definition import Definition, Delivery, Priority, RetryPolicy
from schedd.core.runs.failure_kinds import AttemptFailure
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import LiveRun, RunKey
from schedd.core.runs.retry import (
    MAX_LOSSES,
    ReportedOutcome,
    after_attempt,
    after_loss,
    fingerprint,
    reissue_after,
    wait,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RUN = RunId(Id.from_int(7))
JOB = Definition(1, "default", action="shell")


def running(attempt: int = 1, losses: int = 0) -> LiveRun:
    return LiveRun(
        RunKey(NOW, RUN),
        JobId(Id.from_int(1)),
        ShardId(3),
        State.RUNNING,
        Priority.MEDIUM,
        due_at=NOW,
        ready_at=NOW,
        attempt=attempt,
        losses=losses,
    )


def test_waits_grow_by_the_factor_up_to_the_maximum_within_the_jitter():
    policy = RetryPolicy(backoff=timedelta(seconds=10), factor=2, maximum=timedelta(seconds=60))
    for attempt, plain in ((1, 10), (2, 20), (3, 40), (4, 60), (9, 60)):
        length = wait(policy, RUN, attempt).total_seconds()
        assert plain * 0.9 <= length < plain * 1.1


def test_a_wait_is_the_same_on_every_member_and_differs_between_runs():
    policy = RetryPolicy()
    assert wait(policy, RUN, 1) == wait(policy, RUN, 1)
    assert len({wait(policy, RunId(Id.from_int(n)), 1) for n in range(50)}) > 40


def test_without_jitter_the_wait_is_the_formula_to_the_millisecond():
    policy = RetryPolicy(backoff=timedelta(seconds=3), factor=1.5, jitter=0)
    assert wait(policy, RUN, 3) == timedelta(seconds=6.75)


def test_a_failed_attempt_is_retried_until_the_last_one_is_a_dead_letter():
    four = replace(JOB, retry=RetryPolicy(max_attempts=4))
    for attempt in (1, 2, 3):
        sequel = after_attempt(
            ReportedOutcome.FAILED, AttemptFailure(Reason.EXIT_CODE), running(attempt), four, NOW
        )
        assert (sequel.state, sequel.dead) == (State.RETRYING, False)
        assert sequel.retry_at is not None
        assert sequel.retry_at > NOW
    last = after_attempt(
        ReportedOutcome.FAILED, AttemptFailure(Reason.EXIT_CODE), running(4), four, NOW
    )
    assert (last.state, last.reason, last.dead) == (State.FAILED, Reason.EXIT_CODE, True)


def test_a_job_that_returns_dont_retry_fails_at_once():
    sequel = after_attempt(
        ReportedOutcome.FAILED, AttemptFailure(Reason.DONT_RETRY), running(1), JOB, NOW
    )
    assert (sequel.state, sequel.dead) == (State.FAILED, True)


def test_a_wait_is_counted_from_the_end_of_the_attempt():
    """By `finishedAt`, which people see, the formula holds for any delay of the result."""
    job = replace(JOB, retry=RetryPolicy(backoff=timedelta(seconds=10), jitter=0))
    asked = timedelta(seconds=30)

    def retry_at(ended: datetime | None, retry_after: timedelta | None = None) -> datetime | None:
        run = replace(running(), ready_at=NOW - timedelta(seconds=60))
        failure = AttemptFailure(Reason.EXIT_CODE)
        sequel = after_attempt(
            ReportedOutcome.FAILED, failure, run, job, NOW, retry_after, finished_at=ended
        )
        return sequel.retry_at

    for took in (timedelta(0), timedelta(milliseconds=54), timedelta(seconds=9)):
        assert retry_at(NOW - took) == NOW - took + timedelta(seconds=10)
        assert retry_at(NOW - took, asked) == NOW - took + asked
    late = NOW - timedelta(seconds=40)
    assert retry_at(late) == NOW, "not in the past"
    assert retry_at(late, asked) == NOW
    assert retry_at(NOW - timedelta(seconds=60)) == NOW, "the earliest that can be"
    for wrong in (None, NOW + timedelta(microseconds=1), NOW + timedelta(days=9)):
        assert retry_at(wrong) == NOW + timedelta(seconds=10)


def test_an_end_before_the_start_comes_from_a_wrong_clock_and_shortens_no_wait():
    """Otherwise a worker with a slow clock would start a failing job again and again, at once."""
    job = replace(JOB, retry=RetryPolicy(backoff=timedelta(seconds=10), jitter=0))
    run = replace(running(), ready_at=NOW - timedelta(seconds=60))
    before = run.ready_at - timedelta(microseconds=1)
    sequel = after_attempt(
        ReportedOutcome.FAILED, AttemptFailure(Reason.EXIT_CODE), run, job, NOW, finished_at=before
    )
    assert sequel.retry_at == NOW + timedelta(seconds=10)


def test_retry_after_lengthens_the_wait_and_never_shortens_it():
    later = after_attempt(
        ReportedOutcome.FAILED,
        AttemptFailure(Reason.HTTP_STATUS),
        running(),
        JOB,
        NOW,
        timedelta(minutes=5),
    )
    assert later.retry_at == NOW + timedelta(minutes=5)
    sooner = after_attempt(
        ReportedOutcome.FAILED,
        AttemptFailure(Reason.HTTP_STATUS),
        running(),
        JOB,
        NOW,
        timedelta(seconds=1),
    )
    assert sooner.retry_at is not None
    assert sooner.retry_at > NOW + timedelta(seconds=8)


def test_a_returned_run_uses_no_attempt_and_has_its_earlier_state():
    first = after_attempt(ReportedOutcome.RETURNED, AttemptFailure(None), running(1), JOB, NOW)
    assert (first.state, first.counts) == (State.PENDING, False)
    second = after_attempt(ReportedOutcome.RETURNED, AttemptFailure(None), running(2), JOB, NOW)
    assert (second.state, second.counts) == (State.RETRYING, False)


def test_a_run_ended_by_a_shutdown_counts_as_a_loss_up_to_the_limit():
    """P6.8: the run began, so ten times and no more."""
    once = after_attempt(
        ReportedOutcome.RETURNED, AttemptFailure(None), running(losses=0), JOB, NOW
    )
    assert (once.lost, once.retry_at) == (True, NOW)
    last = after_attempt(
        ReportedOutcome.RETURNED, AttemptFailure(None), running(losses=MAX_LOSSES - 1), JOB, NOW
    )
    assert (last.state, last.reason, last.dead) == (State.FAILED, Reason.TOO_MANY_LOSSES, True)


def test_a_run_that_never_began_is_not_counted_as_lost_and_waits_a_moment():
    """P6.8: a worker that can't start any program costs its runs nothing."""
    sequel = after_attempt(
        ReportedOutcome.RETURNED,
        AttemptFailure(None),
        running(losses=MAX_LOSSES - 1),
        JOB,
        NOW,
        began=False,
    )
    assert (sequel.state, sequel.counts, sequel.lost) == (State.PENDING, False, False)
    assert sequel.retry_at is not None
    assert sequel.retry_at > NOW


def test_at_most_once_starts_again_after_a_shutdown_only_if_it_never_began():
    """P6.8: the progress of the run is unknown."""
    job = replace(JOB, delivery=Delivery.AT_MOST_ONCE)
    ended = after_attempt(ReportedOutcome.RETURNED, AttemptFailure(None), running(), job, NOW)
    assert (ended.state, ended.reason, ended.dead) == (State.FAILED, Reason.WORKER_LOST, True)
    unbegun = after_attempt(
        ReportedOutcome.RETURNED, AttemptFailure(None), running(), job, NOW, began=False
    )
    assert unbegun.state is State.PENDING


def test_a_canceled_run_isnt_retried_for_any_outcome_of_its_attempt():
    cancelling = replace(running(), cancelling=True)
    sequel = after_attempt(
        ReportedOutcome.FAILED, AttemptFailure(Reason.SIGNAL), cancelling, JOB, NOW
    )
    assert (sequel.state, sequel.reason) == (State.CANCELLED, Reason.BY_USER)


def test_a_lost_worker_uses_no_attempt_up_to_a_limit():
    """P6.8: a run that crashes its workers must end at some time."""
    once = after_loss(running(losses=0), JOB)
    assert (once.state, once.counts) == (State.RETRYING, False)
    last = after_loss(running(losses=MAX_LOSSES - 1), JOB)
    assert (last.state, last.reason, last.dead) == (State.FAILED, Reason.TOO_MANY_LOSSES, True)


def test_at_most_once_fails_rather_than_runs_again():
    """P6.8: a lost run may have done its work."""
    job = replace(JOB, delivery=Delivery.AT_MOST_ONCE)
    sequel = after_loss(running(), job)
    assert (sequel.state, sequel.reason, sequel.dead) == (State.FAILED, Reason.WORKER_LOST, True)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("no such file: /tmp/a-17", "no such file: /tmp/a-4711"),
        ("at 0x7f00 it broke", "at 0xdead it broke"),
        (f"order {UUID(int=5)} is gone", f"order {UUID(int=10**30)} is gone"),
    ],
)
def test_errors_that_differ_only_in_numbers_are_of_one_kind(one: str, other: str):
    assert fingerprint(Reason.EXIT_CODE, 1, one) == fingerprint(Reason.EXIT_CODE, 1, other)
    assert fingerprint(Reason.EXIT_CODE, 1, one) != fingerprint(Reason.EXIT_CODE, 2, one)


@pytest.mark.parametrize("factor", [1.0, 2.0, 100.0])
def test_a_run_that_has_failed_ten_thousand_times_still_has_a_wait(factor):
    policy = RetryPolicy(
        max_attempts=20_000, backoff=timedelta(milliseconds=1), factor=factor, jitter=0
    )
    assert timedelta(0) < wait(policy, RUN, 10_000) <= policy.maximum


def test_the_wait_requested_by_retry_after_is_bounded():
    definition = replace(JOB, retry=RetryPolicy(jitter=0))
    sequel = after_attempt(
        ReportedOutcome.FAILED,
        AttemptFailure(Reason.HTTP_STATUS),
        running(),
        definition,
        NOW,
        timedelta(days=2_900_000),
    )
    assert sequel.retry_at == NOW + timedelta(days=1)


def test_a_lost_run_waits_only_while_its_worker_may_still_be_killing_it():
    """P6.6: with `on_lease_lost: kill` that is `kill_after` and a margin."""
    assert reissue_after(JOB) == timedelta(0)
    killed = replace(JOB, kills_on_lease_lost=True, kill_after=timedelta(seconds=30))
    assert reissue_after(killed) > timedelta(seconds=30)


def test_no_retry_begins_past_the_runs_own_time():
    hurried = replace(JOB, run_timeout=timedelta(seconds=60), retry=RetryPolicy(jitter=0))
    failure = AttemptFailure(Reason.TIMEOUT)
    over = after_attempt(
        ReportedOutcome.FAILED, failure, running(), hurried, NOW + timedelta(seconds=60)
    )
    assert (over.state, over.reason, over.dead) == (State.FAILED, Reason.RUN_TIMEOUT, True)

    soon = after_attempt(
        ReportedOutcome.FAILED, failure, running(), hurried, NOW + timedelta(seconds=49)
    )
    assert soon.state is State.RETRYING
    vain = after_attempt(
        ReportedOutcome.FAILED, failure, running(), hurried, NOW + timedelta(seconds=50)
    )
    assert (vain.state, vain.reason, vain.dead) == (State.FAILED, Reason.TIMEOUT, True)
    well = after_attempt(
        ReportedOutcome.SUCCEEDED,
        AttemptFailure(None),
        running(),
        hurried,
        NOW + timedelta(seconds=70),
    )
    assert well.state is State.SUCCEEDED
