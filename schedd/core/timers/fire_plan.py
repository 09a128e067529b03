"""Plan the next step of a timer: what fires, what is recorded without a run, what is next
(docs/semantics/catch-up.md). Pure.

    scheduled times not yet recorded, oldest first                              now
    ──┬──────┬──────┬───────────┬──────┬──────┬──────────────────┬──────────┬────┼──▶
      outside the window        inside the window                on time    next

Invariants
- Each scheduled time from the timer's to the last due one is recorded exactly once: by a run or in
  one merged row (`MergedTimes`). `FirePlan.next` is the first time that isn't recorded.
- Nothing fires before it is due, minus `ahead`.
- However long the outage was, its times are counted, not walked. A plan that fires as many runs as
  its limit allows ends early: its `next` is already due, and the owner plans again.
- All plans of a catch-up measure the window at the time of the first (`looked`), so a time that was
  inside the window doesn't fall out of it.
"""

from datetime import datetime, timedelta
from typing import Final

from schedd.core.jobs.definition import CatchUp, CatchUpPolicy
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.schedule.compiled_schedule import CompiledSchedule, Occurrence
from schedkit.records import dataclass, replace

GRACE: Final = timedelta(seconds=1)
"""A run fired at most this long after its due time is on time."""

FIRES: Final = 1000

NOT_EARLY: Final = timedelta(0)

_TICK: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class StepLimits:
    """How far one step of a timer goes."""

    most: int = FIRES
    """The most runs to fire."""
    looked: datetime | None = None
    """The time of the first step of this catch-up, which measures the window; None: now."""
    ahead: timedelta = NOT_EARLY
    """Times that are due within this time from now fire too, to be pre-dispatched."""


