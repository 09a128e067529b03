"""Plans of an owner for a due timer: on time, late, or long past."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from schedd.core.ids import Id
from schedd.core.jobs.definition import CatchUp, CatchUpPolicy
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.schedule import compiled_schedule
from schedd.core.schedule.compiled_schedule import (
    AtSchedule,
    CronSchedule,
    EverySchedule,
    Occurrence,
    Schedule,
    ScheduleBounds,
)
from schedd.core.timers.fire_plan import (
    FirePlan,
    MergedTimes,
    PlannedRun,
    StepLimits,
    merge_until,
    plan,
)

MINUTELY = CronSchedule(("* * * * *",))
LATEST, ALL, NONE = CatchUpPolicy.LATEST, CatchUpPolicy.ALL, CatchUpPolicy.NONE


def at(text: str, day: int = 10) -> datetime:
    return datetime.fromisoformat(f"2026-01-{day:02}T{text}").replace(tzinfo=UTC)


def planned_step(
    now: datetime,
    nominal: datetime,
    policy: CatchUpPolicy = LATEST,
    when: Schedule = MINUTELY,
    *,
    window: timedelta = timedelta(hours=1),
    bounds: ScheduleBounds | None = None,
    **options: Any,
) -> FirePlan:
    compiled = compiled_schedule.compile(when, "ns/job", Id.from_int(1), bounds or ScheduleBounds())
    due = compiled.due(nominal)
    return plan(compiled, CatchUp(policy, window), nominal, due, now, limits=StepLimits(**options))


def on_time(instant: datetime) -> PlannedRun:
    return PlannedRun(instant, instant)


def late(instant: datetime) -> PlannedRun:
    return PlannedRun(instant, instant, late=True)


def occurrence(instant: datetime) -> Occurrence:
    return Occurrence(instant, instant)


class TestOnTime:
    def test_a_timer_before_its_due_time_fires_nothing(self) -> None:
        assert planned_step(at("11:59:59.999"), at("12:00")) == FirePlan(
            (), (), occurrence(at("12:00"))
        )

    @pytest.mark.parametrize("policy", [LATEST, ALL, NONE])
    @pytest.mark.parametrize("seconds", [0, 0.4, 1])
    def test_up_to_a_second_past_its_due_it_is_on_time(
        self, policy: CatchUpPolicy, seconds: float
    ) -> None:
        step = planned_step(at("12:00") + timedelta(seconds=seconds), at("12:00"), policy)
        assert step == FirePlan((), (on_time(at("12:00")),), occurrence(at("12:01")))

    def test_two_instants_within_the_second_both_fire(self) -> None:
        each_second = EverySchedule(timedelta(seconds=1))
        step = planned_step(at("12:00:01"), at("12:00:00"), when=each_second)
        assert step.fires == (on_time(at("12:00:00")), on_time(at("12:00:01")))
        assert step.next == occurrence(at("12:00:02"))

    def test_an_instant_waits_for_its_jitter(self) -> None:
        bounds = ScheduleBounds(jitter=timedelta(seconds=50))
        compiled = compiled_schedule.compile(MINUTELY, "ns/job", Id.from_int(1), bounds)
        due = compiled.due(at("12:00"))
        assert due > at("12:00:02")
        waiting = planned_step(due - timedelta(milliseconds=1), at("12:00"), bounds=bounds)
        assert waiting.fires == ()
        fired = planned_step(due, at("12:00"), bounds=bounds)
        assert fired.fires == (PlannedRun(at("12:00"), due),)

    def test_a_run_that_is_due_soon_may_be_prepared(self) -> None:
        compiled = compiled_schedule.compile(
            EverySchedule(timedelta(seconds=1)), "ns/job", Id.from_int(1)
        )
        now = at("12:00")
        step = plan(
            compiled, CatchUp(), now, now, now, limits=StepLimits(ahead=timedelta(seconds=3))
        )
        assert [fire.nominal for fire in step.fires] == [
            now + timedelta(seconds=n) for n in range(4)
        ]
        assert not any(fire.late for fire in step.fires)


class TestLatest:
    def test_the_newest_late_time_coalesces_the_older_ones(self) -> None:
        step = planned_step(at("12:10:30"), at("12:01"))
        coalesced = MergedTimes(
            State.COALESCED, None, at("12:01"), at("12:09"), 9, at("12:01"), into=at("12:10")
        )
        assert step == FirePlan((coalesced,), (late(at("12:10")),), occurrence(at("12:11")))

    def test_a_time_that_is_on_time_coalesces_all_late_ones(self) -> None:
        step = planned_step(at("12:10:00.5"), at("12:01"))
        assert step.fires == (on_time(at("12:10")),)
        assert [(times.first, times.last, times.into) for times in step.merged] == [
            (at("12:01"), at("12:09"), at("12:10"))
        ]

    def test_a_single_late_time_fires(self) -> None:
        step = planned_step(at("12:00:30"), at("12:00"))
        assert step == FirePlan((), (late(at("12:00")),), occurrence(at("12:01")))

    def test_a_time_outside_the_window_is_missed(self) -> None:
        step = planned_step(at("12:10:30"), at("09:00"))
        missed, coalesced = step.merged
        assert (missed.state, missed.reason) == (State.MISSED, Reason.WINDOW)
        assert (missed.first, missed.last, missed.count) == (at("09:00"), at("11:10"), 131)
        assert (coalesced.first, coalesced.count) == (at("11:11"), 59)
        assert step.fires == (late(at("12:10")),)

    def test_a_daily_job_whose_time_is_long_past_waits_for_tomorrow(self) -> None:
        step = planned_step(at("12:00"), at("02:30"), when=CronSchedule(("30 2 * * *",)))
        assert [(times.reason, times.count) for times in step.merged] == [(Reason.WINDOW, 1)]
        assert step.fires == ()
        assert step.next == occurrence(at("02:30", day=11))

    def test_the_window_is_measured_on_nominal_time(self) -> None:
        # Its jitter is 50 s: by its due it would lie within the window.
        step = planned_step(
            at("12:00:50"),
            at("11:00"),
            when=AtSchedule(at("11:00")),
            bounds=ScheduleBounds(jitter=timedelta(seconds=59)),
        )
        assert [times.reason for times in step.merged] == [Reason.WINDOW]

    def test_a_lookahead_does_not_coalesce_late_times_into_the_future(self) -> None:
        compiled = compiled_schedule.compile(MINUTELY, "ns/job", Id.from_int(1))
        step = plan(
            compiled,
            CatchUp(),
            at("12:01"),
            at("12:01"),
            at("12:10:58"),
            limits=StepLimits(ahead=timedelta(seconds=5)),
        )
        assert step.fires == (late(at("12:10")), on_time(at("12:11")))
        assert [times.into for times in step.merged] == [at("12:10")]


class TestAll:
    def test_each_instant_of_the_window_fires_in_order(self) -> None:
        step = planned_step(at("12:03:30"), at("12:00"), ALL)
        assert step == FirePlan(
            (), tuple(late(at(f"12:0{n}")) for n in range(4)), occurrence(at("12:04"))
        )

    def test_late_times_fire_before_the_one_that_is_on_time(self) -> None:
        step = planned_step(at("12:02"), at("12:00"), ALL)
        assert step.fires == (late(at("12:00")), late(at("12:01")), on_time(at("12:02")))

    def test_a_time_inside_the_window_of_the_first_plan_is_inside_for_the_next_ones(self) -> None:
        """A slow owner must not cause missed times."""
        first = planned_step(at("13:00"), at("12:00"), ALL, most=2)
        assert first == FirePlan(
            (), (late(at("12:00")), late(at("12:01"))), occurrence(at("12:02"))
        )
        again = planned_step(at("13:05"), at("12:02"), ALL, most=2, looked=at("13:00"))
        assert again == FirePlan(
            (), (late(at("12:02")), late(at("12:03"))), occurrence(at("12:04"))
        )
        later = planned_step(at("13:05"), at("12:02"), ALL, most=2)
        assert [(times.reason, times.count) for times in later.merged] == [(Reason.WINDOW, 3)]

    def test_a_limit_leaves_the_rest_to_the_next_plan(self) -> None:
        step = planned_step(at("12:10"), at("12:00"), ALL, most=3)
        assert [fire.nominal for fire in step.fires] == [at("12:00"), at("12:01"), at("12:02")]
        assert step.next == occurrence(at("12:03"))

    def test_a_time_outside_the_window_is_missed(self) -> None:
        step = planned_step(at("12:00"), at("10:58"), ALL)
        assert [(times.reason, times.count) for times in step.merged] == [(Reason.WINDOW, 2)]
        assert step.fires[0] == late(at("11:00"))
        assert len(step.fires) == 61


class TestNone:
    def test_late_instants_are_missed_and_the_one_on_time_fires(self) -> None:
        step = planned_step(at("12:10"), at("09:00"), NONE)
        assert [(times.state, times.reason, times.count) for times in step.merged] == [
            (State.MISSED, Reason.CATCH_UP_NONE, 190)
        ]
        assert step.fires == (on_time(at("12:10")),)


class TestEnds:
    def test_a_schedule_that_has_ended_has_no_next(self) -> None:
        step = planned_step(at("12:00"), at("12:00"), when=AtSchedule(at("12:00")))
        assert step == FirePlan((), (on_time(at("12:00")),), None)

    def test_an_end_within_the_outage_ends_the_timer(self) -> None:
        step = planned_step(at("12:10:30"), at("12:00"), bounds=ScheduleBounds(end=at("12:05")))
        assert step.fires == (late(at("12:05")),)
        assert [(times.last, times.into) for times in step.merged] == [(at("12:04"), at("12:05"))]
        assert step.next is None

    def test_a_time_that_the_schedule_lacks_is_still_recorded(self) -> None:
        step = planned_step(at("12:02:30"), at("12:00:17"), ALL)
        assert [fire.nominal for fire in step.fires] == [at("12:00:17"), at("12:01"), at("12:02")]


class TestLongOutages:
    @pytest.mark.parametrize(
        "when", [EverySchedule(timedelta(seconds=1)), CronSchedule(("* * * * * *",))]
    )
    def test_days_of_seconds_are_one_row(self, when: Schedule) -> None:
        step = planned_step(at("12:00:00.5", day=30), at("12:00", day=1), when=when)
        missed, coalesced = step.merged
        assert missed.count == 29 * 86400 - 3600 + 1
        assert coalesced.count == 3600 - 1
        assert step.fires == (on_time(at("12:00", day=30)),)

    def test_a_union_is_counted_in_parts(self) -> None:
        union = CronSchedule(("*/2 * * * * *", "*/3 * * * * *"))
        timer: Occurrence | None = occurrence(at("00:00", day=1))
        now, counted, plans = at("10:00", day=1), 0, 0
        while timer is not None and timer.due <= now:
            step = planned_step(now, timer.nominal, when=union)
            assert step.merged or step.fires
            counted += sum(times.count for times in step.merged) + len(step.fires)
            timer, plans = step.next, plans + 1
        assert counted == 10 * 3600 * 4 // 6 + 1
        assert plans < 5


class TestMergeUntil:
    def test_all_due_times_are_merged_into_one_row(self) -> None:
        compiled = compiled_schedule.compile(MINUTELY, "ns/job", Id.from_int(1))
        times, following = merge_until(
            compiled, occurrence(at("12:00")), at("12:10:30"), State.SKIPPED, Reason.PAUSED
        )
        assert times is not None
        assert (times.first, times.last, times.count) == (at("12:00"), at("12:10"), 11)
        assert (times.state, times.reason) == (State.SKIPPED, Reason.PAUSED)
        assert following == occurrence(at("12:11"))

    def test_a_range_without_due_times_has_no_row(self) -> None:
        compiled = compiled_schedule.compile(MINUTELY, "ns/job", Id.from_int(1))
        timer = occurrence(at("12:00"))
        assert merge_until(compiled, timer, at("11:59"), State.MISSED, Reason.EDITED) == (
            None,
            timer,
        )
