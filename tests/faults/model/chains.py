"""A chain: a job that runs after two others, once a cycle, when both have ended in it (P5.3).

    a parent's run ends ─→ its arrival, in that transaction, whichever process ends it
    an owner: read what has arrived ─→ later: fence ─→ timer ─→ arrivals locked
              ─→ who may still come ─→ insert the child's run, or the skipped row
              ─→ take the arrivals away ─→ COMMIT

A cycle is an instant. The child's first row of it has the number `JOINED` + instant; what does a
run of it again, the child's or a parent's, `AGAIN` + instant. Its condition is `success`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from faults.model.rows import LIVE, Arrival, Claim, JobId, Run, RunId, Steps, Timer, Transaction
from faults.model.rules import Rule
from faults.model.timing import AGAIN, JOINED, TRIGGERED, cycle_of

if TYPE_CHECKING:
    from faults.model.owner import Member
    from faults.model.world import World

CHAINED = frozenset(rule for rule in Rule if rule.startswith("join-"))
PARENTS: tuple[JobId, ...] = (0, 1)
"""On different shards, as they begin."""
CHILD: JobId = 3
Arrived = dict[JobId, Arrival]


@dataclass(frozen=True, slots=True)
class _Read:
    """Read by an owner of one cycle, some time later."""

    cycle: int
    arrived: Arrived
    generation: int


def chained(seed: int, without: frozenset[Rule]) -> bool:
    """Whether there is a chain in this seed's world: too little else would happen in each."""
    return bool(without & CHAINED) or (not without and seed % 4 == 3)


# -- what arrives --


def ending(world: World, transaction: Transaction) -> Steps[None]:
    """The trigger: what this ends arrives with it."""
    if world.on(Rule.JOIN_ARRIVES_WITH_END):
        yield from _arrive(world, transaction, _ended(transaction))


def ended(world: World, transaction: Transaction) -> None:
    """This was committed, and who ended runs by it knows: it may tell the child now."""
    if keys := _ended(transaction):
        world.spawn(_tell(world, keys))


def _tell(world: World, keys: Mapping[RunId, Run]) -> Steps[None]:
    transaction = Transaction(world.database)
    yield from _arrive(world, transaction, keys)
    yield from transaction.commit()


def _ended(transaction: Transaction) -> dict[RunId, Run]:
    """The runs of parents that it ends."""
    rows, found = transaction.database.runs, {}
    for (name, key), (_, run) in transaction.writes.items():
        if name == rows.name and key[0] in PARENTS and cycle_of(key[1]):  # type: ignore[index] # of runs
            before = rows.get(key)  # type: ignore[arg-type] # as above
            if before is not None and before.state in LIVE and run.state not in LIVE:
                found[key] = run
    return found  # type: ignore[return-value] # as above


def _arrive(world: World, transaction: Transaction, ends: Mapping[RunId, Run]) -> Steps[None]:
    rows = world.database
    for key, run in sorted(ends.items(), key=lambda each: each[0]):
        at = (cycle_of(key[1]), key[0])
        before = yield from transaction.lock(rows.arrivals, at)
        if rows.timers.get(CHILD) is not None:
            first = world.now if before is None else before.at
            transaction.put(rows.arrivals, at, Arrival(key, run.state, first))


# -- what an owner does --


def join(member: Member) -> Steps[None]:
    """Read what is due of one cycle; judge it later."""
    world, rows = member.world, member.world.database
    timer = rows.timers.get(CHILD)
    if timer is None or timer.shard not in member.epochs or rows.present.paused:
        return
    cycles = sorted({cycle for cycle, _ in rows.arrivals.rows})
    if not cycles:
        return
    cycle = world.rng.choice(cycles)
    read = _Read(cycle, _arrived(world, cycle), timer.generation)
    claim = member.claim(timer.shard)
    for _ in range(world.rng.choice((0, 1, 10, 60))):
        yield
    yield from _judge(member, claim, read)


