"""Compare a job's exclusions with a walk through real time; each instant is in exactly one row.

`almanac/closing.py` is the judge: it draws calendars together with what they mean, and finds what
they exclude, and where it is moved to, minute by minute. CALENDAR_TRIALS=20000 tries more, SEED=7
the same ones again.
"""

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random, SystemRandom

import pytest

from almanac.closing import Case, Drawn, Foundations, draw_calendar, draw_expression
from almanac.trials import ZONES
from almanac.walker import changes
from schedd.core.ids import Id
from schedd.core.jobs.definition import CatchUp, CatchUpPolicy
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.schedule import compiled_schedule
from schedd.core.schedule.calendars.rules import CalendarVersion, Exclude, WrongRules, rules
from schedd.core.schedule.compiled_schedule import (
    CompiledSchedule,
    CronSchedule,
    Occurrence,
    ScheduleBounds,
)
from schedd.core.schedule.cron import EPOCH, CronError, DstGap, DstOverlap, DstPolicy
from schedd.core.schedule.cron.day_bits import DAY, of_seconds
from schedd.core.timers import fire_steps
from schedd.core.timers.fire_plan import MergedTimes

HERE = "tests/properties/test_calendars.py"
TRIALS = int(os.environ.get("CALENDAR_TRIALS", "25"))
SEED = int(os.environ.get("SEED") or SystemRandom().randrange(1_000_000))
PER_GROUND = 25
LENGTH = 6 * 86400
FIRST, LAST = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (2010, 2035))
TICK = timedelta(microseconds=1)


