"""Plan one step of a timer whose schedule may exclude times by calendars. Pure.

The plan (`cluster_pauses`, `fire_plan`) is made from the times that run, as if there were no
others. So `latest` runs one time, whatever lies between. The excluded times are inserted
afterwards.

Invariants
- Rows are in order, and each scheduled time up to the last due one is in exactly one row.
- An excluded time is SKIPPED (CALENDAR), however late the step is, and also within a cluster pause.
- A step with too many changes between excluded and other times ends early: its `next` is already
  due.
- Between two borders of closed time nothing changes. So excluded and other times are found by jumps
  from border to border, and counted by the schedule's own arithmetic.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from schedd.core.jobs.definition import CatchUp
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.schedule.calendars.exclusion import Closure, Exclusion
from schedd.core.schedule.compiled_schedule import CompiledSchedule, Occurrence
from schedd.core.schedule.scheduled_times import Instants, newest
from schedd.core.timers import cluster_pauses, fire_plan
from schedd.core.timers.cluster_pauses import NO_PAUSES, Pauses
from schedd.core.timers.fire_plan import NOT_EARLY, PLAIN, FirePlan, MergedTimes, StepLimits
from schedkit.records import dataclass, replace

MOST_BORDERS: Final = 1000
"""The most changes between excluded and other times that one step looks at."""
_TICK: Final = timedelta(microseconds=1)


def plan(
    compiled: CompiledSchedule,
    policy: CatchUp,
    nominal: datetime,
    due: datetime,
    now: datetime,
    pauses: Pauses = NO_PAUSES,
    *,
    at_most_once: bool = False,
    limits: StepLimits = PLAIN,
) -> FirePlan:
    """Return one step of a timer at `now` (`fire_plan.plan`).

    With calendars no run is created early: a new version of a calendar may exclude it.
    """
    head = Occurrence(nominal, due)
    first: Occurrence | None = head
    if compiled.exclusion is not None:
        if due > now:
            return FirePlan((), (), head)
        limits = replace(limits, ahead=NOT_EARLY)
        first = compiled.next_after(nominal) if compiled.excludes(nominal) else head
    inner = FirePlan((), (), first)
    if first is not None and (compiled.exclusion is None or first.due <= now):
        inner = cluster_pauses.plan(
            compiled,
            policy,
            first.nominal,
            first.due,
            now,
            pauses,
            at_most_once=at_most_once,
            limits=limits,
        )
    return inner if compiled.exclusion is None else _woven(compiled, head, inner, now)


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
    merged: list[MergedTimes] = []
    reached = head.nominal
    for group in _groups(compiled.whole.instants, compiled.exclusion, head.nominal, until):
        reached = group.last
        if group.decider is None:
            merged += _cut(compiled, inner, group)
            continue
        times = (group.first, group.last, group.count, compiled.due(group.first))
        why = str(group.decider)
        merged.append(MergedTimes(State.SKIPPED, Reason.CALENDAR, *times, excluded_by=why))
    fires = tuple(fire for fire in inner.fires if fire.nominal <= reached)
    following = compiled.following(reached)
    if following is not None and inner.next is not None:
        same = following.nominal == inner.next.nominal
        following = inner.next if same else following
    return FirePlan(tuple(merged), fires, following)


def _cut(compiled: CompiledSchedule, inner: FirePlan, group: "_TimeGroup") -> Iterator[MergedTimes]:
    """Return the parts of the plan's merged rows that lie in a group of times that run."""
    for times in inner.merged:
        first, last = max(times.first, group.first), min(times.last, group.last)
        if (first, last) == (times.first, times.last):
            yield times
        elif first <= last:
            count = 1 + compiled.whole.count(first, last)
            due = times.due if first == times.first else compiled.due(first)
            yield replace(times, first=first, last=last, count=count, due=due)


@dataclass(frozen=True, slots=True)
class _TimeGroup:
    """`count` consecutive times, `first` to `last`, that `decider` excludes; None: they run."""

    decider: Closure | None
    first: datetime
    last: datetime
    count: int


def _groups(
    every: Instants, exclusion: Exclusion, first: datetime, until: datetime
) -> Iterator[_TimeGroup]:
    """Yield the groups from `first`, a scheduled time, to the last one that isn't after `until`, or
    until `MOST_BORDERS` borders were examined.
    """
    looked = 0
    start: datetime | None = first
    while start is not None and start <= until:
        decider = exclusion.decider(start)
        edge = start
        while True:
            looked += 1
            if looked > MOST_BORDERS:
                until = edge
            border = exclusion.border_after(edge)
            if border is None or border > until:
                following = None
            else:
                following = every.next_after(border - _TICK)
            if following is None or following > until:
                following = None
                break
            if exclusion.decider(following) is not decider:
                break
            edge = following
        stop = until if following is None else following - _TICK
        last = newest(every.next_after, start, stop) or start
        yield _TimeGroup(decider, start, last, 1 + every.count(start, last))
        start = following
