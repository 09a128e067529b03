"""Bringing back: runs whose incarnation is gone, and runs that never started, or can't be found to
have.

A member reads its rows first, then lists etcd: a run dispatched after the list is never taken
for lost. What absence from a list means is `AbsenceTracker`'s to say.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from faults.model.etcd import Listing
from faults.model.results import put_back, same_attempt
from faults.model.rows import Incarnation, IncarnationId, Run, RunId, Steps
from faults.model.rules import Rule
from faults.model.timing import WORKER_TTL

if TYPE_CHECKING:
    from collections.abc import Callable

    from faults.model.owner import Member
    from faults.model.worker import Key
    from faults.model.world import World


class AbsenceTracker:
    """Knowledge of a member about keys that aren't there. etcd may have come back without its last
    minutes: then a key is missing whose holder lives, and is about to make it again.

    A deletion that was watched is one. Revisions and cluster ids tell of a restore only sometimes:
    not a member that hasn't listed since the key was made, nor one that has just started, nor once
    the revisions have grown past those it saw.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._deleted: set[IncarnationId] = set()
        self._since: dict[IncarnationId, int] = {}
        self._seen: tuple[int, int] | None = None
        """Cluster id and revision of the list before."""
        self._doubted_until = 0
        self._read_at = 0
        world.etcd.watchers.append(self._deleted.add)

    def read(self, listing: Listing) -> None:
        """Another list was read."""
        if self._seen is not None:
            cluster, revision = self._seen
            if cluster != listing.cluster or listing.revision < revision:
                self._doubted_until = self._world.now + WORKER_TTL
        self._seen = (listing.cluster, listing.revision)
        if self._world.now > self._read_at + WORKER_TTL // 3:
            self._since.clear()  # it may have been there in between: absent is what stays absent
        self._read_at = self._world.now
        for there in listing.live:
            self._since.pop(there, None)
        self._deleted -= listing.live

    def lost(self, incarnation: IncarnationId) -> bool:
        """Whether an incarnation that wasn't in the last list is."""
        world = self._world
        if not world.on(Rule.RESTORE_WAITS):
            return True
        if not world.on(Rule.DELETION_WATCHED):
            return world.now >= self._doubted_until
        since = self._since.setdefault(incarnation, world.now)
        return incarnation in self._deleted or world.now >= since + WORKER_TTL


def rescue(member: Member) -> Steps[None]:
    """Runs whose incarnation has no key any more."""
    world = member.world
    if world.on(Rule.LIST_AFTER_ROWS):
        running = _running(member)
        yield from _scan(world)
        listing = world.etcd.listing(world.now)
    else:
        listing = world.etcd.listing(world.now)
        yield from _scan(world)
        running = _running(member)
    if not running:
        return
    member.absence.read(listing)
    for key, run in running:
        named = run.incarnation
        if named is not None and named not in listing.live and member.absence.lost(named):
            yield from _lose(member, key, run)


def give_back(member: Member) -> Steps[None]:
    """Runs that their live worker says it never started."""
    for key, run in _running(member):
        shard = member.shard_of(key[0], run)
        if shard is not None and _never_started(member, key, run):
            transaction = yield from member.begin(member.claim(shard))
            yield from put_back(member.world, transaction, key, run.token, owner=True)


def ask_back(member: Member) -> Steps[None]:
    """Whatever may not have come to its worker, that is asked to give up; here that is all. It is
    its answer that gives a run back.
    """
    world = member.world
    for key, run in _running(member):
        named, token = run.incarnation, run.token
        if named is None:
            continue
        if not world.on(Rule.ASKED_BACK_ANSWERED):
            yield from put_back(world, member.transaction(), key, token, owner=True)
        world.send(_revoke(world, (key, token), named))
    yield


def _revoke(world: World, key: Key, named: IncarnationId) -> Callable[[], None]:
    worker = world.workers[named[0]]

    def ask() -> None:
        if worker.incarnation == named and worker.revoke(key):
            worker.refuse(key)

    return ask


def _running(member: Member) -> list[tuple[RunId, Run]]:
    return [
        (key, run)
        for key, run in member.world.database.runs.rows.items()
        if run.state == "RUNNING" and member.shard_of(key[0], run) in member.epochs
    ]


def _scan(world: World) -> Steps[None]:
    """A scan of many rows takes its time."""
    for _ in range(world.rng.choice((1, 1, 10, 60))):
        yield


def _lose(member: Member, key: RunId, run: Run) -> Steps[None]:
    """Write the loss down and move the run on, in one transaction."""
    world, rows = member.world, member.world.database
    shard = member.shard_of(key[0], run)
    if shard is None or run.incarnation is None:
        return
    transaction = yield from member.begin(member.claim(shard))
    yield from transaction.lock(rows.incarnations, run.incarnation)
    row = yield from transaction.lock(rows.runs, key)
    if row is None or not same_attempt(world, row, run.token):
        transaction.rollback()
        return
    state = "RETRYING"
    if rows.timers.get(key[0]) is None:
        state = "CANCELLED"
    elif world.jobs[key[0]].at_most_once and world.on(Rule.AT_MOST_ONCE_LOSS):
        state = "FAILED"
    hurried = not world.on(Rule.LOST_WAITS)
    transaction.put(rows.incarnations, run.incarnation, Incarnation(lost=True))
    transaction.put(
        rows.runs, key, replace(row, state=state, attempt=row.attempt - 1, hurried=hurried)
    )
    yield from transaction.commit()


def _never_started(member: Member, key: RunId, run: Run) -> bool:
    received = member.received.get(run.incarnation) if run.incarnation else None
    if received is None or (key, run.token) in received.listed:
        return False
    return received.at > run.sent[-1].start_by or not member.world.on(Rule.BACK_AFTER_START_BY)
