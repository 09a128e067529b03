"""Notifications of ended runs: recipients, thresholds and shortened_intervals."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from schedd.core.ids import JobId, RunId, ShardId, new_id
from schedd.core.jobs.notifications import (
    ABANDONED_AFTER,
    LONGEST_WAIT,
    DueNotification,
    Notice,
    Notices,
    NotifiableEvent,
    NotificationChannel,
    NotificationHistory,
    NotificationKind,
    OutboxNotification,
    ReroutedNotifications,
    follow,
    outcome_of,
    redirected,
    target,
)
from schedd.core.runs.lifecycle import State
from support.runs import NOW

HOOK = Notice(webhook="https://ops.example.com/hook")
JOB = JobId(new_id())
MINUTE = timedelta(minutes=1)


def happened(state: State | None, notices: Notices, *, dead: bool = False) -> NotifiableEvent:
    return NotifiableEvent(NOW, RunId(new_id()), JOB, ShardId(1), notices, state, dead=dead)


def sent_for(states: str, notices: Notices) -> list[str]:
    """Return notifications with their failures so far, for `F` failed and `S` succeeded runs."""
    memory, found = NotificationHistory(), []
    for minute, letter in enumerate(states):
        state = State.FAILED if letter == "F" else State.SUCCEEDED
        memory, sent = follow(memory, [happened(state, notices)], NOW + minute * MINUTE)
        found += [f"{minute}:{one.kind.value}:{one.failures}" for one in sent]
    return found


def test_failures_in_a_row_are_notified_from_the_threshold_on() -> None:
    notices = Notices(failure=replace(HOOK, threshold=3))
    assert sent_for("FFSFFF", notices) == ["5:run.failed:3"]
    assert sent_for("FFFF", notices) == ["2:run.failed:3", "3:run.failed:4"]


def test_the_first_success_after_a_notified_failure_is_a_recovery() -> None:
    notices = Notices(failure=replace(HOOK, threshold=2), recovery=HOOK)
    assert sent_for("FSFFSS", notices) == ["3:run.failed:2", "4:run.recovered:0"]


def test_notifications_during_a_silence_wait_for_its_end_and_are_counted() -> None:
    notices = Notices(failure=replace(HOOK, min_interval=10 * MINUTE))
    memory, first = follow(NotificationHistory(), [happened(State.FAILED, notices)] * 3, NOW)
    assert [(one.ready_at, one.held_back, one.joins) for one in first] == [
        (NOW, 0, False),
        (NOW + 10 * MINUTE, 2, False),
    ]
    last = happened(State.FAILED, notices)
    memory, [joining] = follow(memory, [last], NOW + MINUTE)
    assert (joining.joins, joining.held_back, joining.of) == (True, 1, last)
    # The interval is counted from the time of the delayed notification.
    memory, [again] = follow(memory, [last], NOW + 15 * MINUTE)
    assert (again.joins, again.ready_at) == (False, NOW + 20 * MINUTE)
    _, [late] = follow(memory, [last], NOW + 40 * MINUTE)
    assert (late.ready_at, late.held_back) == (NOW + 40 * MINUTE, 0)


def test_a_notification_after_a_shortened_silence_waits_for_the_new_end() -> None:
    hour = Notices(failure=replace(HOOK, min_interval=60 * MINUTE))
    memory, _ = follow(NotificationHistory(), [happened(State.FAILED, hour)] * 2, NOW)
    short = Notices(failure=replace(HOOK, min_interval=5 * MINUTE))
    memory, [joining] = follow(memory, [happened(State.FAILED, short)], NOW + MINUTE)
    assert (joining.joins, joining.ready_at) == (True, NOW + 6 * MINUTE)
    assert memory.latest[NotificationKind.FAILURE] == NOW + 6 * MINUTE


MAIL = Notice(email=("a@ops.example.com",))
BOTH = replace(HOOK, email=MAIL.email)


@pytest.mark.parametrize(
    ("old", "new", "left", "joined"),
    [
        (HOOK, MAIL, (NotificationChannel.WEBHOOK,), (NotificationChannel.EMAIL,)),
        (BOTH, MAIL, (NotificationChannel.WEBHOOK,), ()),
        (HOOK, BOTH, (), (NotificationChannel.EMAIL,)),
        (HOOK, replace(HOOK, webhook="https://other.example.com/"), (), ()),
        (HOOK, None, (), ()),
        (None, HOOK, (), ()),
    ],
)
def test_waiting_notifications_use_the_channels_of_an_edit(
    old: Notice | None,
    new: Notice | None,
    left: tuple[NotificationChannel, ...],
    joined: tuple[NotificationChannel, ...],
) -> None:
    what = redirected(Notices(late=old), Notices(late=new))
    assert [way for _, way in what.left] == [*left]
    assert [way for _, way in what.joined] == [*joined]
    assert bool(what) is bool(left)


def test_a_silence_shortened_by_an_edit_ends_earlier() -> None:
    old, new = (Notices(recovery=replace(HOOK, min_interval=n * MINUTE)) for n in (60, 5))
    assert redirected(old, new).shortened_intervals == ((NotificationKind.RECOVERY, 55 * MINUTE),)
    assert redirected(new, old) == redirected(None, new) == ReroutedNotifications()


def test_each_kind_has_its_own_silence_and_a_dead_letter_is_a_failure_too() -> None:
    notices = Notices(failure=replace(HOOK, min_interval=MINUTE), dead_letter=HOOK, late=HOOK)
    those = [happened(None, notices), happened(State.FAILED, notices, dead=True)]
    _, sent = follow(NotificationHistory(), those, NOW)
    assert [one.kind for one in sent] == [
        NotificationKind.LATE,
        NotificationKind.FAILURE,
        NotificationKind.DEAD_LETTER,
    ]
    assert {one.ready_at for one in sent} == {NOW}


def test_a_canceled_run_sends_no_notification_and_changes_no_history() -> None:
    notices = Notices(failure=HOOK, recovery=HOOK)
    memory, sent = follow(NotificationHistory(), [happened(State.CANCELLED, notices)], NOW)
    assert (memory, sent) == (NotificationHistory(), [])


@pytest.mark.parametrize(
    ("tries", "age", "wait"),
    [
        (1, 0.0, timedelta(seconds=5)),
        (3, 60.0, timedelta(seconds=20)),
        (900, 80_000.0, LONGEST_WAIT),
        (900, ABANDONED_AFTER.total_seconds(), None),
    ],
)
def test_a_failed_try_is_repeated_for_a_day(tries: int, age: float, wait: timedelta | None) -> None:
    one = notification(tries=tries)
    assert outcome_of(one, "HTTP 500", NOW + timedelta(seconds=age)).wait == wait
    assert outcome_of(one, "", NOW).wait is None


def notification(tries: int = 1) -> OutboxNotification:
    of = DueNotification(
        happened(State.FAILED, Notices(failure=HOOK)), NotificationKind.FAILURE, NOW
    ).of
    return OutboxNotification(
        new_id(), NotificationChannel.WEBHOOK, JOB, of.shard, NotificationKind.FAILURE, "default",
        "etl", of.run_id, NOW, NOW,
        None, None, "FAILED", "EXIT_CODE", "", 1, 1, 1, "w1", 1, 0, NOW, NOW, tries,
    )  # fmt: skip


def test_slowness_counts_per_host_or_program() -> None:
    notice = Notice("https://ops.example.com:8443/a?b", ("/opt/page", "x"), ("a@b.example",))
    assert [target(notice, way) for way in notice.ways] == [
        "https://ops.example.com:8443",
        "/opt/page",
        "mail",
    ]
