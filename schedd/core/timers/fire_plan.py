"""What an owner does with a timer: what fires, what is only accounted for, what is next.

    unaccounted instants, oldest first                                          now
    ──┬──────┬──────┬───────────┬──────┬──────┬──────────────────┬──────────┬────┼──▶
      outside the window        inside the window                on time    next
      MISSED (WINDOW)           LATEST: the newest fires, the    fires, and is the newest
                                older are COALESCED into it      if there is one

Invariants
- Each instant from the timer's nominal up to the last one that is due is accounted for exactly
  once: by a fire or within one fold. `FirePlan.next` is the first one that is not.
- Nothing fires before it is due (less `ahead`).
- The work is bounded whatever the outage: long spans are counted, not walked, and where they must
  be walked a plan ends early; its `next` is then due already, and the owner plans again.
- What was inside the window when the owner first looked doesn't fall out of it because the owner
  takes several plans: the later ones measure it where the first did (`looked`).

With policy NONE the reason is CATCH_UP_NONE inside and outside of the window: the window plays no
part in it.
"""

from datetime import datetime, timedelta
from typing import Final

from schedd.core.jobs.definition import CatchUp, CatchUpPolicy
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.schedule.compiled_schedule import CompiledSchedule, Occurrence
from schedkit.records import dataclass, replace

GRACE: Final = timedelta(seconds=1)
"""An instant at most this far past its due is on time."""

FIRES: Final = 1000
"""Most runs that one plan fires."""

NOT_EARLY: Final = timedelta(0)

WALKED: Final = 10_000
"""Most instants that one plan looks at one by one."""

_TICK: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """An instant that becomes a run now. `late`: by catch-up, not on time."""

    nominal: datetime
    due: datetime
    late: bool = False


@dataclass(frozen=True, slots=True)
class Fold:
    """One row of the ledger for instants that don't run: `count` of them, `first` to `last`.

    `state` is MISSED (or SKIPPED) with its `reason`, or COALESCED into the run of the nominal
    instant `into`, without one. `due` is that of `first`.
    """

    state: State
    reason: Reason | None
    first: datetime
    last: datetime
    count: int
    due: datetime
    into: datetime | None = None
    excluded_by: str = ""
    """What keeps them from running: the calendar with its version, or who paused."""


@dataclass(frozen=True, slots=True)
class FirePlan:
    """One step of a timer: folds and fires, oldest first, and the value the timer advances to.

    `next` is None when the schedule has ended. Nothing to do: no folds, no fires, `next` unchanged.
    """

    folds: tuple[Fold, ...]
    fires: tuple[PlannedRun, ...]
    next: Occurrence | None


def plan(
    compiled: CompiledSchedule,
    policy: CatchUp,
    nominal: datetime,
    due: datetime,
    now: datetime,
    *,
    ahead: timedelta = NOT_EARLY,
    grace: timedelta = GRACE,
    limit: int = FIRES,
    until: datetime | None = None,
    looked: datetime | None = None,
) -> FirePlan:
    """Decide what becomes of a timer that stands at (`nominal`, `due`), looked at `now`.

    `nominal` is the first unaccounted instant and is taken as it is, even if the schedule as it
    stands now lacks it. With `ahead`, what falls due within it fires too (to be prepared early).
    `limit` bounds the fires. With `until`, before now, what is due later isn't touched. The window
    is measured at `looked`, where the catching up takes more than one plan; else at `now`.
    """
    late_before, last = now - grace, now + ahead
    if until is not None:
        late_before, last = min(late_before, until + _TICK), min(last, until)
    opens = (looked or now) - policy.window
    planner = _Planner(compiled, policy, now, opens, late_before, last, limit)
    return planner.run(Occurrence(nominal, due))