@pytest.mark.timeout(600)
def test_a_schedule_runs_and_excludes_the_instants_that_a_walk_finds(figure) -> None:
    tried = moved = excluded = 0
    grounds = max(1, TRIALS // PER_GROUND)
    most = max(5 * grounds, 60 if TRIALS >= 100 else 0)
    for number in range(most):
        if number >= grounds and moved > tried / 20:
            break  # else few drawn times are moved: draw until there are enough
        for case, compiled, random in cases(f"{SEED}/{number}"):
            story = f"again: SEED={SEED} make test TESTS={HERE}\n{case.meaning.text} {case.dst}"
            context = f"{story} {case.ground.zone} {[one.said for one in case.calendars]}"
            start, end = at(case.ground.start), at(case.ground.end)
            found = [seconds(one.nominal) for one in compiled.instants_between(start, end, 10_000)]
            assert found == case.runs[:10_000], context
            every = compiled.whole.instants_between(start, end, 10_000)
            assert [seconds(one.nominal) for one in every] == case.every[:10_000], context
            for one in random.sample(case.every, min(20, len(case.every))):
                assert compiled.excludes(at(one)) == (one not in set(case.runs)), context
            check_any_start(case, compiled, random, context)
            by_days(case, compiled, context)
            tried += 1
            excluded += len(case.every) - len(case.runs)
            moved += len(set(case.runs) - set(case.base))
    figure(
        f"calendars, seed {SEED}: {tried:,} schedules, {excluded:,} instants excluded, "
        f"{moved:,} moved"
    )
    assert excluded > tried
    if TRIALS >= 100:  # fewer trials may move too few times
        assert moved > tried / 20


def check_any_start(case: Case, compiled: CompiledSchedule, random: Random, context: str) -> None:
    """The next, the newest and the count don't depend on where a search begins."""
    runs, end = case.runs, case.ground.end
    for _ in range(10):
        second = random.randint(case.ground.start, end)
        place = bisect_right(runs, second)
        following = compiled.next_after(at(second))
        if place < len(runs):
            assert following is not None, context
            assert seconds(following.nominal) == runs[place], context
        elif following is not None:
            assert following.nominal > at(end), context
        newest = compiled.newest(at(second), at(end))
        assert (newest and seconds(newest)) == (runs[-1] if runs[place:] else None), context
        some = compiled.instants_between(at(second), at(end), 7)
        assert [seconds(one.nominal) for one in some] == runs[place : place + 7], context
        assert compiled.count(at(second), at(end)) == len(runs) - place, context


def by_days(case: Case, compiled: CompiledSchedule, context: str) -> None:
    """Each day's bits are the instants that the walk finds there."""
    whole = compiled.whole.instants
    for day in range(case.ground.start // DAY + 1, case.ground.end // DAY):
        for instants, walked in ((compiled.instants, case.runs), (whole, case.every)):
            there = walked[bisect_left(walked, day * DAY) : bisect_left(walked, (day + 1) * DAY)]
            assert instants.times_on_day(day) == of_seconds(one - day * DAY for one in there), (
                context
            )


def test_each_due_instant_is_in_exactly_one_row_excluded_or_not() -> None:
    rows = merged_rows = 0
    for number in range(max(1, TRIALS // PER_GROUND)):
        for case, _, random in cases(f"ledger/{SEED}/{number}"):
            if len(case.every) > 3000:
                continue
            context = f"again: SEED={SEED} make test TESTS={HERE}\n{case.meaning.text} {case.dst}"
            context += f" {case.ground.zone} {[one.said for one in case.calendars]}"
            jitter = timedelta(seconds=random.choice((0, 0, 30, 4000)))
            jittery = compiled_of(case, jitter)
            policy = CatchUp(
                random.choice(list(CatchUpPolicy)), timedelta(hours=random.choice((1, 5, 50)))
            )
            written = list(written_rows(jittery, policy, case, random))
            rows += len(written)
            merged_rows += sum(count > 1 for _, _, count, _ in written)
            now = at(case.ground.end)
            remaining = [one for one in case.every if jittery.due(at(one)) <= now]
            runs = set(case.runs)
            for first, last, count, skipped in sorted(written):
                assert (seconds(first), seconds(last)) == (remaining[0], remaining[count - 1]), (
                    context
                )
                assert all((one not in runs) == skipped for one in remaining[:count]), context
                del remaining[:count]
            assert not remaining, context
    assert rows > TRIALS
    assert merged_rows


def written_rows(
    compiled: CompiledSchedule, policy: CatchUp, case: Case, random: Random
) -> Iterator[tuple[datetime, datetime, int, bool]]:
    """The rows that an owner writes who looks now and then: first, last, count, excluded."""
    now, end = at(case.ground.start), at(case.ground.end)
    timer = compiled.following(now)
    while timer is not None and now <= end:
        if timer.due > now and random.random() < 0.7:
            now = timer.due  # on time
        else:
            now += timedelta(seconds=random.choice((1, 600, 20_000, 100_000)))
        if now > end:
            now = end
        while timer is not None and timer.due <= now:
            step = fire_steps.plan(compiled, policy, timer.nominal, timer.due, now)
            assert step.merged or step.fires, "a timer that is due makes progress"
            checked(compiled, policy, step.merged)
            for times in step.merged:
                excluded = times.reason is Reason.CALENDAR
                yield times.first, times.last, times.count, excluded
            for fire in step.fires:
                assert fire.due == compiled.due(fire.nominal) <= now
                yield fire.nominal, fire.nominal, 1, False
            timer = step.next
        if now == end:
            break
    # Excluded instants wait for the last of their row: an owner that looked now would write them.
    if timer is not None and compiled.due(timer.nominal) <= end:
        step = fire_steps.plan(compiled, policy, timer.nominal, end, end)
        for times in step.merged:
            yield times.first, times.last, times.count, times.reason is Reason.CALENDAR


def checked(compiled: CompiledSchedule, policy: CatchUp, merged: tuple[MergedTimes, ...]) -> None:
    for times in merged:
        assert (times.reason is Reason.CALENDAR) == compiled.excludes(times.first)
        assert times.due == compiled.due(times.first) or not compiled.excludes(times.first)
        if times.state is State.COALESCED:
            assert policy.policy is CatchUpPolicy.LATEST
    for one, following in pairwise(merged):
        assert one.last < following.first


def cases(seed: str) -> Iterator[tuple[Case, CompiledSchedule, Random]]:
    """Expressions with what they exclude, over one ground; half of them on a change of clocks."""
    random = Random(seed)
    on_a_change = random.random() < 0.6
    zone = random.choice([zone for zone in ZONES if changes(zone) or not on_a_change])
    start = random.randint(FIRST, LAST)
    if on_a_change:
        start = random.choice(changes(zone)) - random.randint(0, LENGTH - 86400)
    ground = Foundations(zone, start, start + LENGTH)
    others = [zone, random.choice(ZONES)]
    for _ in range(PER_GROUND):
        dst = DstPolicy(random.choice(tuple(DstGap)), random.choice(tuple(DstOverlap)))
        calendars = [
            draw_calendar(random, start + LENGTH // 2, others)
            for _ in range(random.choice((1, 1, 1, 2)))
        ]
        case = Case(ground, draw_expression(random), dst, calendars)
        try:
            compiled = compiled_of(case)
        except (CronError, WrongRules):
            continue  # it never matches, or excludes every day
        if len(case.base) < 10_000:
            yield case, compiled, random


def compiled_of(case: Case, jitter: timedelta = timedelta(0)) -> CompiledSchedule:
    exclude = Exclude(
        tuple(calendar(each, place) for place, each in enumerate(case.calendars)),
        zone=case.ground.zone,
    )
    when = CronSchedule((case.meaning.text,), case.ground.zone, case.dst)
    return compiled_schedule.compile(
        when, "ns/job", Id.from_int(7), ScheduleBounds(jitter=jitter), exclude
    )


def calendar(drawn: Drawn, place: int) -> CalendarVersion:
    return CalendarVersion(f"c{place}", 1, rules(**drawn.said))


def at(second: int) -> datetime:
    return EPOCH + timedelta(seconds=second)


def seconds(instant: datetime) -> int:
    return round((instant - EPOCH).total_seconds())


def test_a_timer_behind_an_excluded_instant_is_due_with_the_last_of_a_day() -> None:
    weekend = CalendarVersion("weekends", 3, rules(weekdays=["sat", "sun"]))
    when = CronSchedule(("0 * * * *",))
    compiled = compiled_schedule.compile(
        when, "", Id.from_int(1), ScheduleBounds(), Exclude((weekend,))
    )
    friday = datetime.fromisoformat("2026-11-20T23:00Z")
    saturday, sunday = friday + timedelta(hours=1), friday + timedelta(hours=25)
    assert compiled.following(friday) == Occurrence(saturday, sunday - timedelta(hours=1))
    assert compiled.next_after(friday) == Occurrence(*[sunday + timedelta(days=1)] * 2)
