"""Faults, and calls of users; how often is a matter of the seed's weather."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

from faults.model import calls, chains, recovery
from faults.model.owner import Member
from faults.model.rows import Steps, Tenure, Transaction
from faults.model.timing import DOUBT, HORIZON, PERIOD, SECOND, TOLERATED
from faults.model.weather import Fault
from faults.model.world import World


class Nemesis:
    """Does one thing in a while."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._etcd_backup = world.etcd.snapshot()
        self._deeds: dict[Fault, Callable[[], None]] = {
            Fault.DROP_LEASE: self._drop_lease,
            Fault.FENCE: self._fence,
            Fault.CRASH: self._crash,
            Fault.STOP_MEMBER: self._stop_member,
            Fault.STOP_WORKER: self._stop_worker,
            Fault.RESTART_WORKER: self._restart_worker,
            Fault.DRAIN: self._drain,
            Fault.PROMOTE: self._promote,
            Fault.RESTORE: self._restore,
            Fault.RESTORE_ETCD: self._restore_etcd,
            Fault.SKEW: self._skew,
            Fault.REATTACH: self._reattach,
            Fault.RAISE_TERM: self._raise_term,
        }

    def faults(self) -> Steps[None]:
        """The process that breaks things."""
        world = self._world
        rng, weather = world.rng, world.weather
        kinds, rates = list(weather.faults), list(weather.faults.values())
        while True:
            yield
            if kinds and not world.quiet and rng.random() < weather.faulty:
                [kind] = rng.choices(kinds, rates)
                world.judge.note(f"fault   {kind.name}")
                self._deeds[kind]()

    def users(self) -> Steps[None]:
        """The process of those who call."""
        world, rng = self._world, self._world.rng
        while True:
            yield
            cluster = world.database.present
            if cluster.paused and rng.random() < 0.02:
                between = rng.randint(cluster.holds[-1].began, world.now)
                world.spawn(recovery.resume(world, rng.choice((None, 0, between))))
            if world.quiet:
                continue
            if world.chained and rng.random() < world.weather.calls:
                world.spawn(chains.redrive(world))
            x = rng.random()
            job = rng.choice(list(world.jobs))
            if x < world.weather.calls:
                timer = world.database.timers.get(job)
                what = rng.choices(calls.CALLS, world.weather.asked)[0]
                if timer is not None and timer.paused and rng.random() < 0.8:
                    what = "resume"
                world.spawn(calls.change(world, job, what))
                if what == "pause" and rng.random() < 0.5:
                    world.spawn(_later(rng.randint(1, 10), calls.change(world, job, "resume")))
            elif x < 1.6 * world.weather.calls:
                world.spawn(calls.trigger(world, job))
            elif x < 1.8 * world.weather.calls and len(world.database.timers.rows) < 6:
                world.spawn(calls.create(world))

    def network(self) -> Steps[None]:
        """The process that carries frames, in any order."""
        world = self._world
        while True:
            yield
            if world.network and world.rng.random() < world.weather.carried:
                world.network.pop(world.rng.randrange(len(world.network)))()

    # -- kinds of faults --

    def _drop_lease(self) -> None:
        live = sorted(self._world.live_workers())
        if live:
            self._world.etcd.drop(self._world.rng.choice(live))

    def _fence(self) -> None:
        self._world.spawn(fence(self._world, self._world.rng.choice(self._world.members)))

    def _crash(self) -> None:
        member = self._world.rng.choice(self._world.members)
        member.kill()
        self._world.spawn(fence(self._world, member))

    def _stop_member(self) -> None:
        world, rng = self._world, self._world.rng
        member = rng.choice(world.members)
        member.stop(world.now + rng.randint(SECOND, rng.choice((4, 20)) * SECOND))
        if rng.random() < 0.7:
            world.spawn(fence(world, member))

    def _stop_worker(self) -> None:
        world, rng = self._world, self._world.rng
        worker = rng.choice(world.workers)
        if rng.random() < 0.7:
            world.etcd.drop(worker.incarnation)
        worker.stop(world.now + rng.randint(SECOND, rng.choice((4, 20)) * SECOND))

    def _restart_worker(self) -> None:
        self._world.rng.choice(self._world.workers).kill()

    def _drain(self) -> None:
        worker = self._world.rng.choice(self._world.workers)
        worker.drain(not worker.memory.draining)

    def _promote(self) -> None:
        """Promotion of a standby that lacks the tail."""
        self._world.spawn(promotion(self._world))

    def _restore(self) -> None:
        """A backup of now is put back, some time."""
        self._world.spawn(restore(self._world))

    def _restore_etcd(self) -> None:
        world = self._world
        if world.rng.random() < 0.5:
            self._etcd_backup = world.etcd.snapshot()
        elif world.judge.promises.held is None or world.database.present.paused:
            # before a leader has looked: only an operator could know, and runs `schedd recover`
            renamed = world.rng.random() < 0.5
            world.etcd.restore(self._etcd_backup, world.now, renamed=renamed)

    def _skew(self) -> None:
        member = self._world.rng.choice(self._world.members)
        member.skew = self._world.rng.choice((0, HORIZON, HORIZON, -HORIZON, 3 * PERIOD))

    def _reattach(self) -> None:
        world = self._world
        world.rng.choice(world.members).attached ^= {world.rng.choice(world.workers)}

    def _raise_term(self) -> None:
        """The election key is gone; who held it doesn't know yet."""
        self._world.etcd.leader = None


