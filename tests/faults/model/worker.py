"""A worker: admission, starts, the spool, and its lives.

    receive ─→ seen? ─→ held (until it is due) ─→ start ─→ executing ─→ spool ─→ acknowledged

It is one host with one spool directory. Its process may stop, or be killed; its executions
continue or are left over, its spool stays; then it comes back as another incarnation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from faults.model import results
from faults.model.rows import Incarnation, IncarnationId, RunId, Steps
from faults.model.rules import Rule

if TYPE_CHECKING:
    from faults.model.owner import Member
    from faults.model.world import World

SLOTS = 4
Key = tuple[RunId, int]
"""A run under a token."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A frame down, as the owner committed it."""

    run: RunId
    token: int
    incarnation: IncarnationId
    generation: int
    start_by: int
    not_before: int = 0
    """0: at once."""

    @property
    def key(self) -> Key:
        """Return run and token."""
        return self.run, self.token


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A frame up: `at`, by the worker's clock, it held or ran or had spooled what is `listed`."""

    incarnation: IncarnationId
    at: int
    listed: frozenset[Key]


@dataclass(slots=True)
class Seen:
    """The greatest token of a run that came, and whether it was taken."""

    token: int
    taken: bool


@dataclass(slots=True)
class Memory:
    """State that ends with the process."""

    held: dict[Key, Assignment] = field(default_factory=dict)
    running: set[Key] = field(default_factory=set)
    seen: dict[RunId, Seen] = field(default_factory=dict)
    draining: bool = False


