"""What goes wrong, and what users do; how often is a matter of the seed's weather."""

from __future__ import annotations

from collections.abc import Callable

from faults.model import calls
from faults.model.owner import Member
from faults.model.rows import Steps, Tenure, Term, Transaction
from faults.model.rules import Rule
from faults.model.timing import HORIZON, PERIOD, SECOND
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
            Fault.RESTORE_ETCD: self._restore_etcd,
            Fault.SKEW: self._skew,
            Fault.REATTACH: self._reattach,
            Fault.RAISE_TERM: self._raise_term,
        }

    def faults(self) -> Steps[None]:
        """The process that breaks things."""
        rng, weather = self._world.rng, self._world.weather
        kinds, rates = list(weather.faults), list(weather.faults.values())
        while True:
            yield
            if kinds and rng.random() < weather.faulty:
                [kind] = rng.choices(kinds, rates)
                self._world.judge.note(f"fault   {kind.name}")
                self._deeds[kind]()

    def users(self) -> Steps[None]:
        """The process of those who call."""
        world, rng = self._world, self._world.rng
        while True:
            yield
            x = rng.random()
            job = rng.choice(list(world.jobs))
            if x < world.weather.calls:
                timer = world.database.timers.get(job)
                what = rng.choices(calls.CALLS, (4, 1, 1, 4, 3, 2))[0]
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
        """Promotion of a standby that lacks the tail, or a restore from a backup."""
        self._world.spawn(promotion(self._world))

    def _restore_etcd(self) -> None:
        world = self._world
        if world.rng.random() < 0.5:
            self._etcd_backup = world.etcd.snapshot()
        else:
            renamed = world.rng.random() < 0.5
            world.etcd.restore(self._etcd_backup, world.now, renamed=renamed)

    def _skew(self) -> None:
        member = self._world.rng.choice(self._world.members)
        member.skew = self._world.rng.choice((0, HORIZON, HORIZON, -HORIZON, 3 * PERIOD))

    def _reattach(self) -> None:
        world = self._world
        world.rng.choice(world.members).attached ^= {world.rng.choice(world.workers)}

    def _raise_term(self) -> None:
        self._world.spawn(raise_term(self._world))


def _later(steps: int, process: Steps[None]) -> Steps[None]:
    for _ in range(steps):
        yield
    yield from process


def promotion(world: World) -> Steps[None]:
    """What is committed from here on is lost: the standby, or the backup, lacks it."""
    rows = world.database
    copied, promises = rows.copy(), world.judge.snapshot()
    for _ in range(world.rng.choice((1, 10, 40, 120))):
        yield
    rows.replace(copied)
    world.judge.restored(promises)


def fence(world: World, member: Member) -> Steps[None]:
    """The leader finds no key of this tenure; its process, or a new one, joins anew."""
    transaction = Transaction(world.database)
    row = yield from transaction.lock(world.database.tenures, member.tenure)
    if row is not None and not row.fenced:
        transaction.put(world.database.tenures, member.tenure, Tenure(fenced=True))
    if member in world.members:
        world.members.remove(member)
        world.members.append(Member(world))
    yield from transaction.commit()


def raise_term(world: World) -> Steps[None]:
    """Another leader is elected."""
    transaction = Transaction(world.database)
    row = yield from transaction.lock(world.database.terms, "term")
    if row is None:
        transaction.rollback()
        return
    floor = world.now if world.on(Rule.EPOCH_CLOCK_FLOOR) else 0
    transaction.put(world.database.terms, "term", Term(max(row.term + 1, floor)))
    yield from transaction.commit()
