"""L3, L4: after healing everything is owned, led and attached again, and nothing stays stuck.

A fault is judged for L3 where no other fault begins meanwhile. A member that owned a shard
or led by then must have been alive: a tenure that is fenced within F afterwards, though no further
fault began, was dead already. So was a worker that is lost within its TTL + F afterwards.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from faults.checker.epochs import member
from faults.checker.rows import Run
from faults.checker.tables import Step, Table, clock
from faults.checker.verdict import Violation
from faults.checker.windows import Fault
from faults.checker.world import World

SLACK = 5.0
"""Seconds that a row may stay as it is beyond its deadline, at the end of a run."""
DEFAULT_TIMEOUT = 3600.0
HANDS_OVER = ("transfer-leader", "transfer_leader", "rebalance")
"""Calls after which the leader, or owners, change though nothing is wrong."""


def l3(world: World) -> Iterator[Violation]:
    """After healing: a leader within F, every shard owned, every worker within its TTL + F."""
    for fault in world.windows.faults:
        if fault.took_effect is None:
            continue
        failover, worker_ttl = world.meta.failover, world.meta.worker_ttl
        by = fault.healed + failover
        undisturbed = _undisturbed_until(world, fault)
        if by <= undisturbed:
            yield from _owned(world, fault, by, min(undisturbed, by + failover))
            yield from _led(world, fault, by, min(undisturbed, by + failover))
        by += worker_ttl
        if by <= undisturbed:
            yield from _attached(world, fault, by, min(undisturbed, by + failover + worker_ttl))


def l4(world: World) -> Iterator[Violation]:
    """Check that no process is stuck or ended on its own, and that nothing is left behind."""
    waiting: dict[str, int] = defaultdict(int)
    for run in world.runs.final():
        waiting[run.job_id] += run.admitted
    for run in world.runs.final():
        why = None if run.ended else _stuck(world, run, waiting[run.job_id] - run.admitted)
        if why is not None:
            what = f"run {run.run_id} ({clock(run.scheduled_at)}) is {run.state}: {why}"
            yield Violation("L4", what, (world.runs.of(run.run_id)[-1].where,))
    yield from _live_rows(world)
    leftovers = world.history.leftovers
    if leftovers is not None:
        for kind in ("processes", "etcd_keys", "spool_files", "cgroups"):
            found = getattr(leftovers, kind)
            if found:
                what = f"{len(found)} {kind.replace('_', ' ')} were left behind"
                yield Violation("L4", what, found)
        yield from _ended_by_themselves(world, leftovers.restarts)


def _ended_by_themselves(world: World, restarts: Sequence[str]) -> Iterator[Violation]:
    """The service manager starts what a failpoint killed, and has nothing else to do."""
    killed = Counter(
        event.detail.get("member") or event.detail.get("worker")
        for event in world.history.nemesis
        if event.fault.startswith("kill -9 at") and event.phase == "took_effect"
    )
    for who, times in (Counter(restarts) - killed).items():
        yield Violation("L4", f"{who} ended on its own {times} times and was started again")


def _undisturbed_until(world: World, fault: Fault) -> float:
    """Until when nothing further was done to the cluster."""
    later = [
        other.begin
        for other in world.windows.faults
        if other.id != fault.id and other.healed > fault.healed
    ]
    calls = [
        call.invoked.at
        for call in world.calls.values()
        if call.call in HANDS_OVER and call.invoked.at > fault.healed
    ]
    return min([*later, *calls, world.meta.ended])


def _owned(world: World, fault: Fault, by: float, undisturbed: float) -> Iterator[Violation]:
    after = f"{world.meta.failover:g} s after {fault.name} of {fault.target} had healed"
    for key in world.shards.rows:
        shard = world.shards.asof(by, *key)
        if shard is None or (shard.epoch == 0 and shard.owner is None):
            continue
        if shard.owner is None:
            what = f"shard {shard.id} had no owner {after}"
            yield Violation("L3", what, (f"healed {clock(fault.healed)}",))
            continue
        gone = _fenced_by(world, shard.owner, undisturbed)
        if gone is not None:
            yield Violation(
                "L3",
                f"shard {shard.id} had no living owner {after}",
                (
                    f"healed {clock(fault.healed)}",
                    f"its owner was {member(world, shard.owner)}, fenced at {clock(gone)}",
                ),
            )


def _led(world: World, fault: Fault, by: float, undisturbed: float) -> Iterator[Violation]:
    term = world.terms.asof(by)
    if term is None:
        return
    after = f"{world.meta.failover:g} s after {fault.name} of {fault.target} had healed"
    for step in world.terms.steps:
        if by < step.at < undisturbed and step.after is not None:
            yield Violation(
                "L3",
                f"the leader changed {step.at - fault.healed:.1f} s after {fault.name} of"
                f" {fault.target} had healed, and nothing was wrong then",
                (f"healed {clock(fault.healed)}", f"{step.where}: term {step.after.term}"),
            )
            return
    gone = _fenced_by(world, term.leader or "", undisturbed)
    if term.leader is None or gone is not None:
        fenced = f", fenced at {clock(gone)}" if gone is not None else ""
        yield Violation(
            "L3",
            f"there was no living leader {after}",
            (f"healed {clock(fault.healed)}", f"{member(world, term.leader)}{fenced}"),
        )


def _attached(world: World, fault: Fault, by: float, undisturbed: float) -> Iterator[Violation]:
    alive: dict[str, bool] = {}
    for key, steps in world.incarnations.rows.items():
        first = steps[0].after
        if first is None:
            continue
        known = steps[0].at <= fault.healed or first.worker in alive
        row = world.incarnations.asof(by, *key)
        lost = world.lost_at.get(key[0], float("inf"))
        living = row is not None and not row.lost and lost >= undisturbed
        if known or living:
            alive[first.worker] = alive.get(first.worker, False) or living
    for worker, living in alive.items():
        if not living and not _away(world, worker):
            yield Violation(
                "L3",
                f"{worker} was not attached {by - fault.healed:g} s after {fault.name} of"
                f" {fault.target} had healed",
                (f"healed {clock(fault.healed)}",),
            )


def _away(world: World, worker: str) -> bool:
    """Whether the test took the worker away for good."""
    return any(
        fault.healed >= world.meta.ended and worker in fault.target.split(",")
        for fault in world.windows.faults
    )


def _fenced_by(world: World, tenure: str, until: float) -> float | None:
    """When this tenure was fenced, if it was before `until`."""
    steps = world.tenures.of(tenure)
    return next((s.at for s in steps if s.after and s.after.fenced and s.at < until), None)


def _stuck(world: World, run: Run, others: int) -> str | None:
    """Return what keeps the run past its deadline; None: it may still be as it is."""
    limit = world.windows.timeout + SLACK
    life = world.lives.by_job.get(run.job_id)

    def over(since: float | None) -> bool:
        return since is not None and world.meta.ended - since > limit

    if run.state != "RUNNING":
        paused = life is not None and run.scheduled and life.paused(world.meta.ended, float("inf"))
        ready = max(run.ready_at or 0.0, run.due_at)
        stuck = over(ready) and not paused and not others
        return "it waits, and no owner dispatches it" if stuck else None
    end = world.ends.get((run.run_id, run.token))
    if end is not None and over(end.at):
        return f"its attempt ended at {clock(end.at)}"
    lost = world.lost_at.get(run.incarnation or "")
    if over(lost):
        return f"its worker {run.worker} was lost at {clock(lost or 0.0)}"
    begun = any(start.token == run.token for start in world.starts.get(run.run_id, ()))
    assignment = world.assignment(run.run_id, run.token)
    if life is not None and assignment is not None and not begun and run.started_at is None:
        return "it never started" if over(assignment.begun.at) else None
    phase = life.at_generation(run.generation) if life is not None else None
    timeout = phase.definition.timeout if phase is not None else None
    assigned = run.assigned_at
    if assigned is not None and over(assigned + (timeout or DEFAULT_TIMEOUT)):
        return "its timeout has passed"
    return None


def _live_rows(world: World) -> Iterator[Violation]:
    """`live` has a row for each run that hasn't ended, and no other."""
    rows: Table[str] = world.live
    if not rows.steps:
        return
    live = set(rows.final())
    waiting = {run.run_id for run in world.runs.final() if not run.ended}
    for run_id in sorted(live - waiting):
        yield Violation("L4", f"run {run_id} has ended and still stands in `live`")
    for run_id in sorted(waiting - live):
        steps: list[Step[Run]] = list(world.runs.of(run_id))
        what = f"run {run_id} hasn't ended and doesn't stand in `live`: no new owner will find it"
        yield Violation("L4", what, (steps[-1].where,))