def end_faults(world: World) -> None:
    """End all faults: start stopped members again, and restore deleted keys."""
    world.quiet = True
    world.weather = replace(world.weather, sleepy=0.0)
    world.database.late_commits = world.database.lost_commits = 0.0
    world.members = [Member(world) if member.over else member for member in world.members]
    world.etcd.members = {member.tenure for member in world.members}


def _later(steps: int, process: Steps[None]) -> Steps[None]:
    for _ in range(steps):
        yield
    yield from process


def promotion(world: World) -> Steps[None]:
    """Lose what is committed from here on: the standby lacks it."""
    rows = world.database
    copied, promises, mark = rows.copy(), world.judge.snapshot(), rows.present.mark
    server = rows.server
    for _ in range(world.rng.choice((1, 10, 40, 120))):
        yield
    newest = [0, *world.judge.marks][-2:]
    forgot = world.etcd.mark < newest[0]  # etcd, what would tell that more than a tail is lost
    if forgot or rows.server != server or world.etcd.mark - mark > TOLERATED:
        return  # or it was another server's standby, or slept for too long to lack only a tail
    changed = {key for key, run in rows.runs.rows.items() if copied["runs"].get(key) != run}
    rows.replace(copied)
    world.judge.lost_tail(promises, changed)


def restore(world: World) -> Steps[None]:
    """The server's files are put back as they were here, or recovered to then on a new timeline."""
    rows = world.database
    copied, promises, at = rows.copy(), world.judge.snapshot(), world.now
    until = at + TOLERATED + world.rng.randint(SECOND, 12 * SECOND)
    while world.now < until:
        yield
    mark = copied["cluster"]["cluster"].mark
    since = [mark, *(each for each in world.judge.marks if each > mark), world.now]
    apart = max(later - earlier for earlier, later in itertools.pairwise(since))
    if apart > DOUBT or world.etcd.mark - mark <= TOLERATED or world.etcd.mark < since[-2]:
        return  # no member marked for so long that none can have acted, or etcd forgot
    rows.replace(copied, promoted=world.rng.random() < 0.5)
    world.judge.went_back(promises, at)
    yield from _sent_again(world)


def _sent_again(world: World) -> Steps[None]:
    """Send unanswered frames again: at once, or when all is done that holds it."""
    strays, world.strays = world.strays, []
    world.rng.shuffle(strays)
    at_once, until = world.rng.random() < 0.5, world.now + 10 * SECOND
    mark = world.database.present.mark
    while not at_once and world.database.present.mark == mark and world.now < until:
        yield
    for deliver in strays:
        deliver()
        yield


def fence(world: World, member: Member) -> Steps[None]:
    """Fence this tenure: the leader finds no key of it; its process, or a new one, joins again."""
    world.etcd.leave(member.tenure)
    transaction = Transaction(world.database)
    row = yield from transaction.lock(world.database.tenures, member.tenure)
    if row is not None and not row.fenced:
        transaction.put(world.database.tenures, member.tenure, Tenure(fenced=True))
    if member in world.members:
        world.members.remove(member)
        world.members.append(Member(world))
    yield from transaction.commit()
