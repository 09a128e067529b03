"""The timers beside the rows: what fires advances its timer, and what a user did to a job it shows.

    a row of the schedule   comes with its timer past it, in one commit: else it is due once more
    the job's row           is paused, deleted and of a generation as its timer is, at every commit

What a job's row says is what a user's `ok` stands on; what its timer says is what fire and assign
read (P3.5). Only jobs made within the history are judged: the rows of others aren't known.
"""

from __future__ import annotations

from collections.abc import Iterator

from faults.checker.rows import Job, Run, Timer
from faults.checker.tables import Step, clock
from faults.checker.verdict import Violation
from faults.checker.world import World


def advanced(world: World) -> Iterator[Violation]:
    """S5: no row of the schedule whose timer stayed behind it."""
    moved = {(step.commit, step.key[0]): step for step in world.timers.steps}
    for step in world.runs.steps:
        run = step.after
        if run is None or not run.scheduled or step.before is not None or step.op != "insert":
            continue
        why = _behind(moved.get((step.commit, run.job_id)), run)
        if why is not None:
            what = f"run {run.run_id} ({clock(run.scheduled_at)}) was recorded as {run.state}"
            yield Violation("S5", f"{what}, and {why}", (step.where,))


def _behind(step: Step[Timer] | None, run: Run) -> str | None:
    """Why this instant would be due once more; None: it is over."""
    if step is None:
        return "its timer did not advance"
    timer, last = step.after, run.scheduled_until or run.scheduled_at
    if timer is None or timer.nominal is None or timer.nominal > last:
        return None
    return f"its timer went on to {clock(timer.nominal)}"


def agreed(world: World) -> Iterator[Violation]:
    """S8: job and timer say the same of pause, deletion and generation."""
    for key, steps in world.jobs.rows.items():
        if steps[0].op != "insert":
            continue
        places = {step.commit: step.where for step in steps}
        places |= {step.commit: step.where for step in world.timers.of(*key)}
        for number, where in sorted(places.items()):
            job, timer = world.jobs.after(number, *key), world.timers.after(number, *key)
            differs = None if job is None else _differs(job, timer)
            if job is not None and differs is not None:
                what = f"{job.name} {differs}"
                yield Violation("S8", what, (where, f"job: {job}", f"timer: {timer}"))


def _differs(job: Job, timer: Timer | None) -> str | None:
    if timer is None:
        return None if job.deleted else "has no timer, and was not deleted"
    if job.deleted:
        return "was deleted, and its timer stands"
    if job.paused != timer.paused:
        return "was paused, and its timer runs" if job.paused else "runs, and its timer is paused"
    if job.generation != timer.generation:
        return f"is of generation {job.generation}, its timer of {timer.generation}"
    return None
