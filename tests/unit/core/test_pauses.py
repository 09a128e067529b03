"""Scheduled times before, during and after a pause of the cluster."""

from datetime import UTC, datetime, timedelta

import pytest

from schedd.core.ids import Id
from schedd.core.jobs.definition import CatchUp, CatchUpPolicy
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.schedule import compiled_schedule
from schedd.core.schedule.compiled_schedule import (
    CompiledSchedule,
    CronSchedule,
    EverySchedule,
    ScheduleBounds,
)
from schedd.core.timers import fire_plan
from schedd.core.timers.cluster_pauses import NO_PAUSES, Pause, Pauses, plan
from schedd.core.timers.fire_plan import FirePlan, PlannedRun

HOUR = timedelta(hours=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-01-10T{text}").replace(tzinfo=UTC)


def minutely(job: int = 1, jitter: timedelta = timedelta(0)) -> CompiledSchedule:
    every_minute = CronSchedule(("* * * * *",))
    return compiled_schedule.compile(
        every_minute, "ns/job", Id.from_int(job), ScheduleBounds(jitter=jitter)
    )


def pause(began: str, ended: str | None, *, caught_up: bool = False) -> Pause:
    return Pause(at(began), "ops", "", at(ended) if ended else None, caught_up)


def walked(
    now: datetime,
    nominal: datetime,
    *pauses: Pause,
    policy: CatchUpPolicy = CatchUpPolicy.LATEST,
    compiled: CompiledSchedule | None = None,
) -> tuple[list[tuple[str, str | None, str, int]], list[str]]:
    """Return (state, reason, first, count) of each row, and all fires, until nothing is due."""
    compiled = compiled or minutely()
    merged, fires, due = [], [], compiled.due(nominal)
    for _ in range(20):
        step = plan(compiled, CatchUp(policy, HOUR), nominal, due, now, Pauses(2, pauses))
        merged += [(f.state.value, f.reason, f"{f.first:%H:%M:%S}", f.count) for f in step.merged]
        fires += [f"{fire.nominal:%H:%M:%S}" for fire in step.fires]
        if step.next is None or step.next.due > now:
            return merged, fires
        nominal, due = step.next.nominal, step.next.due
    raise AssertionError("it never comes to rest")


def test_without_a_pause_catch_up_is_unchanged() -> None:
    arguments = (minutely(), CatchUp(), at("12:00"), at("12:00"), at("12:05"))
    assert plan(*arguments, NO_PAUSES) == fire_plan.plan(*arguments)


def test_no_time_within_the_pause_runs_and_all_share_one_row() -> None:
    """P3.12: five times are skipped, the next one fires."""
    merged, fires = walked(at("12:10:00.5"), at("12:05"), pause("12:04:30", "12:09:30"))
    assert merged == [("SKIPPED", Reason.PAUSED, "12:05:00", 5)]
    assert fires == ["12:10:00"]


def test_a_time_at_the_end_belongs_to_the_pause_and_one_at_its_start_does_not() -> None:
    merged, fires = walked(at("12:02:30"), at("12:00"), pause("12:00:00", "12:02:00"))
    assert merged == [("SKIPPED", Reason.PAUSED, "12:01:00", 2)]
    assert fires == ["12:00:00"]


@pytest.mark.parametrize(
    ("policy", "expected", "fired"),
    [
        (CatchUpPolicy.LATEST, [("COALESCED", None, "12:00:00", 2)], ["12:02:00"]),
        (CatchUpPolicy.ALL, [], ["12:00:00", "12:01:00", "12:02:00"]),
        (CatchUpPolicy.NONE, [("MISSED", Reason.CATCH_UP_NONE, "12:00:00", 3)], []),
    ],
)
def test_times_due_before_the_pause_follow_the_jobs_policy(
    policy: CatchUpPolicy, expected: list[tuple[str, str | None, str, int]], fired: list[str]
) -> None:
    """None of them is coalesced into a time within the pause: that one never runs."""
    merged, fires = walked(
        at("12:10:30"), at("12:00"), pause("12:02:30", "12:10:20"), policy=policy
    )
    assert merged == [*expected, ("SKIPPED", Reason.PAUSED, "12:03:00", 8)]
    assert fires == fired


def test_the_jobs_policy_applies_between_two_pauses() -> None:
    pauses = pause("12:01:30", "12:03:30"), pause("12:05:30", "12:08:30")
    merged, fires = walked(at("12:09:30"), at("12:02"), *pauses, policy=CatchUpPolicy.ALL)
    assert merged == [
        ("SKIPPED", Reason.PAUSED, "12:02:00", 2),
        ("SKIPPED", Reason.PAUSED, "12:06:00", 3),
    ]
    assert fires == ["12:04:00", "12:05:00", "12:09:00"]


def test_a_pause_that_is_caught_up_is_like_an_outage() -> None:
    merged, fires = walked(at("12:10"), at("12:05"), pause("12:04:30", "12:09:30", caught_up=True))
    assert merged == [("COALESCED", None, "12:05:00", 5)]
    assert fires == ["12:10:00"]


@pytest.mark.parametrize("job", range(1, 9))
@pytest.mark.parametrize("border", range(0, 60, 7))
def test_jitter_moves_no_time_into_a_pause_or_out_of_it(job: int, border: int) -> None:
    """P3.12: otherwise a time within the pause would run after the resume."""
    jittered = minutely(job, timedelta(seconds=55))
    began, ended = f"12:02:{border:02}", f"12:05:{border:02}"
    merged, fires = walked(
        at("12:09:59"), at("12:00"), pause(began, ended),
        policy=CatchUpPolicy.ALL, compiled=jittered,
    )  # fmt: skip
    skipped = [f"12:0{minute}:00" for minute in range(10) if began < f"12:0{minute}:00" <= ended]
    assert merged == [("SKIPPED", Reason.PAUSED, skipped[0], len(skipped))]
    assert fires == [f"12:0{m}:00" for m in range(10) if f"12:0{m}:00" not in skipped]


def test_a_time_within_the_pause_that_is_due_after_it_is_skipped_when_due() -> None:
    """Times that were due earlier are not recorded again."""
    jittered = minutely(jitter=timedelta(seconds=55))
    late = jittered.due(at("12:04"))
    assert late > at("12:04:10")
    during = pause("12:03:30", "12:04:05")
    step = plan(jittered, CatchUp(), at("12:04"), late, late, Pauses(2, (during,)))
    assert [(times.reason, times.count) for times in step.merged] == [(Reason.PAUSED, 1)]
    assert step.fires == ()


def test_a_time_from_before_the_pause_that_is_due_in_it_follows_the_jobs_policy() -> None:
    jittered = minutely(jitter=timedelta(seconds=55))
    assert jittered.due(at("12:04")) > at("12:04:10")
    merged, fires = walked(
        at("12:06:10"), at("12:04"), pause("12:04:05", "12:05:59"),
        compiled=jittered,
    )  # fmt: skip
    assert ("SKIPPED", Reason.PAUSED, "12:05:00", 1) in merged
    assert fires[:1] == ["12:04:00"]


def test_old_pauses_have_no_effect() -> None:
    step = plan(
        minutely(), CatchUp(), at("12:00"), at("12:00"), at("12:00"),
        Pauses(2, (pause("10:00", "11:00"),)),
    )  # fmt: skip
    assert step == FirePlan((), (PlannedRun(at("12:00"), at("12:00")),), step.next)


def test_a_long_pause_of_a_frequent_job_ends_in_bounded_steps() -> None:
    each_second = compiled_schedule.compile(
        EverySchedule(timedelta(seconds=1)), "ns/j", Id.from_int(1)
    )
    merged, fires = walked(
        at("21:00:00.1"), at("12:00:01"), pause("12:00", "21:00"), compiled=each_second
    )
    assert {times[:2] for times in merged} == {(State.SKIPPED.value, Reason.PAUSED)}
    assert sum(times[3] for times in merged) == 9 * 3600
    assert fires == []


def test_pauses_that_ended_before_a_time_are_ignored() -> None:
    each = [pause(f"1{hour}:00", f"1{hour}:30") for hour in range(3)]
    many = Pauses(7, (*each, pause("13:00", None)))
    assert many.since(at("11:30")) == many.all[1:]
    assert many.since(at("11:31")) == many.all[2:]
    assert many.since(at("20:00")) == many.all[3:], "the present one has no end yet"


def test_the_current_pause_is_the_one_without_an_end() -> None:
    lasting = pause("12:00", None)
    assert Pauses(1, (lasting,)).present == lasting
    assert Pauses(2, (pause("12:00", "12:01"),)).present is None
    assert NO_PAUSES.present is None


def resumed(
    since: str | None,
    *,
    at_most_once: bool = False,
    stood: str = "12:01",
    before: tuple[Pause, ...] = (),
) -> tuple[list[object], list[str]]:
    """Return the plan of a minutely job recovered from 12:00 to 12:10, with data lost to 12:04.

    Resumed with a horizon; None: without any catch-up. `stood`: the first instant that the restored
    rows don't account for; `before`: older pauses.
    """
    held = Pause(
        at("12:00"),
        "schedd",
        ended=at("12:10"),
        lost_until=at("12:04"),
        caught_up_since=at(since) if since else None,
    )
    compiled, nominal = minutely(), at(stood)
    merged: list[object] = []
    fires, due, now = [], nominal, at("12:10:30")
    for _ in range(20):
        policy = CatchUp(CatchUpPolicy.ALL, HOUR)
        pauses = Pauses(2, (*before, held))
        step = plan(compiled, policy, nominal, due, now, pauses, at_most_once=at_most_once)
        merged += [(f.state.value, f.reason, f"{f.first:%H:%M}", f.count) for f in step.merged]
        fires += [f"{fire.nominal:%H:%M}" for fire in step.fires]
        if step.next is None or step.next.due > now:
            return merged, fires
        nominal, due = step.next.nominal, step.next.due
    raise AssertionError("it never comes to rest")


def test_a_horizon_splits_a_recovery_into_skipped_and_caught_up_times() -> None:
    """P3.12: the time of the horizon itself is caught up."""
    merged, fires = resumed("12:07")
    assert merged == [("SKIPPED", Reason.PAUSED, "12:01", 6)]
    assert fires == ["12:07", "12:08", "12:09", "12:10"]


@pytest.mark.parametrize(("since", "skipped"), [("11:00", 0), ("12:00", 0), ("13:00", 10)])
def test_an_early_horizon_catches_up_on_all_and_a_late_one_on_nothing(
    since: str, skipped: int
) -> None:
    merged, fires = resumed(since)
    assert merged == ([("SKIPPED", Reason.PAUSED, "12:01", skipped)] if skipped else [])
    assert len(fires) == 10 - skipped


def test_at_most_once_never_catches_up_on_times_that_may_have_run_in_lost_data() -> None:
    """P2.9: for any chosen horizon."""
    merged, fires = resumed("12:01", at_most_once=True)
    assert merged == [("SKIPPED", Reason.PAUSED, "12:01", 4)]
    assert fires[0] == "12:05"
    assert resumed("12:07", at_most_once=True) == resumed("12:07")
    assert resumed(None, at_most_once=True) == resumed(None)


def test_a_time_late_at_the_mark_may_have_run_in_lost_data() -> None:
    """P2.9: the owner was two minutes behind at the end of the backup, and continued after it."""
    merged, fires = resumed("12:07", at_most_once=True, stood="11:58")
    assert merged == [("SKIPPED", Reason.PAUSED, "11:58", 9)]
    assert fires == ["12:07", "12:08", "12:09", "12:10"]
    paused_before = pause("11:58:30", "11:58:40")
    assert resumed("12:07", at_most_once=True, stood="11:58", before=(paused_before,)) == (
        merged,
        fires,
    )
    _, fires = resumed("12:07", stood="11:58")
    assert fires[:3] == ["11:58", "11:59", "12:00"], "at least once it is caught up"


@pytest.mark.parametrize("jitter", [timedelta(0), timedelta(seconds=55)])
def test_at_most_once_does_not_run_a_time_that_was_late_at_the_backup(
    jitter: timedelta,
) -> None:
    """P2.9: a time from before the mark may have run in the lost data, late or jittered."""
    held = Pause(at("12:00"), "schedd", ended=at("12:10"), lost_until=at("12:04"), caught_up=True)
    compiled = minutely(jitter=jitter)
    before = pause("11:50", "11:55", caught_up=True)
    late, now = at("11:49"), at("12:10:59")
    step = plan(
        compiled, CatchUp(), late, compiled.due(late), now, Pauses(4, (before, held)),
        at_most_once=True,
    )  # fmt: skip
    assert step.fires == ()
    assert [(f.reason, f.first, f.count) for f in step.merged] == [(Reason.PAUSED, late, 16)]
    assert step.next is not None
    assert step.next.nominal == at("12:05")
