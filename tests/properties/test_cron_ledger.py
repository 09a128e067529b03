"""Whatever an owner's looks at its timer: every due instant is accounted for exactly once."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedd.core.ids import Id
from schedd.core.jobs.definition import CatchUp, CatchUpPolicy
from schedd.core.runs.lifecycle import State
from schedd.core.schedule import compiled_schedule
from schedd.core.schedule.compiled_schedule import (
    CompiledSchedule,
    CronSchedule,
    EverySchedule,
    Occurrence,
    ScheduleBounds,
)
from schedd.core.timers.fire_plan import GRACE, FirePlan, StepLimits, plan

START = datetime(2026, 10, 24, 20, tzinfo=UTC)
"""Some hours before the clocks of Berlin go back."""

TICK = timedelta(microseconds=1)

schedules = st.sampled_from(
    [
        CronSchedule(("* * * * *",)),
        CronSchedule(("*/7 * * * *", "*/5 1-3 * * *"), zone="Europe/Berlin"),
        CronSchedule(("0,30 2 * * *", "CRON_TZ=America/New_York 15 22 * * *"), "Europe/Berlin"),
        CronSchedule(("*/20 * * * * *",)),
        EverySchedule(timedelta(seconds=90), timedelta(seconds=7)),
        EverySchedule(timedelta(hours=1)),
    ]
)
seconds = st.integers(0, 40_000).map(lambda tenths: timedelta(seconds=tenths / 10))
looks = st.lists(seconds | st.integers(0, 12).map(lambda h: timedelta(hours=h)), max_size=12)
policies = st.builds(
    CatchUp,
    st.sampled_from(CatchUpPolicy),
    st.sampled_from([0, 45, 600, 3600, 90_000]).map(lambda s: timedelta(seconds=s)),
)
jitters = st.sampled_from([0, 1, 30, 4000]).map(lambda s: timedelta(seconds=s))


@dataclass
class Ledger:
    """The rows that an owner would write, and its timer."""

    compiled: CompiledSchedule
    policy: CatchUp
    timer: Occurrence | None
    spans: list[tuple[datetime, datetime, int]] = field(default_factory=list)
    fired: list[datetime] = field(default_factory=list)

    def look(self, now: datetime, limit: int) -> None:
        while self.timer is not None and self.timer.due <= now:
            step = plan(
                self.compiled,
                self.policy,
                self.timer.nominal,
                self.timer.due,
                now,
                limits=StepLimits(limit),
            )
            self.check(step, now)
            assert step.merged or step.fires, "a timer that is due makes progress"
            self.spans += [(times.first, times.last, times.count) for times in step.merged]
            self.spans += [(fire.nominal, fire.nominal, 1) for fire in step.fires]
            self.fired += [fire.nominal for fire in step.fires]
            self.timer = step.next

    def check(self, step: FirePlan, now: datetime) -> None:
        for fire in step.fires:
            assert fire.due <= now, "nothing fires early"
            assert fire.due == self.compiled.due(fire.nominal)
            assert fire.late == (now - fire.due > GRACE)
            if fire.late:
                assert self.policy.policy is not CatchUpPolicy.NONE
                assert now - fire.nominal <= self.policy.window
        for times in step.merged:
            if times.state is State.COALESCED:
                assert times.into in [fire.nominal for fire in step.fires]
                assert self.policy.policy is CatchUpPolicy.LATEST
        if self.policy.policy is CatchUpPolicy.LATEST:
            assert sum(fire.late for fire in step.fires) <= 1


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(schedules, policies, jitters, looks, st.sampled_from([2, 5, 1000]))
def test_each_due_instant_is_in_exactly_one_row(
    when: compiled_schedule.Schedule,
    policy: CatchUp,
    jitter: timedelta,
    looks: list[timedelta],
    limit: int,
) -> None:
    compiled = compiled_schedule.compile(
        when, "ns/job", Id.from_int(7), ScheduleBounds(jitter=jitter)
    )
    ledger = Ledger(compiled, policy, compiled.first(START))
    now = START
    for pause in looks:
        now += pause
        ledger.look(now, limit)

    expected = [
        one.nominal for one in compiled.instants_between(START, now, 100_000) if one.due <= now
    ]
    rows = sorted(ledger.spans)
    assert rows == ledger.spans, "rows are written in the order of time"
    remaining = list(expected)
    for first, last, count in rows:
        assert remaining[0] == first
        assert remaining[count - 1] == last
        del remaining[:count]
    assert not remaining
    assert len(set(ledger.fired)) == len(ledger.fired)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(schedules, jitters, seconds, st.integers(0, 3))
def test_due_instants_keep_the_order_of_the_nominal_ones(
    when: compiled_schedule.Schedule, jitter: timedelta, offset: timedelta, job: int
) -> None:
    compiled = compiled_schedule.compile(
        when, "ns/job", Id.from_int(job), ScheduleBounds(jitter=jitter)
    )
    found = compiled.instants_between(START + offset, START + timedelta(days=2), 40)
    for one, following in pairwise(found):
        assert one.nominal <= one.due < following.nominal
        assert one.due - one.nominal < max(jitter, TICK)


@settings(max_examples=200, deadline=None)
@given(schedules, seconds, seconds)
def test_the_newest_instant_and_the_count_are_those_of_a_walk(
    when: compiled_schedule.Schedule, offset: timedelta, span: timedelta
) -> None:
    compiled = compiled_schedule.compile(when, "ns/job", Id.from_int(1))
    after, until = START + offset, START + offset + span * 20
    walked = [one.nominal for one in compiled.instants_between(after, until, 100_000)]
    assert compiled.newest(after, until) == (walked[-1] if walked else None)
    assert compiled.count(after, until) == len(walked)
