"""Plan one step of a timer whose schedule may exclude times by calendars. Pure.

    scheduled times not yet recorded, oldest first          x: excluded
    ──o──o──x──x──x──o──o──x──o──────────────▶ now
      └──┘  └─────┘  └──┘  │
     merged  SKIPPED merged SKIPPED           merged rows of the other times are split where
           (CALENDAR)     (CALENDAR)          excluded times lie between

The plan (`core/timers/cluster_pauses.py`, `core/timers/fire_plan.py`) is made from the times that
run, as if there were no others. So `latest` runs one time, whatever lies between. The excluded
times are inserted afterwards.

Invariants
- Rows are in order, and each scheduled time up to the last due one is in exactly one row.
- An excluded time is SKIPPED (CALENDAR), however late the step is, and also within a cluster pause.
- A step with too many changes between excluded and other times ends early: its `next` is already
  due.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from schedd.core.jobs.definition import CatchUp
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.schedule.calendars.groups import TimeGroup, groups
from schedd.core.schedule.compiled_schedule import CompiledSchedule, Occurrence
from schedd.core.timers import cluster_pauses, fire_plan
from schedd.core.timers.cluster_pauses import NO_PAUSES, Pauses
from schedd.core.timers.fire_plan import NOT_EARLY, FirePlan, MergedTimes
from schedkit.records import replace

MOST_BORDERS: Final = 1000
"""The most changes between excluded and other times that one step looks at."""
_TICK: Final = timedelta(microseconds=1)


def plan(
    compiled: CompiledSchedule,
    policy: CatchUp,
    nominal: datetime,
    due: datetime,
    now: datetime,
    reckoned: Pauses = NO_PAUSES,
    *,
    at_most_once: bool = False,
    limit: int = fire_plan.FIRES,
    looked: datetime | None = None,
    ahead: timedelta = NOT_EARLY,
) -> FirePlan:
    """Return one step of a timer at `now`.

    - `nominal`, `due`: the timer's scheduled time and due time.
    - `limit`: the most runs to fire.
    - `looked`: the time of the first step of this catch-up; None: this is the first.
    - `ahead`: times that are due within this time from now fire too. Ignored if the schedule has
      calendars: a new version of a calendar may exclude a run that was created early.
    """
    head = Occurrence(nominal, due)

    def of_runs(first: Occurrence) -> FirePlan:
        return cluster_pauses.plan(
            compiled,
            policy,
            first.nominal,
            first.due,
            now,
            reckoned,
            at_most_once=at_most_once,
            limit=limit,
            looked=looked,
            ahead=ahead if compiled.exclusion is None else NOT_EARLY,
        )

    if compiled.exclusion is None:
        return of_runs(head)
    if due > now:
        return FirePlan((), (), head)
    first = compiled.next_after(nominal) if compiled.excludes(nominal) else head
    inner = FirePlan((), (), first)
    if first is not None and first.due <= now:
        inner = of_runs(first)
    return _woven(compiled, head, inner, now)


def _woven(
    compiled: CompiledSchedule, head: Occurrence, inner: FirePlan, now: datetime
) -> FirePlan:
    """Return the plan with the excluded times that are due inserted in order."""
    assert compiled.exclusion is not None, "there is something to weave in"
    until = fire_plan.newest_due(compiled.whole, head, now)
    if inner.next is not None and until >= inner.next.nominal:
        stop = inner.next.nominal - _TICK
        until = compiled.whole.newest(head.nominal - _TICK, stop) or stop
    if until < head.nominal:
        return FirePlan((), (), inner.next)
    every = compiled.whole.instants
    found = groups(every, compiled.exclusion, head.nominal, until, MOST_BORDERS)
    merged: list[MergedTimes] = []
    reached = head.nominal
    for group in found:
        parts = _cut(compiled, inner, group) if group.decider is None else _skipped(compiled, group)
        merged.extend(parts)
        reached = group.last
    fires = tuple(fire for fire in inner.fires if fire.nominal <= reached)
    following = compiled.following(reached)
    if following is not None and inner.next is not None:
        same = following.nominal == inner.next.nominal
        following = inner.next if same else following
    return FirePlan(tuple(merged), fires, following)


def _skipped(compiled: CompiledSchedule, group: TimeGroup) -> Iterator[MergedTimes]:
    yield MergedTimes(
        State.SKIPPED,
        Reason.CALENDAR,
        group.first,
        group.last,
        group.count,
        compiled.due(group.first),
        excluded_by=str(group.decider),
    )


def _cut(compiled: CompiledSchedule, inner: FirePlan, group: TimeGroup) -> Iterator[MergedTimes]:
    """Return the parts of the plan's merged rows that lie in a group of times that run."""
    for times in inner.merged:
        first, last = max(times.first, group.first), min(times.last, group.last)
        if (first, last) == (times.first, times.last):
            yield times
        elif first <= last:
            more, _ = compiled.whole.count(first, last, fire_plan.WALKED)
            due = times.due if first == times.first else compiled.due(first)
            yield replace(times, first=first, last=last, count=1 + more, due=due)
