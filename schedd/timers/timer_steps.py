"""Step of one timer for the fire statement: the plan (`core/timers/fire_steps.py`) as rows.

    timer + definition ──plan──→ fires, merged rows, next ──→ Firing

Invariants
- A run's id is derived from its job and scheduled time: every member derives the same id.
- A late run records when it was created (`ready_at`), so its row shows that it is late.
- A timer that has used up its `max_runs` has no due time, but keeps its next scheduled time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import TypeAlias

from schedd.core.dispatch.placement import Need
from schedd.core.ids import JobId, scheduled_run_id
from schedd.core.jobs.definition import CatchUp, CatchUpPolicy, Definition, Delivery
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import Firing, NewRun, RunKey, Timer
from schedd.core.schedule.compiled_schedule import Occurrence
from schedd.core.timers import fire_plan, fire_steps
from schedd.core.timers.cluster_pauses import Pauses
from schedd.core.timers.fire_plan import NOT_EARLY, FirePlan, StepLimits
from schedd.runtime.definition_texts import CachedDefinition


def firing_of(
    timer: Timer,
    known: CachedDefinition,
    now: datetime,
    reckoned: Pauses,
    most: int = fire_plan.FIRES,
    looked: datetime | None = None,
    ahead: timedelta = NOT_EARLY,
) -> Firing:
    """Return the step of this timer at `now`, with at most `most` runs.

    `looked`: the time of the first step, if catching up takes several. `ahead`: how long before
    their due time runs are created.
    """
    definition = known.definition
    if timer.nominal is None or timer.due_at is None:
        raise ValueError(
            f"the timer of job {timer.job_id} has no due time (a bug of schedd: please report"
            " this message)"
        )
    left = definition.max_runs - timer.fired if definition.max_runs else None
    limit = most if left is None else min(left, most)
    plan = _plan(timer, timer.nominal, timer.due_at, known, now, reckoned, limit, looked, ahead)
    fires = tuple(_run(timer.job_id, definition, fire, now) for fire in plan.fires)
    merged = tuple(_merged_row(timer.job_id, times) for times in plan.merged)
    ended = left is not None and len(fires) >= left
    return Firing(
        job_id=timer.job_id,
        shard=timer.shard,
        generation=timer.generation,
        due_at=timer.due_at,
        next_due_at=plan.next.due if plan.next and not ended else None,
        next_nominal=plan.next.nominal if plan.next else None,
        last_instant=max((run.due_at for run in (*fires, *merged)), default=timer.due_at),
        priority=definition.priority,
        runs=merged + fires,
        fired=timer.fired,
        counted=len(fires) if left is not None else 0,
        notices=definition.notices,
    )


def _plan(
    timer: Timer,
    nominal: datetime,
    due: datetime,
    known: CachedDefinition,
    now: datetime,
    reckoned: Pauses,
    limit: int,
    looked: datetime | None,
    ahead: timedelta,
) -> FirePlan:
    """Return one step that fires at most `limit` runs."""
    definition = known.definition
    if limit <= 0:  # the share of rows is used up
        return FirePlan((), (), Occurrence(nominal, due))
    if timer.fired:  # may lack its jitter since `max_runs` was given back
        due = max(due, known.compiled.due(nominal))
    return fire_steps.plan(
        known.compiled,
        definition.catch_up,
        nominal,
        due,
        now,
        reckoned,
        at_most_once=definition.delivery is Delivery.AT_MOST_ONCE,
        limits=StepLimits(limit, looked, ahead),
    )


def _run(job: JobId, definition: Definition, fire: fire_plan.PlannedRun, now: datetime) -> NewRun:
    return NewRun(
        RunKey(fire.nominal, scheduled_run_id(job, fire.nominal)),
        fire.due,
        ready_at=now if fire.late else None,
        paced=fire.late and definition.catch_up.policy is CatchUpPolicy.ALL,
    )


def _merged_row(job: JobId, times: fire_plan.MergedTimes) -> NewRun:
    return NewRun(
        RunKey(times.first, scheduled_run_id(job, times.first)),
        times.due,
        state=times.state,
        reason=times.reason,
        count=times.count,
        scheduled_until=times.last,
        excluded_by=times.excluded_by,
    )


# Timers of a batch with the same schedule and the same times take the same step: it is computed for
# one of them, and copied.

SameStep: TypeAlias = tuple[int, int, bool, CatchUp | None, datetime, datetime]


def same_step(timer: Timer, known: CachedDefinition, late_before: datetime) -> SameStep | None:
    """Return a key that is equal for timers that take the same step now; None: it isn't known.

    Schedules and bounds are compared by identity (`compiled_schedule.compile`). The catch-up policy
    decides only about late timers.
    """
    due, nominal = timer.due_at, timer.nominal
    compiled, definition = known.compiled, known.text.definition
    if not known.text.shares_steps or compiled.exclusion or timer.fired:
        return None
    if due is None or nominal is None:
        return None
    once = definition.delivery is Delivery.AT_MOST_ONCE
    policy = definition.catch_up if due < late_before else None
    return id(compiled.instants), id(compiled.bounds), once, policy, nominal, due


def may_be_copied(firing: Firing, late_before: datetime) -> bool:
    """Return whether the step makes one run and nothing else, and the timer isn't late then."""
    following = firing.next_due_at
    caught_up = following is None or following >= late_before
    return caught_up and len(firing.runs) == 1 and firing.runs[0].state is State.PENDING


def may_be_held(
    timer: Timer, known: CachedDefinition, firing: Firing, able_here: Callable[[Need], bool]
) -> bool:
    """Return whether the timer may wait for a slot, with this step of one run: the run is that of
    its due time, has no catch-up limit, and may be fired as RUNNING, in the present definition.
    Some worker here can run it.
    """
    text, [run] = known.text, firing.runs
    if not text.fires_running or text.definition.generation != timer.generation:
        return False
    if run.paced or run.due_at != firing.due_at or timer.fired or firing.counted:
        return False
    return able_here(text.need)


def copied(firing: Firing, timer: Timer, definition: Definition) -> Firing:
    """Return the step of another timer with the same `same_step`."""
    [run] = firing.runs
    at = run.key.scheduled_at
    key = RunKey(at, scheduled_run_id(timer.job_id, at))
    new = NewRun(key, run.due_at, ready_at=run.ready_at, paced=run.paced)
    return Firing(
        timer.job_id,
        timer.shard,
        timer.generation,
        firing.due_at,
        firing.next_due_at,
        firing.next_nominal,
        firing.last_instant,
        definition.priority,
        (new,),
        notices=definition.notices,
    )


def missed(merged: Iterable[NewRun]) -> Counter[Reason]:
    """Return how many scheduled times these record as MISSED, by reason."""
    counts: Counter[Reason] = Counter()
    for run in merged:
        if run.state is State.MISSED and run.reason is not None:
            counts[run.reason] += run.count
    return counts
