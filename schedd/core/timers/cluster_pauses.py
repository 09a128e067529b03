"""Pauses of the whole cluster, and how they change the steps of a timer (docs/semantics/pauses.md).
Pure.

Invariants
- A scheduled time in a pause, (began, ended], never runs and is recorded once as SKIPPED. The
  exception: the person who ended the pause requested catch-up, of all times or from a time on.
- The scheduled time decides, not the due time.
- One step of a timer ends at the next start or end of a pause. The next step handles the rest.
- A restored database begins with a pause (recovery) that covers the lost period. `at_most_once`
  jobs never catch up on times that may have run in that period: no time up to the period's end,
  also none from before the pause that isn't recorded yet.
- A step computed from an old count of `switched` has no effect: the fire statement compares the
  count under the shard's lock.
"""

from bisect import bisect_left
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from schedd.core.jobs.definition import CatchUp
from schedd.core.runs import reasons
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.schedule.compiled_schedule import CompiledSchedule, Occurrence
from schedd.core.timers import fire_plan
from schedd.core.timers.fire_plan import PLAIN, FirePlan, StepLimits
from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of the cluster. `ended` is None while it lasts."""

    began: datetime
    by: str
    note: str = ""
    ended: datetime | None = None
    caught_up: bool = False
    """Whether its scheduled times follow each job's catch-up policy, as after an outage."""
    lost_until: datetime | None = None
    """Set in recovery: the database was restored as of `began`; the lost one may have continued
    until this time.
    """
    caught_up_since: datetime | None = None
    """Only scheduled times from this time on follow the catch-up policy."""

    @property
    def recovering(self) -> bool:
        """Whether the pause is a recovery: a person decides how a restored database continues."""
        return self.lost_until is not None

    @property
    def text(self) -> str:
        """The reason stored with the scheduled times that the pause skips."""
        what = "the cluster, in recovery" if self.recovering else "the cluster"
        return reasons.pause(self.by, self.began, self.note, of=what)

    def skipped_until(self, *, at_most_once: bool = False) -> datetime | None:
        """Return the last scheduled time that the pause skips; None: it lasts, or skips none."""
        if self.ended is None:
            return None
        until = self.began if self.caught_up else self.ended
        if self.caught_up_since is not None:
            until = min(self.ended, self.caught_up_since - _TICK)
        if at_most_once and self.lost_until is not None:
            until = max(until, min(self.ended, self.lost_until))
        return until if until > self.began else None

    def skips(self, nominal: datetime, *, at_most_once: bool = False) -> bool:
        """Return whether the pause skips this scheduled time, which isn't recorded yet."""
        last = self.skipped_until(at_most_once=at_most_once)
        doubtful = at_most_once and self.recovering  # the lost database may have run it late
        return last is not None and nominal <= last and (doubtful or nominal > self.began)


_TICK: Final = timedelta(microseconds=1)
"""The precision of times: `caught_up_since` itself is caught up."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """All pauses, oldest first. `switched`: how often the cluster was paused or resumed."""

    switched: int = 0
    all: tuple[Pause, ...] = ()

    @property
    def present(self) -> Pause | None:
        """The current pause; None: the cluster isn't paused."""
        return self.all[-1] if self.all and self.all[-1].ended is None else None

    def since(self, instant: datetime) -> tuple[Pause, ...]:
        """Return the pauses that ended at `instant` or later. Pauses don't overlap."""
        first = bisect_left(self.all, instant, key=lambda pause: pause.ended or instant)
        return self.all[first:]


NO_PAUSES: Final = Pauses()


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
    """Return one step of a timer at `now`, with the pauses applied (`fire_plan.plan`)."""
    by_policy = partial(fire_plan.plan, compiled, policy, nominal, due, now, limits=limits)
    passed = pauses.since(nominal)
    if at_most_once:  # recoveries first: an older pause must not fire a time that may have run
        passed = tuple(sorted(passed, key=lambda pause: not pause.recovering))
    for pause in passed:
        last = pause.skipped_until(at_most_once=at_most_once)
        if last is None or nominal > last:
            continue
        head = Occurrence(nominal, due)
        if not pause.skips(nominal, at_most_once=at_most_once):
            border = due_until(compiled, head, pause.began)
            return by_policy(until=border)
        border = due_until(compiled, head, last)
        times, following = fire_plan.merge_until(
            compiled, head, border, State.SKIPPED, Reason.PAUSED, pause.text
        )
        return FirePlan((times,) if times else (), (), following)
    return by_policy()


def due_until(compiled: CompiledSchedule, head: Occurrence, border: datetime) -> datetime:
    """Return the time at which exactly the scheduled times from `head` to `border` are due: due
    times have the same order as scheduled times.
    """
    if not compiled.bounds.jitter:
        return max(border, head.due)  # an `at` time slightly past is due at its job's creation
    last = compiled.newest(head.nominal, border)
    return max(border, head.due if last is None else compiled.due(last))
