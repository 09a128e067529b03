"""The epoch log beside the shards: each taking stands in it once, and nothing else does.

`shard_log` is written by the very statement that takes a shard, so what an owner of an old epoch
did would show there. It is looked at in commit order, and once more as the database has it at the
end.
"""

from __future__ import annotations

from collections.abc import Iterator

from faults.checker.rows import Taking
from faults.checker.tables import Step
from faults.checker.verdict import Violation
from faults.checker.world import World


def epoch_log(world: World) -> Iterator[Violation]:
    """Its epochs grow, shard by shard, and are those that the shards' rows bore."""
    logged: dict[int, set[tuple[int, int, str | None]]] = {}
    newest: dict[int, int] = {}
    for step in sorted(world.takings.steps, key=_place):
        taking = step.after
        if taking is not None and taking == step.before:
            continue  # read twice: it was committed while the first rows were read
        if taking is None or step.before is not None:
            yield Violation("S3", f"line {step.key[0]} of the epoch log was changed", (step.where,))
            continue
        if step.commit >= 0:
            logged.setdefault(step.commit, set()).add((taking.shard, taking.epoch, taking.tenure))
        if taking.epoch <= newest.get(taking.shard, -1):
            what = f"shard {taking.shard} was taken at epoch {taking.epoch}"
            yield Violation("S3", f"{what} after {newest[taking.shard]}", (step.where,))
        newest[taking.shard] = max(taking.epoch, newest.get(taking.shard, -1))
    yield from _against_rows(world, logged)
    yield from _against_database(world)


def _place(step: Step[Taking]) -> tuple[int, int]:
    """In commit order; what stood there before the first commit was read in no order of its own."""
    return step.commit, int(step.key[0]) if step.commit < 0 else 0


def _against_rows(
    world: World, logged: dict[int, set[tuple[int, int, str | None]]]
) -> Iterator[Violation]:
    for step in world.shards.steps:
        shard, before = step.after, step.before
        if step.commit < 0 or shard is None or shard.owner is None:
            continue
        same = before is not None and (before.owner, before.epoch) == (shard.owner, shard.epoch)
        if same:
            continue
        line = (shard.id, shard.epoch, shard.owner)
        if line not in logged.get(step.commit, set()):
            what = f"shard {shard.id} was taken at epoch {shard.epoch} without a line in the log"
            yield Violation("S3", what, (step.where,))
        logged.get(step.commit, set()).discard(line)
    for commit, lines in logged.items():
        for shard_id, epoch, _ in sorted(lines, key=str):
            what = f"the epoch log has shard {shard_id} taken at epoch {epoch}; its row hasn't"
            yield Violation("S3", what, (f"commit {commit}",))


def _against_database(world: World) -> Iterator[Violation]:
    if "shard_log" not in world.history.database:
        return  # N1 says what is missing
    rows = [Taking.of(row) for row in world.history.database["shard_log"]]
    stands = {each.seq: each for each in rows}
    for logged in sorted(world.takings.final(), key=lambda each: each.seq):
        if stands.get(logged.seq) != logged:
            yield Violation(
                "S3",
                f"line {logged.seq} of the epoch log isn't in the database as it was committed",
                (f"committed: {logged}", f"at the end: {stands.get(logged.seq)}"),
            )
