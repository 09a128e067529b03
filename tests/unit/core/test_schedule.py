"""Compiled schedules: occurrences, bounds, jitter, and invalid settings."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from schedd.core.ids import Id
from schedd.core.schedule import compiled_schedule
from schedd.core.schedule.compiled_schedule import (
    AtSchedule,
    CompiledSchedule,
    CronSchedule,
    EverySchedule,
    OnDemand,
    Schedule,
    ScheduleBounds,
)
from schedd.core.schedule.cron import CronError, DstGap, DstPolicy, ScheduleError

JOB = Id.parse("11111111-2222-3333-4444-555555555555")


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-01-01T{text}").replace(tzinfo=UTC)


def compiled(when: Schedule, bounds: ScheduleBounds | None = None) -> CompiledSchedule:
    return compiled_schedule.compile(when, "default/job", JOB, bounds or ScheduleBounds())


def nominals(one: CompiledSchedule, after: datetime, limit: int = 4) -> list[str]:
    found = one.instants_between(after, after + timedelta(days=400), limit)
    return [f"{occurrence.nominal:%H:%M:%S}" for occurrence in found]


class TestCron:
    def test_several_expressions_are_their_union(self) -> None:
        both = compiled(CronSchedule(("*/20 * * * *", "*/30 * * * *")))
        assert nominals(both, at("00:00"), 6) == [
            "00:20:00",
            "00:30:00",
            "00:40:00",
            "01:00:00",
            "01:20:00",
            "01:30:00",
        ]

    def test_a_union_is_counted_as_it_is_walked(self) -> None:
        """Over both clock changes; some times match several expressions."""
        union = compiled(
            CronSchedule(("*/40 1-3 * * *", "0 2,3 * * *", "30 2 * * *"), "Europe/Berlin")
        )
        for month in (3, 10):
            first = datetime(2026, month, 20, 12, 0, 0, 250_000, tzinfo=UTC)
            last = first + timedelta(days=9)
            walked = len(union.instants_between(first, last, 10_000))
            assert union.count(first, last) == walked

    def test_each_expression_may_name_its_own_zone(self) -> None:
        both = compiled(CronSchedule(("0 6 * * *", "CRON_TZ=Asia/Kathmandu 0 6 * * *"), "UTC"))
        assert nominals(both, at("00:00"), 2) == ["00:15:00", "06:00:00"]

    def test_the_policy_for_clock_changes_reaches_the_expressions(self) -> None:
        skipping = CronSchedule(("30 2 * * *",), "Europe/Berlin", DstPolicy(gap=DstGap.SKIP))
        before = datetime(2024, 3, 30, 12, tzinfo=UTC)
        following = compiled(skipping).next_after(before)
        assert following is not None
        assert following.nominal == datetime(2024, 4, 1, 0, 30, tzinfo=UTC)

    @pytest.mark.parametrize("expression", ["H * * * *", "0\u00a0H * * *"])
    def test_h_is_hashed_from_the_seed(self, expression: str) -> None:
        hourly = CronSchedule((expression,))
        first = compiled_schedule.compile(hourly, "default/a", JOB).next_after(at("00:00"))
        second = compiled_schedule.compile(hourly, "default/b", JOB).next_after(at("00:00"))
        assert first != second


class TestEvery:
    def test_an_interval_is_aligned_to_the_epoch(self) -> None:
        assert nominals(compiled(EverySchedule(timedelta(minutes=90))), at("00:00"), 3) == [
            "01:30:00",
            "03:00:00",
            "04:30:00",
        ]

    def test_an_interval_with_a_phase_keeps_it(self) -> None:
        moved = compiled(EverySchedule(timedelta(minutes=5), timedelta(seconds=17)))
        assert nominals(moved, at("00:00:17"), 2) == ["00:05:17", "00:10:17"]

    def test_an_interval_may_be_finer_than_seconds(self) -> None:
        found = compiled(EverySchedule(timedelta(seconds=1.5))).next_after(at("00:00"))
        assert found is not None
        assert found.nominal == at("00:00:01.500")

    def test_an_interval_counts_its_times_without_iteration(self) -> None:
        each_second = compiled(EverySchedule(timedelta(seconds=1)))
        years = timedelta(days=3650)
        assert each_second.count(at("00:00") - years, at("00:00")) == 3650 * 86400


class TestAt:
    def test_an_at_schedule_has_one_time(self) -> None:
        once = compiled(AtSchedule(at("12:00")))
        assert nominals(once, at("11:00")) == ["12:00:00"]
        assert once.next_after(at("12:00")) is None

    def test_any_offset_is_the_same_instant(self) -> None:
        plus_two = datetime(2026, 1, 1, 14, tzinfo=timezone(timedelta(hours=2)))
        found = compiled(AtSchedule(plus_two)).next_after(at("00:00"))
        assert found is not None
        assert found.nominal == at("12:00")
        assert found.nominal.tzinfo is UTC

    def test_a_time_shortly_before_the_job_was_created_is_due_at_once(self) -> None:
        once = compiled(AtSchedule(at("12:00")))
        first = once.first(at("12:00:45"))
        assert first == compiled_schedule.Occurrence(at("12:00"), at("12:00:45"))
        assert once.first(at("12:01:00")) is not None
        assert once.first(at("12:01:01")) is None
        assert once.first(at("11:00")) == once.next_after(at("11:00"))


def test_on_demand_is_never_due() -> None:
    assert compiled(OnDemand()).next_after(at("00:00")) is None
    assert compiled(OnDemand()).first(at("00:00")) is None


class TestBounds:
    def test_start_and_end_are_inclusive(self) -> None:
        within = compiled(
            EverySchedule(timedelta(minutes=1)), ScheduleBounds(at("10:00"), at("10:02"))
        )
        assert nominals(within, at("00:00")) == ["10:00:00", "10:01:00", "10:02:00"]
        assert within.next_after(at("10:02")) is None

    def test_bounds_apply_to_all_queries(self) -> None:
        within = compiled(CronSchedule(("* * * * *",)), ScheduleBounds(at("10:00"), at("10:02")))
        assert within.contains(at("10:02"))
        assert not within.contains(at("10:03"))
        assert within.newest(at("00:00"), at("23:00")) == at("10:02")
        assert within.newest(at("00:00"), at("09:00")) is None
        assert within.count(at("00:00"), at("23:00")) == 3

    def test_bounds_do_not_move_the_times(self) -> None:
        late = compiled(EverySchedule(timedelta(minutes=7)), ScheduleBounds(start=at("10:00:01")))
        free = compiled(EverySchedule(timedelta(minutes=7)))
        assert late.next_after(at("00:00")) == free.next_after(at("10:00:00"))


class TestJitter:
    def test_jitter_delays_by_a_hash_of_job_and_time(self) -> None:
        moved = compiled(CronSchedule(("0 * * * *",)), ScheduleBounds(jitter=timedelta(seconds=30)))
        delays = {
            one.due - one.nominal for one in moved.instants_between(at("00:00"), at("23:00"), 100)
        }
        assert len(delays) > 15
        assert max(delays) < timedelta(seconds=30)
        # Every member computes the same, in every version: never adapt this to the code.
        assert moved.due(at("01:00")) == at("01:00:00.251")

    def test_jitter_differs_between_jobs(self) -> None:
        jitter = ScheduleBounds(jitter=timedelta(seconds=30))
        hourly = CronSchedule(("0 * * * *",))
        dues = {
            compiled_schedule.compile(hourly, "ns/j", Id.from_int(n), jitter).due(at("01:00"))
            for n in range(50)
        }
        assert len(dues) > 45

    def test_jitter_never_reaches_the_next_scheduled_time(self) -> None:
        dense = compiled(
            CronSchedule(("* * * * * *",)), ScheduleBounds(jitter=timedelta(minutes=5))
        )
        for one in dense.instants_between(at("00:00"), at("00:05"), 300):
            assert timedelta(0) <= one.due - one.nominal < timedelta(seconds=1)

    def test_an_end_does_not_change_the_jitter(self) -> None:
        jitter = timedelta(minutes=2)
        free = compiled(CronSchedule(("* * * * *",)), ScheduleBounds(jitter=jitter))
        ended = compiled(
            CronSchedule(("* * * * *",)), ScheduleBounds(end=at("10:00"), jitter=jitter)
        )
        assert free.due(at("10:00")) == ended.due(at("10:00"))


def test_contains_is_true_for_scheduled_times_only() -> None:
    one = compiled(CronSchedule(("30 2 * * *",), "Europe/Berlin"))
    assert one.contains(at("01:30"))
    assert not one.contains(at("01:30:00.000001"))
    assert not one.contains(at("01:31"))
    assert not one.contains(at("02:30"))


def test_instants_between_excludes_the_beginning_and_includes_the_end() -> None:
    one = compiled(CronSchedule(("* * * * *",)))
    found = one.instants_between(at("10:00"), at("10:03"), 10)
    assert [occurrence.nominal for occurrence in found] == [at("10:01"), at("10:02"), at("10:03")]
    assert len(one.instants_between(at("10:00"), at("10:03"), 2)) == 2


def test_the_newest_time_is_found_after_a_long_pause() -> None:
    leap = compiled(CronSchedule(("0 0 29 2 *",)))
    assert leap.newest(datetime(2000, 1, 1, tzinfo=UTC), at("00:00")) == datetime(
        2024, 2, 29, tzinfo=UTC
    )


@pytest.mark.parametrize(
    ("when", "bounds", "field"),
    [
        (CronSchedule(()), ScheduleBounds(), "cron"),
        (EverySchedule(timedelta(seconds=0.5)), ScheduleBounds(), "every"),
        (EverySchedule(timedelta(0)), ScheduleBounds(), "every"),
        (EverySchedule(timedelta(seconds=-5)), ScheduleBounds(), "every"),
        (EverySchedule(timedelta(seconds=1, microseconds=1)), ScheduleBounds(), "every"),
        (EverySchedule(timedelta(seconds=5), timedelta(seconds=5)), ScheduleBounds(), "phase"),
        (EverySchedule(timedelta(seconds=5), timedelta(seconds=-1)), ScheduleBounds(), "phase"),
        (AtSchedule(datetime(2026, 1, 1)), ScheduleBounds(), "at"),  # noqa: DTZ001 - that is the point
        (OnDemand(), ScheduleBounds(end=datetime(2026, 1, 1)), "end"),  # noqa: DTZ001 - as above
        (OnDemand(), ScheduleBounds(at("10:00"), at("09:00")), "end"),
        (OnDemand(), ScheduleBounds(jitter=timedelta(seconds=-1)), "jitter"),
    ],
)
def test_an_invalid_schedule_is_rejected_by_its_field(
    when: Schedule, bounds: ScheduleBounds, field: str
) -> None:
    with pytest.raises(ScheduleError) as refusal:
        compiled(when, bounds)
    assert refusal.value.field == field
    assert refusal.value.hint


def test_a_rejected_expression_is_a_rejected_schedule() -> None:
    with pytest.raises(CronError):
        compiled(CronSchedule(("0 0 * * *", "0 0 31 2 *")))
    assert issubclass(CronError, ScheduleError)