def _judge(member: Member, claim: Claim, read: _Read) -> Steps[None]:
    world, rows = member.world, member.world.database
    transaction = yield from _begin(member, claim)
    timer = yield from transaction.lock(rows.timers, CHILD, shared=True)
    found = timer is not None and (timer.shard, timer.generation) == (claim.shard, read.generation)
    if world.on(Rule.JOIN_COMPARES_ARRIVALS):
        for parent in sorted(read.arrived):
            yield from transaction.lock(rows.arrivals, (read.cycle, parent))
        found = found and _arrived(world, read.cycle) == read.arrived
    if not found or timer is None or rows.present.paused:
        transaction.rollback()
        return
    key, before = _made(world, read.cycle)
    coming = yield from _coming(world, read)
    new = _decided(world, read, before, coming, timer)
    if new is not None:
        for parent in read.arrived:
            transaction.put(rows.arrivals, (read.cycle, parent), None)
        if not world.on(Rule.JOIN_TAKES_AWAY_AT_ONCE):
            yield from transaction.commit()
            transaction = yield from _begin(member, claim)
        again = before is not None and new.state == "PENDING"
        yield from _write(transaction, (CHILD, AGAIN + read.cycle) if again else key, new)
    yield from transaction.commit()


def _begin(member: Member, claim: Claim) -> Steps[Transaction]:
    if member.world.on(Rule.JOIN_UNDER_FENCE):
        return (yield from member.begin(claim))
    return member.transaction(claim)


def _write(transaction: Transaction, key: RunId, new: Run) -> Steps[None]:
    """Insert it; or update a skipped one."""
    runs = transaction.database.runs
    before = yield from transaction.lock(runs, key)
    if before is None:
        transaction.insert(runs, key, new)
    elif before.state == new.state:
        transaction.put(runs, key, new)


def _arrived(world: World, cycle: int) -> Arrived:
    rows = world.database.arrivals.rows
    return {at[1]: arrival for at, arrival in rows.items() if at[0] == cycle}


def _made(world: World, cycle: int) -> tuple[RunId, Run | None]:
    """Where the child's row of the cycle belongs, and that row."""
    if not world.on(Rule.JOIN_ID_RECKONED):
        return (CHILD, AGAIN + world.name() * TRIGGERED + cycle), None
    key = (CHILD, JOINED + cycle)
    return key, world.database.runs.get(key)


def _coming(world: World, read: _Read) -> Steps[set[JobId]]:
    """Return the parents that haven't arrived and may still, or have by now."""
    rows = world.database
    missing = [parent for parent in PARENTS if parent not in read.arrived]
    coming = {parent for parent in missing if (read.cycle, parent) in rows.arrivals.rows}
    if missing and not world.on(Rule.JOIN_COMING_IN_ONE):
        for _ in range(world.rng.choice((1, 10, 60))):
            yield
    return coming | {parent for parent in missing if may_come(world, parent, read.cycle)}


def may_come(world: World, parent: JobId, cycle: int) -> bool:
    """Whether a run of the cycle is under way there, or its timer stands before it."""
    rows = world.database
    timer = rows.timers.get(parent)
    waits = timer is not None and timer.due <= cycle and not (timer.paused or timer.ended)
    return waits or any(
        run.state in LIVE for key, run in rows.runs_of(parent) if cycle_of(key[1]) == cycle
    )


def _decided(
    world: World, read: _Read, before: Run | None, coming: set[JobId], timer: Timer
) -> Run | None:
    """Return the row to be written; None: wait."""
    states = {parent: arrival.state for parent, arrival in read.arrived.items()}
    skipped = Run("SKIPPED", timer.generation, timer.shard)
    if before is not None:
        done = (CHILD, AGAIN + read.cycle) in world.database.runs.rows
        if done or before.state != "SKIPPED" or before.parent_states is None:
            return before  # it ran, or is to, or was skipped for something else
        states = dict(before.parent_states) | states
    elif coming:
        return None
    if [states.get(parent) for parent in PARENTS] != ["SUCCEEDED"] * len(PARENTS):
        return replace(skipped, parent_states=tuple(sorted(states.items())))
    return skipped if before is None and timer.paused else replace(skipped, state="PENDING")


# -- a user, and the end --


def redrive(world: World) -> Steps[None]:
    """A parent's run that didn't succeed is done again, in its cycle."""
    rows = world.database
    failed = [
        key
        for parent in PARENTS
        for key, run in rows.runs_of(parent)
        if key[1] < TRIGGERED and run.state not in (*LIVE, "SUCCEEDED")
    ]
    if not failed:
        return
    job, cycle = world.rng.choice(failed)
    transaction = Transaction(rows)
    timer = yield from transaction.lock(rows.timers, job, shared=True)
    key = (job, AGAIN + cycle)
    there = yield from transaction.lock(rows.runs, key)
    if timer is None or there is not None:
        transaction.rollback()
        return
    transaction.insert(rows.runs, key, Run("PENDING", timer.generation, timer.shard))
    yield from transaction.commit()
