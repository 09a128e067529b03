"""Pauses of the whole cluster, and what they make of a timer. Pure.

    unaccounted instants, oldest first
    ──┬────────┬─────[══ pause ══]──┬───────[═ pause ═]──┬────────▶ now
      by the job's    SKIPPED        by the job's          by the job's
      catch-up        (PAUSED)       catch-up             catch-up

Invariants
- An instant in a pause, (began, ended], never runs and is accounted for once, unless the one who
  ended the pause asked for it to be caught up: all of them, or those from some instant on. It is
  the nominal instant that counts: one of the pause is of it though jitter makes it due after the
  end, and one from before the pause isn't of it though due inside.
- One step of a timer goes no further than the next border of a pause: what follows is the next
  step's.
- A pause that a database which went back begins with covers what it lost. Jobs that run at most
  once never catch up on instants that may have run in there: none up to its end, those from before
  the pause too that weren't accounted for yet.
- A step that was reckoned from one count of `switched` counts for nothing under another: the fire
  statement compares it under the shard's lock.
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
from schedd.core.timers.fire_plan import NOT_EARLY, FirePlan
from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class Pause:
    """One pause of the cluster. `ended` is None while it lasts."""

    began: datetime
    by: str
    note: str = ""
    ended: datetime | None = None
    caught_up: bool = False
    """What fell due in it goes by each job's catch-up policy, as after an outage."""
    lost_until: datetime | None = None
    """Recovery: the database went back to `began`, and may have gone on until this."""
    caught_up_since: datetime | None = None
    """Only what fell due from here on goes by the catch-up policy."""

    @property
    def recovering(self) -> bool:
        """Whether it holds a database that went back, so that a person decides what follows."""
        return self.lost_until is not None

    @property
    def text(self) -> str:
        """The reason in a row that the pause skips."""
        what = "the cluster, in recovery" if self.recovering else "the cluster"
        return reasons.pause(self.by, self.began, self.note, of=what)

    def skipped_until(self, *, at_most_once: bool = False) -> datetime | None:
        """The last instant of it that doesn't run afterwards; None while it lasts, or if all do."""
        if self.ended is None:
            return None
        until = self.began if self.caught_up else self.ended
        if self.caught_up_since is not None:
            until = min(self.ended, self.caught_up_since - _TICK)
        if at_most_once and self.lost_until is not None:
            until = max(until, min(self.ended, self.lost_until))
        return until if until > self.began else None

    def skips(self, nominal: datetime, *, at_most_once: bool = False) -> bool:
        """Whether it makes this instant SKIPPED, which nothing has accounted for."""
        last = self.skipped_until(at_most_once=at_most_once)
        doubtful = at_most_once and self.recovering  # the lost database may have been late with it
        return last is not None and nominal <= last and (doubtful or nominal > self.began)


_TICK: Final = timedelta(microseconds=1)
"""The precision of instants: the horizon itself is caught up."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """Every pause there was, oldest first, and how often the cluster was paused or resumed."""

    switched: int = 0
    all: tuple[Pause, ...] = ()

    @property
    def present(self) -> Pause | None:
        """The pause that lasts."""
        return self.all[-1] if self.all and self.all[-1].ended is None else None

    def since(self, instant: datetime) -> tuple[Pause, ...]:
        """Those that ended no earlier: pauses follow each other."""
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
    limit: int = fire_plan.FIRES,
    looked: datetime | None = None,
    ahead: timedelta = NOT_EARLY,
) -> FirePlan:
    """One step of a timer that stands at (`nominal`, `due`), looked at `now`. `limit`: of runs.
    `looked`: at the first step of this catching up. `ahead`: what falls due within it fires too.
    """
    by_policy = partial(
        fire_plan.plan, compiled, policy, nominal, due, now, limit=limit, looked=looked, ahead=ahead
    )
    passed = pauses.since(nominal)
    if at_most_once:  # what may have run comes first: it isn't to run for an older pause's sake
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
        fold, following = fire_plan.settle(
            compiled, head, border, State.SKIPPED, Reason.PAUSED, pause.text
        )
        return FirePlan((fold,) if fold else (), (), following)
    return by_policy()


def due_until(compiled: CompiledSchedule, head: Occurrence, border: datetime) -> datetime:
    """The moment until which exactly the instants up to `border` are due, `head` the first.

    Due instants are in the order of the nominal ones, so it is the last one's, if that is later.
    """
    if not compiled.bounds.jitter:
        return max(border, head.due)  # an `at` instant a little past is due when its job was made
    last = compiled.newest(head.nominal, border)
    return max(border, head.due if last is None else compiled.due(last))
