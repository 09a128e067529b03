"""One timer's step, as the fire statement takes it: the plan (`core/timers/fire_steps.py`) made
into rows.

    timer + definition ──plan──→ fires, folds, next ──→ Firing

Invariants
- A run's id is reckoned from its job and nominal instant: whoever makes it makes the same.
- A late run bears the moment at which it was made (`ready_at`): so its row tells that it is late.
- What has made its `max_runs` has nothing due, and still knows where it would go on.
"""

from datetime import datetime, timedelta

from schedd.core.ids import JobId, scheduled_run_id
from schedd.core.jobs.definition import CatchUpPolicy, Definition, Delivery
from schedd.core.runs.model import Firing, NewRun, RunKey, Timer
from schedd.core.schedule.compiled_schedule import Occurrence
from schedd.core.timers import fire_plan, fire_steps
from schedd.core.timers.cluster_pauses import Pauses
from schedd.core.timers.fire_plan import NOT_EARLY, FirePlan
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
    """What this timer does at `now`; it fires at most so many. `looked`: at its first step, if it
    takes several to catch up. `ahead`: runs are made so long before they are due.
    """
    definition = known.definition
    if timer.nominal is None or timer.due_at is None:
        raise ValueError(f"timer of job {timer.job_id} has nothing due")
    left = definition.max_runs - timer.fired if definition.max_runs else None
    limit = most if left is None else min(left, most)
    plan = _plan(timer, timer.nominal, timer.due_at, known, now, reckoned, limit, looked, ahead)
    fires = tuple(_run(definition, fire, now) for fire in plan.fires)
    folds = tuple(_fold(definition.job_id, fold) for fold in plan.folds)
    ended = left is not None and len(fires) >= left
    return Firing(
        job_id=timer.job_id,
        shard=timer.shard,
        generation=timer.generation,
        due_at=timer.due_at,
        next_due_at=plan.next.due if plan.next and not ended else None,
        next_nominal=plan.next.nominal if plan.next else None,
        last_instant=max((run.due_at for run in (*fires, *folds)), default=timer.due_at),
        priority=definition.priority,
        runs=folds + fires,
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
    """One step that fires at most `limit`."""
    definition = known.definition
    if limit <= 0:  # fewer are wanted than there were already
        return FirePlan((), (), Occurrence(nominal, due))
    if timer.fired:  # it may stand at the plain instant since a turn was given back
        due = max(due, known.compiled.due(nominal))
    return fire_steps.plan(
        known.compiled,
        definition.catch_up,
        nominal,
        due,
        now,
        reckoned,
        at_most_once=definition.delivery is Delivery.AT_MOST_ONCE,
        limit=limit,
        looked=looked,
        ahead=ahead,
    )


def _run(definition: Definition, fire: fire_plan.PlannedRun, now: datetime) -> NewRun:
    return NewRun(
        RunKey(fire.nominal, scheduled_run_id(definition.job_id, fire.nominal)),
        fire.due,
        ready_at=now if fire.late else None,
        paced=fire.late and definition.catch_up.policy is CatchUpPolicy.ALL,
    )


def _fold(job: JobId, fold: fire_plan.Fold) -> NewRun:
    return NewRun(
        RunKey(fold.first, scheduled_run_id(job, fold.first)),
        fold.due,
        state=fold.state,
        reason=fold.reason,
        count=fold.count,
        scheduled_until=fold.last,
        excluded_by=fold.excluded_by,
    )
