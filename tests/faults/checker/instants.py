"""S5 to S8: each instant once, in the schedule, not early; nothing after an `ok` that ended it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from faults import oracle
from faults.checker.assignments import Assignment
from faults.checker.ledger import LedgerRow, covering, spread
from faults.checker.lives import Call, Life
from faults.checker.rows import FIRED, SCHEDULED, Run, ticks
from faults.checker.tables import Step, clock
from faults.checker.timers import advanced, agreed
from faults.checker.verdict import Violation
from faults.checker.world import World
from faults.history import ProbeEvent

CONTROLS = ("pause", "edit", "delete")
WRITTEN = 1.0
"""Seconds that a probe's first line may come after its start."""
REPORTED = 0.03
"""Seconds by which a worker's report of a start may err in quiet."""


def s5(world: World) -> Iterator[Violation]:
    """At most one scheduled run per (job, UTC instant)."""
    for job_id, rows in world.rows_by_job.items():
        life = world.lives.by_job.get(job_id)
        by_instant = covering(life, rows) if life else _by_own_instant(rows)
        for at, several in by_instant.items():
            if len(several) > 1:
                name = life.name if life else job_id
                yield Violation(
                    "S5",
                    f"{name} at {clock(at / 1000)} stands in {len(several)} rows",
                    tuple(describe(ledger_row) for ledger_row in several),
                )
    for step in world.runs.steps:
        before, after = step.before, step.after
        if before and after and identity(before) != identity(after):
            what = f"run {after.run_id} became the run of another instant, job or trigger"
            yield Violation("S5", what, (step.where, f"{identity(before)} → {identity(after)}"))
        elif before and after and step.op == "insert":
            yield Violation("S5", f"run {after.run_id} was inserted twice", (step.where,))
    yield from _doubled_at_the_end(world)
    yield from advanced(world)


def s6(world: World) -> Iterator[Violation]:
    """Each scheduled instant is one the schedule of its generation has."""
    for job_id, rows in world.rows_by_job.items():
        life = world.lives.by_job.get(job_id)
        for ledger_row in rows if life else ():
            assert life is not None
            yield from _outside(life, ledger_row)


def s7(world: World) -> Iterator[Violation]:
    """No start before the due instant, as its own line tells and as its worker reported it."""
    for run_id, starts in world.starts.items():
        run = world.run(run_id)
        for start in starts if run is not None else ():
            assert run is not None
            due = _due(run)
            if start.at < world.windows.early(due):
                yield Violation(
                    "S7",
                    f"{start.job} started {due - start.at:.3f} s before it was due",
                    (f"due {clock(due)}", wrote(start)),
                )
    yield from _reported_early(world)


def s8(world: World) -> Iterator[Violation]:
    """After `ok` of pause, delete or edit the old definition fires nothing and starts nothing."""
    yield from _fired_against_the_timer(world)
    yield from _recorded_against_the_timer(world)
    yield from agreed(world)
    for call in world.calls.values():
        if call.call in CONTROLS and call.phase == "ok":
            yield from _started_after(world, call, world.job_of(call))
        elif call.call == "cluster-pause" and call.phase == "ok":
            yield from _started_in_a_pause(world, call)


def identity(run: Run) -> tuple[str, float, str]:
    """Return the identity of a run; it never changes."""
    return run.job_id, run.scheduled_at, run.trigger


def describe(ledger_row: LedgerRow) -> str:
    """A row of the ledger in words."""
    row = ledger_row.row
    span = f" to {clock(row.scheduled_until)} ({row.count})" if row.scheduled_until else ""
    reason = f" ({row.reason})" if row.reason else ""
    return (
        f"run {row.run_id}, {clock(row.scheduled_at)}{span}: {row.state}{reason},"
        f" generation {ledger_row.first.generation}, inserted by {ledger_row.inserted.where}"
    )


def wrote(start: ProbeEvent) -> str:
    """A start in words."""
    return f"{start.worker} wrote: run {start.run} token {start.token} started {clock(start.at)}"


def _doubled_at_the_end(world: World) -> Iterator[Violation]:
    """In the database's own rows too, which commits alone don't show."""
    kept = world.history.database.get("runs", ())
    counts = Counter((r["job_id"], r["scheduled_at"]) for r in kept if r["trigger"] == SCHEDULED)
    for (job_id, at), count in counts.items():
        if count > 1:
            same = (r for r in kept if (r["job_id"], r["scheduled_at"]) == (job_id, at))
            evidence = tuple(f"run {r['run_id']}, {r['trigger']}: {r['state']}" for r in same)
            yield Violation(
                "S5", f"{at} of job {job_id} stands in {count} rows at the end", evidence
            )


def _due(run: Run) -> float:
    return max(run.due_at, run.scheduled_at) if run.scheduled else run.due_at


def _reported_early(world: World) -> Iterator[Violation]:
    """`started_at` is on the cluster's time, whatever the worker's own clock says. Where a test has
    that time leap, a worker receives it with its next heartbeat: nothing is judged there.
    """
    for step in () if world.meta.legs else world.runs.steps:
        before, run = step.before, step.after
        if run is None or run.started_at is None:
            continue
        if before is not None and before.started_at == run.started_at:
            continue
        if run.started_at < world.windows.early(_due(run)):
            yield Violation(
                "S7",
                f"run {run.run_id} was reported started {_due(run) - run.started_at:.3f} s before"
                " it was due",
                (f"due {clock(_due(run))}, {run.worker}: {clock(run.started_at)}", step.where),
            )