def settle(
    compiled: CompiledSchedule,
    occurrence: Occurrence,
    until: datetime,
    state: State,
    reason: Reason,
    excluded_by: str = "",
) -> tuple[Fold | None, Occurrence | None]:
    """Account for all instants from `occurrence` on that are due at `until` by one fold.

    For an edit (MISSED, EDITED) or the end of a pause (SKIPPED, PAUSED). Gives the fold (None if
    nothing is due) and what comes after it, which is due already if the fold had to end early.
    """
    if occurrence.due > until:
        return None, occurrence
    last = newest_due(compiled, occurrence, until)
    fold = replace(_fold(compiled, occurrence, last, state, reason), excluded_by=excluded_by)
    return fold, compiled.next_after(fold.last)


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
            fold = _fold(self.compiled, head, last, State.MISSED, Reason.CATCH_UP_NONE)
            return self._after_fold((), fold, last)
        return self._windowed(head, last)

    def _windowed(self, head: Occurrence, last: datetime) -> FirePlan:
        """Late instants from `head` to `last` under LATEST or ALL."""
        folds: tuple[Fold, ...] = ()
        if head.nominal < self.opens:
            end = min(last, self.opens - _TICK)
            outside = self.compiled.newest(head.nominal, end) or head.nominal
            fold = _fold(self.compiled, head, outside, State.MISSED, Reason.WINDOW)
            following = self.compiled.next_after(fold.last)
            if outside == last or fold.last != outside or following is None:
                return self._after_fold((), fold, outside)
            folds, head = (fold,), following
        if self.policy.policy is CatchUpPolicy.ALL:
            return self._all(folds, head, last)
        return self._latest(folds, head, last)

    def _all(self, folds: tuple[Fold, ...], head: Occurrence, last: datetime) -> FirePlan:
        late = self.compiled.instants_between(head.nominal, last, self.limit - 1)
        fires = tuple(PlannedRun(one.nominal, one.due, late=True) for one in (head, *late))
        following = self.compiled.next_after(fires[-1].nominal)
        if fires[-1].nominal != last or following is None:
            return FirePlan(folds, fires, following)
        return self._on_time(folds, fires, following)

    def _latest(self, folds: tuple[Fold, ...], head: Occurrence, last: datetime) -> FirePlan:
        """The newest instant takes the older ones in: one that is on time, else the last late."""
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
            fold = _fold(self.compiled, head, older, State.COALESCED, None, into)
            folds = (*folds, fold)
            if fold.last != older:
                return FirePlan(folds, (), self.compiled.next_after(fold.last))
        if following is None:
            return FirePlan(folds, fires, None)
        return self._on_time(folds, fires, following)

    def _after_fold(self, folds: tuple[Fold, ...], fold: Fold, meant: datetime) -> FirePlan:
        """Continue after a merged row of late times; stop there if it ended before `meant`."""
        following = self.compiled.next_after(fold.last)
        if fold.last != meant or following is None:
            return FirePlan((*folds, fold), (), following)
        return self._on_time((*folds, fold), (), following)

    def _on_time(
        self, folds: tuple[Fold, ...], fires: tuple[PlannedRun, ...], head: Occurrence
    ) -> FirePlan:
        """Fire what is due from `head` on, as far as the limit goes."""
        found = list(fires)
        current: Occurrence | None = head
        while current is not None and current.due <= self.until and len(found) < self.limit:
            found.append(PlannedRun(current.nominal, current.due))
            current = self.compiled.next_after(current.nominal)
        return FirePlan(folds, tuple(found), current)


def newest_due(compiled: CompiledSchedule, head: Occurrence, until: datetime) -> datetime:
    """The newest nominal instant that is due at `until`, given that `head` is."""
    newest = compiled.newest(head.nominal, until)
    if newest is not None and compiled.due(newest) > until:
        newest = compiled.newest(head.nominal, newest - _TICK)
    return newest or head.nominal


def _fold(
    compiled: CompiledSchedule,
    head: Occurrence,
    last: datetime,
    state: State,
    reason: Reason | None,
    into: datetime | None = None,
) -> Fold:
    """One row for `head` to `last`; it ends earlier if that takes looking at too many instants."""
    count, reached = compiled.count(head.nominal, last, WALKED)
    return Fold(state, reason, head.nominal, reached, count + 1, head.due, into)
