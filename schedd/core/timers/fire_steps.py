"""One step of a timer whose schedule may exclude instants: what runs, and what doesn't and why.

    unaccounted instants, oldest first          x: excluded
    ──o──o──x──x──x──o──o──x──o──────────────▶ now
      └──┘  └─────┘  └──┘  │
      fold   SKIPPED  fold  SKIPPED           what the plan of the others folds is cut where
           (CALENDAR)     (CALENDAR)          excluded ones lie between

The plan (`core/timers/cluster_pauses.py`, `core/timers/fire_plan.py`) is made of the instants that
run, as if there were no others: so `latest` runs one, whatever lies between. The excluded ones are
woven in afterwards.

Invariants
- Rows follow each other, and each instant up to the last that is due is in exactly one.
- An excluded instant is SKIPPED (CALENDAR), however late its owner looks, and however many pauses
  of the cluster it lies in.
- A step that meets too many changes between the two kinds ends early; its `next` is due then.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from schedd.core.jobs.definition import CatchUp
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.schedule.calendars import TimeGroup, groups
from schedd.core.schedule.compiled_schedule import CompiledSchedule, Occurrence
from schedd.core.timers import cluster_pauses, fire_plan
from schedd.core.timers.cluster_pauses import NO_PAUSES, Pauses
from schedd.core.timers.fire_plan import NOT_EARLY, FirePlan, Fold
from schedkit.records import replace

MOST_BORDERS: Final = 1000
"""Most borders of excluded time that one step looks at."""
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
    """One step of a timer that stands at (`nominal`, `due`), looked at `now`. Fires at most `limit`
    runs. `looked`: at the first step of this catching up; None: it is this one. `ahead`: what falls
    due within it fires too, unless the schedule excludes instants: a new version of its calendar
    may exclude what was made early.
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
    """The plan with the excluded instants that are due between, before and behind what it has."""
    assert compiled.exclusion is not None, "there is something to weave in"
    until = fire_plan.newest_due(compiled.whole, head, now)
    if inner.next is not None and until >= inner.next.nominal:
        stop = inner.next.nominal - _TICK
        until = compiled.whole.newest(head.nominal - _TICK, stop) or stop
    if until < head.nominal:
        return FirePlan((), (), inner.next)
    every = compiled.whole.instants
    found = groups(every, compiled.exclusion, head.nominal, until, MOST_BORDERS)
    folds: list[Fold] = []
    reached = head.nominal
    for group in found:
        parts = _cut(compiled, inner, group) if group.decider is None else _skipped(compiled, group)
        folds.extend(parts)
        reached = group.last
    fires = tuple(fire for fire in inner.fires if fire.nominal <= reached)
    following = compiled.following(reached)
    if following is not None and inner.next is not None:
        same = following.nominal == inner.next.nominal
        following = inner.next if same else following
    return FirePlan(tuple(folds), fires, following)


def _skipped(compiled: CompiledSchedule, group: TimeGroup) -> Iterator[Fold]:
    yield Fold(
        State.SKIPPED,
        Reason.CALENDAR,
        group.first,
        group.last,
        group.count,
        compiled.due(group.first),
        excluded_by=str(group.decider),
    )


def _cut(compiled: CompiledSchedule, inner: FirePlan, group: TimeGroup) -> Iterator[Fold]:
    """The parts of the plan's folds that lie in a group of instants that run."""
    for fold in inner.folds:
        first, last = max(fold.first, group.first), min(fold.last, group.last)
        if (first, last) == (fold.first, fold.last):
            yield fold
        elif first <= last:
            more, _ = compiled.whole.count(first, last, fire_plan.WALKED)
            due = fold.due if first == fold.first else compiled.due(first)
            yield replace(fold, first=first, last=last, count=1 + more, due=due)