def _by_own_instant(rows: Sequence[LedgerRow]) -> Mapping[int, list[LedgerRow]]:
    found: dict[int, list[LedgerRow]] = defaultdict(list)
    for ledger_row in rows:
        found[ticks(ledger_row.row.scheduled_at)].append(ledger_row)
    return found


def _outside(life: Life, ledger_row: LedgerRow) -> Iterator[Violation]:
    row = ledger_row.first
    phase = life.at_generation(row.generation)
    if phase is None:
        what = f"{life.name} has a row of generation {row.generation}, which never was"
        yield Violation("S6", what, (describe(ledger_row),))
        return
    schedule = phase.definition.schedule
    for at in {row.scheduled_at, row.scheduled_until or row.scheduled_at}:
        if not oracle.is_due(schedule, at):
            what = f"{life.name} has a row for {clock(at)}, which its schedule lacks"
            yield Violation("S6", what, (describe(ledger_row), f"the schedule: {schedule}"))
            return
    counted = len(spread(life, ledger_row))
    if counted != row.count:
        what = f"{life.name} has a row that counts {row.count} instants where there are {counted}"
        yield Violation("S6", what, (describe(ledger_row), f"the schedule: {schedule}"))


def _fired_against_the_timer(world: World) -> Iterator[Violation]:
    for step in world.runs.steps:
        run = step.after
        if run is None or not run.scheduled:
            continue
        deed = _deed(step, run)
        lives = world.timers.of(run.job_id)
        if deed is None or not lives or lives[0].commit == step.commit:
            continue
        timer = world.timers.before(step.commit, run.job_id)
        cluster = world.cluster.before(step.commit)
        if cluster is not None and cluster.paused:
            why = "while the cluster was paused"
        elif timer is None:
            why = "after its job was deleted"
        elif timer.paused:
            why = "while its job was paused"
        elif timer.generation != run.generation:
            why = f"from generation {run.generation} when {timer.generation} was current"
        else:
            continue
        what = f"run {run.run_id} ({clock(run.scheduled_at)}) was {deed} {why}"
        yield Violation("S8", what, (step.where,))


def _recorded_against_the_timer(world: World) -> Iterator[Violation]:
    """Check that rows of instants that didn't fire are of a generation in force, too."""
    for step in world.runs.steps:
        run = step.after
        if run is None or not run.scheduled or step.before is not None or run.state in FIRED:
            continue
        around = world.timers.before, world.timers.after
        timers = (timer(step.commit, run.job_id) for timer in around)
        in_force = {timer.generation for timer in timers if timer is not None}
        if in_force and run.generation not in in_force:
            what = (
                f"run {run.run_id} ({clock(run.scheduled_at)}) was recorded as {run.state} from"
                f" generation {run.generation} when {min(in_force)} was current"
            )
            yield Violation("S8", what, (step.where,))


def _deed(step: Step[Run], run: Run) -> str | None:
    if step.before is None:
        return "fired" if run.state in FIRED else None
    return "assigned" if run.token != step.before.token else None


def _started_after(world: World, call: Call, job_id: str) -> Iterator[Violation]:
    changes = [s for s in world.jobs.of(job_id) if s.at <= call.until and s.after is not None]
    generation = changes[-1].after.generation if changes and changes[-1].after else 0
    for start in world.starts_by_job.get(job_id, ()):
        run, assignment = world.run(start.run), world.assignment(start.run, start.token)
        by_hand = run is not None and not run.scheduled
        if assignment is None or assignment.generation >= generation:
            continue
        if (call.call == "pause" and by_hand) or not _after(world, call, assignment, start):
            continue
        yield Violation(
            "S8",
            f"{start.job} started {start.at - call.until:.3f} s after the `ok` of its"
            f" {call.call}, from generation {assignment.generation}",
            (f"{call.call} (op {call.op}) ok {clock(call.until)}", wrote(start)),
        )


def _after(world: World, call: Call, assignment: Assignment, start: ProbeEvent) -> bool:
    """Whether it started after the call's `ok`, and its worker hadn't stood still meanwhile.

    In quiet its worker's own report tells to some milliseconds when it did; a fault may have moved
    the clock of that report, so then (and where there is none) it is the probe's line, less what
    that may lag behind the start.
    """
    if world.windows.slept(start.worker, assignment.begun.at, start.at):
        return False
    if assignment.started is not None and world.windows.quiet(call.invoked.at, start.at):
        return min(assignment.started, start.at) > call.until + REPORTED
    return start.at > call.until + WRITTEN


def _started_in_a_pause(world: World, call: Call) -> Iterator[Violation]:
    resumed = (s.at for s in world.cluster.steps if s.at > call.until and s.after)
    until = next(resumed, world.meta.ended)
    for starts in world.starts.values():
        for start in starts:
            assignment = world.assignment(start.run, start.token)
            if assignment is None or assignment.begun.at > call.until:
                continue
            if start.at < until and _after(world, call, assignment, start):
                late = start.at - call.until
                what = f"{start.job} started {late:.3f} s after the `ok` of the cluster's pause"
                yield Violation("S8", what, (f"ok {clock(call.until)}", wrote(start)))
