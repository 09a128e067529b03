"""World of one seed: its processes, and the order in which they take steps.

A process is a generator; a step is one `next`. Which one continues, how far, and which falls asleep
for how long, is drawn from the seed, so a seed is one trace.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from faults.model import chains, turns
from faults.model.etcd import Etcd
from faults.model.holds import Cluster
from faults.model.judge import Judge
from faults.model.promises import Job
from faults.model.rows import (
    Abort,
    Database,
    IncarnationId,
    JobId,
    RunId,
    Shard,
    Steps,
    Term,
    Timer,
)
from faults.model.rules import Rule
from faults.model.timing import SECOND, has, instant
from faults.model.weather import Weather, weather_of

if TYPE_CHECKING:
    from faults.model.owner import Member
    from faults.model.worker import Worker

KINDS = (
    Job(1, skip=True),
    Job(2, skip=False, at_most_once=True),
    Job(1, skip=True, at_most_once=True),
)
"""`overlap: skip`, `allow: 2`, and at_most_once."""
FIRED_RUNNING = frozenset({Rule.FIRED_RUNNING_ALONE, Rule.FIRED_RUNNING_IF_INSERTED})


class World:
    """Everything there is. `without`: the rules that are off."""

    def __init__(self, seed: int, without: frozenset[Rule], weather: Weather | None = None) -> None:
        self.rng = random.Random(seed)
        self.without = without
        self.weather = weather or weather_of(self.rng, without)
        self.database = Database(
            self.rng.random,
            self.rng.randint,
            late_commits=self.weather.late_commits,
            lost_commits=self.weather.lost_commits,
        )
        self.etcd = Etcd()
        self.jobs: dict[JobId, Job] = dict(enumerate(KINDS * self.weather.jobs))
        if turns.limited(seed, without):
            for job in range(len(KINDS)):
                self.jobs[job] = replace(self.jobs[job], max_runs=turns.MAX_RUNS)
        self.fires_running = seed % 3 == 1 or bool(without & FIRED_RUNNING)
        """Whether a due timer is fired as RUNNING while a worker has a slot."""
        self.chained = self.weather.jobs > 1 and chains.chained(seed, without)
        self.quiet = False
        """Nothing breaks, and no user calls."""
        self.judge = Judge(
            self.database, self.etcd, self.jobs, self._executing, chained=self.chained
        )
        self.members: list[Member] = []
        self.workers: list[Worker] = []
        self.network: list[Callable[[], None]] = []
        self.strays: list[Callable[[], None]] = []
        """Copies of frames that come when the database has gone back: a sender without an answer
        sends them again then.
        """
        self._names = itertools.count(1)
        self._processes: list[Steps[None]] = []
        self._asleep: list[tuple[int, int, Steps[None]]] = []
        self.database.judge = self.judge.committed
        self.database.spawn = self.spawn
        rows = self.database
        rows.terms.rows["term"] = Term(1)
        rows.cluster.rows["cluster"] = Cluster()
        for shard in (0, 1):  # with unequal epochs, that a move into the lower one can be seen
            rows.shards.rows[shard] = Shard(None, 1 + 3 * shard, rows.timeline)
        for job in self.jobs:
            rows.timers.rows[job] = Timer(generation=1, due=1, shard=job % 2)
        if self.chained:
            self._chain()

    @property
    def now(self) -> int:
        """The time, in steps."""
        return self.database.now

    def on(self, rule: Rule) -> bool:
        """Whether this rule holds here."""
        return rule not in self.without

    def name(self) -> int:
        """Return an unused number."""
        return next(self._names)

    def spawn(self, process: Steps[None]) -> None:
        """Let it take steps from now on."""
        self._processes.append(process)

    def stop(self, processes: list[Steps[None]], until: int) -> None:
        """Processes that take no step until then."""
        for process in processes:
            if process in self._processes:
                self._processes.remove(process)
                heapq.heappush(self._asleep, (until, self.name(), process))

    def send(self, deliver: Callable[[], None]) -> None:
        """Put a frame on its way: it may be lost, come late, or twice."""
        x = self.rng.random()
        if x >= self.weather.loss:
            self.network.append(deliver)
        if x >= 1 - self.weather.loss:
            self.network.append(deliver)
        if self.weather.stray and self.rng.random() < self.weather.stray:
            self.strays.append(deliver)

    def next_instant(self, *, thin: bool = False, after: int | None = None) -> int:
        """The first instant of a schedule that hasn't come by then; None: by now."""
        by = self.now if after is None else after
        coming = (number for number in itertools.count(1) if instant(number) > by)
        return next(number for number in coming if has(thin, number))

    def live_workers(self) -> frozenset[IncarnationId]:
        """Return a list of etcd's keys now."""
        return self.etcd.listing(self.now).live

    def run(self, steps: int) -> None:
        """Take the next steps. Raises Broken."""
        rng, database = self.rng, self.database
        while database.now < steps:
            while self._asleep and self._asleep[0][0] <= database.now:
                self._processes.append(heapq.heappop(self._asleep)[2])
            if not self._processes:
                database.now = self._asleep[0][0]
                continue
            process = rng.choice(self._processes)
            try:
                for _ in range(rng.choice((1, 1, 1, 2, 5, 15))):
                    database.now += 1
                    next(process)
            except (StopIteration, Abort):
                if process in self._processes:  # else it sleeps, and ends when it wakes
                    self._processes.remove(process)
                continue
            if rng.random() < self.weather.sleepy:
                self.stop([process], database.now + rng.randint(SECOND // 2, 12 * SECOND))

    def _chain(self) -> None:
        rows = self.database
        child = rows.timers.rows[chains.CHILD]
        rows.timers.rows[chains.CHILD] = replace(child, ended=True)  # it has no schedule
        rows.trigger = partial(chains.ending, self)
        if not self.on(Rule.JOIN_ARRIVES_WITH_END):
            rows.on_commit = partial(chains.ended, self)

    def _executing(self, run: RunId) -> Iterator[tuple[int, IncarnationId]]:
        for worker in self.workers:
            for (key, token), assignment in worker.executing.items():
                if key == run:
                    yield token, assignment.incarnation