PLAIN: Final = StepLimits()


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A scheduled time that becomes a run now. `late`: by catch-up, not on time."""

    nominal: datetime
    due: datetime
    late: bool = False


@dataclass(frozen=True, slots=True)
class MergedTimes:
    """A merged row for `count` scheduled times that don't run, from `first` to `last`: MISSED or
    SKIPPED with a `reason`, or COALESCED into the run of the scheduled time `into`. `due`: of
    `first`.
    """

    state: State
    reason: Reason | None
    first: datetime
    last: datetime
    count: int
    due: datetime
    into: datetime | None = None
    excluded_by: str = ""
    """The cause of a skip, as text: the calendar with its version, or the pause."""


@dataclass(frozen=True, slots=True)
class FirePlan:
    """A step of a timer: merged rows and runs, oldest first, and the timer's next value. `next` is
    None if the schedule has ended.
    """

    merged: tuple[MergedTimes, ...]
    fires: tuple[PlannedRun, ...]
    next: Occurrence | None


def plan(
    compiled: CompiledSchedule,
    policy: CatchUp,
    nominal: datetime,
    due: datetime,
    now: datetime,
    *,
    limits: StepLimits = PLAIN,
    until: datetime | None = None,
) -> FirePlan:
    """Return the step of a timer at `now`.

    `nominal`, `due`: the first scheduled time that isn't recorded, and its due time. The time is
    used even if the current schedule doesn't have it. `until`: times that are due later are left
    for the next step.
    """
    late_before, last = now - GRACE, now + limits.ahead
    if until is not None:
        late_before, last = min(late_before, until + _TICK), min(last, until)
    opens = (limits.looked or now) - policy.window
    planner = _Planner(compiled, policy, now, opens, late_before, last, limits.most)
    return planner.run(Occurrence(nominal, due))


def merge_until(
    compiled: CompiledSchedule,
    occurrence: Occurrence,
    until: datetime,
    state: State,
    reason: Reason,
    excluded_by: str = "",
) -> tuple[MergedTimes | None, Occurrence | None]:
    """Merge the scheduled times from `occurrence` on that are due at `until` into one row. Return
    the row (None if nothing is due) and the next occurrence, already due if the row had to end
    early.
    """
    if occurrence.due > until:
        return None, occurrence
    last = newest_due(compiled, occurrence, until)
    times = _merged_times(compiled, occurrence, last, state, reason)
    return replace(times, excluded_by=excluded_by), compiled.next_after(times.last)


@dataclass(frozen=True, slots=True)
class _Planner:
    """The inputs of one plan: the schedule, the policies, and the limits."""

    compiled: CompiledSchedule
    policy: CatchUp
    now: datetime
    opens: datetime
    late_before: datetime
    until: datetime
    limit: int

    def run(self, head: Occurrence) -> FirePlan:
        if head.due > self.until:
            return FirePlan((), (), head)
        if head.due >= self.late_before:
            return self._on_time((), (), head)
        last = newest_due(self.compiled, head, self.late_before - _TICK)
        if self.policy.policy is CatchUpPolicy.NONE:
            times = _merged_times(self.compiled, head, last, State.MISSED, Reason.CATCH_UP_NONE)
            return self._on_time((times,), (), self.compiled.next_after(last))
        return self._windowed(head, last)

    def _windowed(self, head: Occurrence, last: datetime) -> FirePlan:
        """Return the plan for the late times from `head` to `last` under LATEST or ALL."""
        merged: tuple[MergedTimes, ...] = ()
        if head.nominal < self.opens:
            end = min(last, self.opens - _TICK)
            outside = self.compiled.newest(head.nominal, end) or head.nominal
            times = _merged_times(self.compiled, head, outside, State.MISSED, Reason.WINDOW)
            following = self.compiled.next_after(outside)
            if outside == last or following is None:
                return self._on_time((times,), (), following)
            merged, head = (times,), following
        if self.policy.policy is not CatchUpPolicy.ALL:
            return self._latest(merged, head, last)
        late = self.compiled.instants_between(head.nominal, last, self.limit - 1)
        fires = tuple(PlannedRun(one.nominal, one.due, late=True) for one in (head, *late))
        following = self.compiled.next_after(fires[-1].nominal)
        if fires[-1].nominal != last:
            return FirePlan(merged, fires, following)
        return self._on_time(merged, fires, following)

    def _latest(
        self, merged: tuple[MergedTimes, ...], head: Occurrence, last: datetime
    ) -> FirePlan:
        """Return the plan under LATEST: older times are coalesced into the newest one, which is on
        time or else the last late one.
        """
        following = self.compiled.next_after(last)
        fires: tuple[PlannedRun, ...] = ()
        older: datetime | None = last
        if following is not None and following.due <= min(self.now, self.until):
            into = following.nominal
        else:
            into = last
            older = self.compiled.newest(head.nominal - _TICK, last - _TICK)
            due = head.due if last == head.nominal else self.compiled.due(last)
            fires = (PlannedRun(last, due, late=True),)
        if older is not None:
            times = _merged_times(self.compiled, head, older, State.COALESCED, None, into)
            merged = (*merged, times)
        return self._on_time(merged, fires, following)

    def _on_time(
        self,
        merged: tuple[MergedTimes, ...],
        fires: tuple[PlannedRun, ...],
        current: Occurrence | None,
    ) -> FirePlan:
        """Fire what is due from `current` on, up to `limit` runs."""
        found = list(fires)
        while current is not None and current.due <= self.until and len(found) < self.limit:
            found.append(PlannedRun(current.nominal, current.due))
            current = self.compiled.next_after(current.nominal)
        return FirePlan(merged, tuple(found), current)


def newest_due(compiled: CompiledSchedule, head: Occurrence, until: datetime) -> datetime:
    """Return the newest scheduled time that is due at `until`. `head` must be due."""
    newest = compiled.newest(head.nominal, until)
    if newest is not None and compiled.due(newest) > until:
        newest = compiled.newest(head.nominal, newest - _TICK)
    return newest or head.nominal


def _merged_times(
    compiled: CompiledSchedule,
    head: Occurrence,
    last: datetime,
    state: State,
    reason: Reason | None,
    into: datetime | None = None,
) -> MergedTimes:
    count = 1 + compiled.count(head.nominal, last)
    return MergedTimes(state, reason, head.nominal, last, count, head.due, into)
