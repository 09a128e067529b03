"""S4, S13: who owned the shard at each committed write, and under which epoch."""

from __future__ import annotations

from collections.abc import Iterator

from faults.checker.rows import FIRED, Run
from faults.checker.tables import Step, clock
from faults.checker.verdict import Violation
from faults.checker.world import World


def epoch_of(token: int) -> int:
    """The epoch under which a token was made (docs/architecture.md, Words)."""
    return token >> 32


def s4(world: World) -> Iterator[Violation]:
    """The epochs over an owner's committed writes never go back; each rejected write was older."""
    newest: dict[int, int] = {}
    for step in world.runs.steps:
        before, run = step.before, step.after
        if run is None:
            continue
        shard = world.shards.before(step.commit, str(run.shard))
        fresh = run.fired_by is not None and run.fired_by != (before.fired_by if before else None)
        if fresh and shard is not None and shard.owner != run.fired_by:
            yield _foreign(world, step, run, shard.owner)
        if run.scheduled and before is None and run.state in FIRED and run.fired_by is None:
            yield Violation("S4", f"run {run.run_id} was fired by no owner", (step.where,))
        if run.token != (before.token if before else 0):
            epoch = epoch_of(run.token)
            present = max(newest.get(run.shard, 0), shard.epoch if shard else 0)
            if epoch < present:
                yield Violation(
                    "S4",
                    f"run {run.run_id} was assigned under epoch {epoch} of shard {run.shard},"
                    f" whose epoch was {present} already",
                    (f"{step.where}: token {run.token} for {run.worker}",),
                )
            elif shard is not None and epoch != shard.epoch:
                what = f"run {run.run_id} was assigned under epoch {epoch} of shard {run.shard}"
                yield Violation("S4", f"{what}, whose epoch was {shard.epoch}", (step.where,))
            newest[run.shard] = max(present, epoch)
    yield from _wrongly_refused(world)


def s13(world: World) -> Iterator[Violation]:
    """At each commit a shard has at most one unfenced owner."""
    for step in world.shards.steps:
        before, after = step.before, step.after
        if after is None or after.owner is None:
            continue
        old = before.owner if before else None
        if after.owner == old and before is not None and after.epoch == before.epoch:
            continue
        if old is not None and old != after.owner and not _fenced(world, step.commit, old):
            yield Violation(
                "S13",
                f"shard {after.id} was taken from {member(world, old)}, which was not fenced",
                (f"{step.where}: by {member(world, after.owner)}, epoch {after.epoch}",),
            )
        if _fenced(world, step.commit - 1, after.owner):
            yield Violation(
                "S13",
                f"shard {after.id} was taken by {member(world, after.owner)}, which was fenced",
                (f"{step.where}: epoch {after.epoch}",),
            )
        if step.commit >= 0 and world.tenures.after(step.commit, after.owner) is None:
            what = f"shard {after.id} was taken by tenure {after.owner}, which no commit has opened"
            yield Violation("S13", what, (f"{step.where}: epoch {after.epoch}",))
    for tenure in world.tenures.steps:
        if tenure.before and tenure.before.fenced and not (tenure.after and tenure.after.fenced):
            what = f"{member(world, tenure.key[0])} had been fenced, and no longer is"
            yield Violation("S13", what, (tenure.where,))


def member(world: World, tenure: str | None) -> str:
    """A tenure in words."""
    steps = world.tenures.of(tenure or "")
    row = steps[-1].after if steps else None
    return f"tenure {tenure} of {row.member}" if row else f"tenure {tenure}"


def _fenced(world: World, commit: int, tenure: str) -> bool:
    row = world.tenures.after(commit, tenure)
    return row is not None and row.fenced


def _foreign(world: World, step: Step[Run], run: Run, owner: str | None) -> Violation:
    deed = "skipped" if step.before else "fired"
    return Violation(
        "S4",
        f"run {run.run_id} ({clock(run.scheduled_at)}) was {deed} by"
        f" {member(world, run.fired_by)}, which did not own shard {run.shard}",
        (step.where, f"the owner was {member(world, owner)}"),
    )


def _wrongly_refused(world: World) -> Iterator[Violation]:
    for step in world.audit.steps:
        entry = step.after
        if entry is None or not entry.stale or entry.run_id is None:
            continue
        run = world.runs.before(step.commit, entry.run_id)
        if (
            run is not None
            and (run.state, run.token) == ("RUNNING", entry.token)
            and run.incarnation == entry.source
        ):
            yield Violation(
                "S4",
                f"the result of run {entry.run_id} under token {entry.token} was refused as STALE,"
                " though the run ran under that very token",
                (f"{step.where}: from {entry.worker} ({entry.source})",),
            )