class Worker:
    """Process of `workerd`, and its host."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.executing: dict[Key, Assignment] = {}
        self.spool: dict[Key, str] = {}
        """Outcome of each ended attempt."""
        self.incarnation: IncarnationId = (number, 0)
        self.attached = self.incarnation
        """Which one a member has greeted."""
        self.memory = Memory()
        self._inbox: list[Assignment] = []
        self._judged = 0
        world.database.incarnations.rows[self.incarnation] = Incarnation()
        world.etcd.create(self.incarnation, world.now)
        self._process = self._life()
        world.spawn(self._process)

    # -- frames down --

    def receive(self, assignment: Assignment) -> None:
        """A frame is in the socket; it is read when the process runs."""
        self._inbox.append(assignment)

    def revoke(self, key: Key) -> bool:
        """Never start this one. True: it never started and never will."""
        run, token = key
        if self.memory.held.pop(key, None) is not None:
            self.memory.seen[run].taken = False
            return True
        seen = self.memory.seen.get(run)
        if seen is not None and seen.token == token:
            return not seen.taken
        if seen is None or seen.token < token:
            self.memory.seen[run] = Seen(token, taken=False)
        return True

    def acknowledged(self, key: Key) -> None:
        """Its result is stored, or refused for good."""
        self.spool.pop(key, None)

    def written_off(self, incarnation: IncarnationId) -> None:
        """Handle the loss of that incarnation: be another. What runs ends and reports late."""
        if incarnation == self.incarnation:
            self._withdraw()
            self._register()

    # -- its readings of the time --

    def _surely(self) -> int:
        """Return the lower bound of the time."""
        if not self.world.on(Rule.LOWER_BOUND):
            return self.world.now + self._off(-1)
        return self.world.now - self._off(0)

    def _at_most(self) -> int:
        """Return the upper bound of the time; what was past stays past."""
        self._judged = max(self._judged, self.world.now + self._off(0))
        return self._judged

    def _off(self, least: int) -> int:
        unsure = self.world.weather.unsure
        return self.world.rng.randint(least * unsure, unsure) if unsure else 0

    # -- its own life --

    def kill(self) -> None:
        """SIGKILL, and a new start. The keeper kills what was executing, before the next hello."""
        self._process.close()
        self.memory = Memory()
        self._inbox.clear()
        if self.world.on(Rule.LEFTOVERS_KILLED):
            self.executing.clear()
        else:
            self.world.spawn(self._leftovers(list(self.executing)))
        self._register()
        self._process = self._life()
        self.world.spawn(self._process)

    def stop(self, until: int) -> None:
        """SIGSTOP; its executions continue."""
        self.world.stop([self._process], until)

    def drain(self, on: bool) -> None:
        """Take nothing more; give back what waits; end what runs and return it."""
        self.memory.draining = on
        if on:
            self._withdraw()
            for key in list(self.memory.running):
                if self.world.rng.random() < 0.5:
                    self._end(key, "RETURNED")

    def _withdraw(self) -> None:
        for key in list(self.memory.held):
            self.revoke(key)
            self.refuse(key)

    def _leftovers(self, left: list[Key]) -> Steps[None]:
        for _ in range(self.world.rng.randint(20, 150)):
            yield
        for key in left:
            self.executing.pop(key, None)

    def _register(self) -> None:
        """Hello, over some stream: another incarnation, and what is in the spool."""
        world = self.world
        self.incarnation = (self.number, self.incarnation[1] + 1)
        new, spooled = self.incarnation, frozenset(self.spool)
        world.spawn(results.greet(world, self, new, spooled))

    def _life(self) -> Steps[None]:
        rng, world = self.world.rng, self.world
        while True:
            yield
            if self._inbox and rng.random() < 0.7:
                self._admit(self._inbox.pop(rng.randrange(len(self._inbox))))
            if self.memory.held and rng.random() < 0.4:
                self._start(rng.choice(list(self.memory.held)))
            if self.memory.running and rng.random() < world.weather.brisk:
                key = rng.choice(sorted(self.memory.running))
                self._end(key, "SUCCEEDED" if rng.random() < 0.6 else "FAILED")
            if self.spool and rng.random() < 0.15:
                self._report(rng.choice(list(self.spool)))
            if rng.random() < 0.08:
                self._beat()

    def _admit(self, assignment: Assignment) -> None:
        world, memory = self.world, self.memory
        run, token = key = assignment.key
        seen = memory.seen.get(run)
        if seen is not None and token <= seen.token and not self._forgets(seen, token):
            if token == seen.token and seen.taken and world.on(Rule.SAME_TOKEN_SAME_ANSWER):
                return  # has it, or had it, and says so again
            self.refuse(key)
            return
        if world.on(Rule.INCARNATION_NAMED):
            stranger = assignment.incarnation != self.incarnation
        else:
            stranger = assignment.incarnation[0] != self.number
        late = world.on(Rule.START_BY) and self._at_most() > assignment.start_by
        full = len(memory.held) + len(memory.running) >= SLOTS
        if stranger or late or full or memory.draining:
            memory.seen[run] = Seen(token, taken=False)
            self.refuse(key)
            return
        memory.seen[run] = Seen(token, taken=True)
        memory.held[key] = assignment

    def _forgets(self, seen: Seen, token: int) -> bool:
        """Whether a refusal of this very token is judged again."""
        refused = token == seen.token and not seen.taken
        return refused and not self.world.on(Rule.REFUSAL_FINAL)

    def _start(self, key: Key) -> None:
        world = self.world
        assignment = self.memory.held[key]
        late = self._at_most() > assignment.start_by and world.on(Rule.START_BY)
        late = late and world.on(Rule.JUDGED_AT_START)
        early = self._surely() < assignment.not_before and world.on(Rule.NOT_BEFORE)
        if early and not late:
            return
        del self.memory.held[key]
        if late:
            self.memory.seen[key[0]].taken = False
            self.refuse(key)
            return
        world.judge.starts(key[0], key[1], assignment.generation, assignment.incarnation)
        self.executing[key] = assignment
        self.memory.running.add(key)

    def _end(self, key: Key, outcome: str) -> None:
        self.executing.pop(key, None)
        self.memory.running.discard(key)
        self.spool[key] = outcome

    # -- frames up --

    def _member(self) -> Member | None:
        there = [m for m in self.world.members if self in m.attached and not m.dead]
        return self.world.rng.choice(there) if there else None

    def _beat(self) -> None:
        world, member = self.world, self._member()
        if member is None or self.attached != self.incarnation:
            return
        listed = {*self.memory.held, *self.memory.running}
        if world.on(Rule.HEARTBEAT_LISTS_SPOOL):
            listed |= set(self.spool)
        heartbeat = Heartbeat(self.incarnation, self._at_most(), frozenset(listed))

        def deliver() -> None:
            member.receive(heartbeat)
            world.spawn(results.refresh(world, self, heartbeat.incarnation))

        world.send(deliver)

    def _report(self, key: Key) -> None:
        world, outcome = self.world, self.spool[key]
        world.send(lambda: world.spawn(results.collect(world, self, key, outcome)))

    def refuse(self, key: Key) -> None:
        """Say that this one isn't taken, or was given up."""
        world, sender = self.world, self.incarnation
        world.send(lambda: world.spawn(results.refused(world, key, sender)))
