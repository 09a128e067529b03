"""A member as owner: takes shards, fires timers, hands runs out, brings lost ones back.

Its lanes do what they do in any order, from what they read some time ago; each transaction begins
with the fence (`begin`). What they send to workers goes by their own stream, or over one hop.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from faults.model import chains, dispatch, leader, recovery, rescue, turns
from faults.model.rows import (
    LIVE,
    Abort,
    Claim,
    IncarnationId,
    JobId,
    Run,
    ShardId,
    Steps,
    Tenure,
    Timer,
    Transaction,
)
from faults.model.rules import Rule
from faults.model.timing import HORIZON, TRUST, following, instant
from faults.model.worker import Heartbeat, Worker
from faults.model.world import World


class Member:
    """Process of `schedd`, with its tenure."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.tenure = world.name()
        world.database.tenures.rows[self.tenure] = Tenure()
        self.dead = False
        self.skew = world.weather.skew
        """By how much its clock is wrong."""
        self.attached: set[Worker] = set(world.workers)
        self.received: dict[IncarnationId, Heartbeat] = {}
        self._unread: list[Heartbeat] = []
        self.epochs: dict[ShardId, int] = {}
        world.etcd.members.add(self.tenure)
        self.over = False
        """Its tenure has ended; the process may have another."""
        self._timeline = world.database.timeline
        self._server = world.database.server
        self._known = world.database.present.mark
        """The newest mark that it saw."""
        self._looked = world.now
        self._sequences: Counter[tuple[ShardId, int]] = Counter()
        self._timers: dict[JobId, Timer] = {}
        self.absence = rescue.AbsenceTracker(world)
        self._lanes = [self._lane() for _ in range(2)]
        self._leading = leader.leading(self)
        self._lanes.append(self._leading)
        for lane in self._lanes:
            world.spawn(lane)

    def kill(self) -> None:
        """SIGKILL. The server finds its sessions idle; sent statements continue."""
        self.dead = self.over = True
        self.world.etcd.leave(self.tenure)
        for lane in self._lanes:
            lane.close()

    def stop(self, until: int) -> None:
        """SIGSTOP, of all its threads."""
        self.world.stop(self._lanes, until)

    def rest(self, steps: int) -> None:
        """Its leading has nothing to do for so long."""
        self.world.stop([self._leading], self.world.now + steps)

    def leave(self) -> None:
        """The tenure is over; the process begins another."""
        self.over = True
        self.world.etcd.leave(self.tenure)
        if self in self.world.members:
            self.world.members.remove(self)
            self.world.members.append(Member(self.world))

    def look(self) -> None:
        """Each new connection is looked at before its first use. Raises Abort when it leads to a
        database that isn't the one known: then the tenure is over.
        """
        world, rows = self.world, self.world.database
        if self.over:
            raise Abort
        if rows.server != self._server:
            changed = world.on(Rule.TIMELINE) and rows.timeline != self._timeline
            back = rows.present.mark < self._known or world.now > self._looked + TRUST
            if changed or (back and world.on(Rule.CONNECTION_LOOKED_AT)):
                self.leave()
                raise Abort
            self._server = rows.server
        self._known = rows.present.mark
        self._looked = world.now

    def transaction(self, claim: Claim | None = None) -> Transaction:
        """Over a connection that was looked at. Raises Abort."""
        self.look()
        return Transaction(self.world.database, claim)

    def receive(self, heartbeat: Heartbeat) -> None:
        """A heartbeat came over a stream; it is read when the process runs."""
        self._unread.append(heartbeat)

    def _read(self) -> None:
        stamped = self.world.on(Rule.HEARTBEAT_STAMPED)
        for heartbeat in self._unread:
            at = heartbeat.at if stamped else self.world.now
            self.received[heartbeat.incarnation] = replace(heartbeat, at=at)
        self._unread.clear()

    def _lane(self) -> Steps[None]:
        rng = self.world.rng
        while not self.over:
            yield
            row = self.world.database.tenures.get(self.tenure)
            if (row is None or row.fenced) and rng.random() < 0.02:
                return self.leave()  # it finds out at last
            try:
                self.look()
                yield from self._deed()
            except Abort:
                continue

    def _deed(self) -> Steps[None]:
        rng, rows = self.world.rng, self.world.database
        self._read()
        if self.world.chained and rng.random() < (0.4 if self.world.quiet else 0.15):
            return chains.join(self)
        x = rng.random()
        if x < 0.1:
            return self._load()
        if x < 0.5 and self._timers:
            return self._fire(self._next_timer())
        if x < 0.56:
            return self._take(rng.randrange(len(rows.shards.rows)))
        if x < 0.57:
            return self._release(rng.randrange(len(rows.shards.rows)))
        if x < 0.84:
            return dispatch.assign(self)
        if x < 0.92:
            return rescue.rescue(self)
        return rescue.give_back(self) if x < 0.995 else rescue.ask_back(self)

    # -- shards --

    def claim(self, shard: ShardId) -> Claim:
        """Return its claim to the shard. Raises Abort when it knows that it lost it."""
        if shard not in self.epochs:
            raise Abort
        return Claim(self.tenure, shard, self.epochs[shard], self._timeline)

    def begin(self, claim: Claim) -> Steps[Transaction]:
        """The first statement of an owner's transaction. Raises Abort when the shard is gone."""
        world = self.world
        transaction = self.transaction(claim)
        if world.on(Rule.SHARD_ROW_FENCE):
            row = yield from transaction.lock(world.database.shards, claim.shard)
            own = row is not None and (row.owner, row.epoch) == (claim.tenure, claim.epoch)
            if world.on(Rule.TIMELINE):
                own = own and row is not None and claim.timeline == row.timeline
                own = own and claim.timeline == world.database.timeline
        else:
            tenure = yield from transaction.lock(world.database.tenures, claim.tenure, shared=True)
            own = tenure is not None and not tenure.fenced
        if not own:
            self.epochs.pop(claim.shard, None)
            if world.on(Rule.LOCK_ANSWER_AWAITED):
                transaction.rollback()
                raise Abort
        return transaction

    def _take(self, shard: ShardId) -> Steps[None]:
        world, rows = self.world, self.world.database
        if shard in self.epochs and world.rng.random() < 0.9:
            return
        if self.tenure not in world.etcd.mapped:
            return
        seen = rows.shards[shard]
        timeline = rows.timeline
        yield
        transaction = self.transaction()
        mine = yield from transaction.lock(rows.tenures, self.tenure, shared=True)
        row = yield from transaction.lock(rows.shards, shard)
        free = row is not None and (
            row.owner in (None, self.tenure)
            or not world.on(Rule.TAKE_FROM_FENCED)
            or getattr(rows.tenures.get(row.owner), "fenced", True)
        )
        if row is None or mine is None or mine.fenced or not free or row.epoch != seen.epoch:
            transaction.rollback()
            return
        epoch = row.epoch + 1
        if world.on(Rule.EPOCH_CLOCK_FLOOR):
            epoch = max(epoch, world.now)
        transaction.put(
            rows.shards, shard, replace(row, owner=self.tenure, epoch=epoch, timeline=timeline)
        )
        yield from transaction.commit()
        self.epochs[shard] = epoch
        self._timeline = timeline

    def _release(self, shard: ShardId) -> Steps[None]:
        claim = self.claim(shard)
        del self.epochs[shard]
        yield
        transaction = self.transaction()
        shards = self.world.database.shards
        row = yield from transaction.lock(shards, shard)
        if row is not None and (row.owner, row.epoch) == (claim.tenure, claim.epoch):
            transaction.put(shards, shard, replace(row, owner=None))
        yield from transaction.commit()

    def shard_of(self, job: JobId, run: Run) -> ShardId | None:
        """Where a run belongs; None: its job is deleted."""
        if not self.world.on(Rule.SHARD_FROM_TIMER):
            return run.shard
        timer = self.world.database.timers.get(job)
        return None if timer is None else timer.shard

    def next_token(self, claim: Claim) -> int:
        """Greater than all before it of that epoch."""
        at = (claim.shard, claim.epoch)
        self._sequences[at] += 1
        return (claim.epoch << 16) + self._sequences[at]

    # -- timers --

    def _load(self) -> Steps[None]:
        """Remember the timers of its shards as they are now; they are acted on later."""
        yield
        for job, timer in self.world.database.timers.rows.items():
            if timer.shard in self.epochs:
                self._timers[job] = timer

    def _sees_until(self) -> int:
        """Up to when it makes runs: what it takes for now, and so long ahead."""
        return self.world.now + self.skew + self.world.weather.ahead

    def _next_timer(self) -> JobId:
        """Any, but who is ahead of time has the soonest first, mostly."""
        world = self.world
        if world.weather.ahead and world.rng.random() < 0.7:
            goes = [job for job, timer in self._timers.items() if not timer.paused | timer.ended]
            return min(goes or self._timers, key=lambda job: self._timers[job].due)
        return world.rng.choice(list(self._timers))

    def _fire(self, job: JobId) -> Steps[None]:
        world, rows = self.world, self.world.database
        timer = self._timers[job]
        cluster, at = rows.present, instant(timer.due)
        if timer.ended or timer.paused or cluster.paused or at > self._sees_until():
            return
        del self._timers[job]
        key = (job, timer.due)
        once = world.jobs[job].at_most_once
        skipped = any(hold.skips(at) for hold in cluster.holds)
        skipped = skipped or recovery.may_have_run(world, at, once, cluster)
        claim = self.claim(timer.shard)
        draft = dispatch.draft_of_timer(self, claim, key, timer.generation)
        transaction = yield from self.begin(claim)
        if rows.present.switched != cluster.switched:
            transaction.rollback()
            return
        if draft is not None and world.on(Rule.TOKENS_UNDER_LOCK):
            draft = replace(draft, token=self.next_token(claim))
        row = yield from transaction.lock(rows.timers, job)
        advances = row is not None and (row.generation, row.due, row.shard, row.paused) == (
            timer.generation,
            timer.due,
            timer.shard,
            False,
        )
        if world.on(Rule.TURN_COMPARED):
            advances = advances and row is not None and row.fired == timer.fired
        in_time = at <= world.now + HORIZON or not world.on(Rule.DATABASE_CLOCK)
        if not in_time or (world.on(Rule.FIRE_FROM_ADVANCE) and not advances):
            transaction.rollback()
            return
        kept = yield from transaction.lock(rows.runs, key)
        made = not skipped and (kept is None or not world.on(Rule.UNIQUE_INSTANT))
        if made:
            state = "PENDING"
            live = sum(run.state in LIVE for _, run in rows.runs_of(job))
            if not world.on(Rule.OVERLAP_AT_ASSIGN) and live >= world.jobs[job].limit:
                state = "SKIPPED"
            run = Run(state, timer.generation, timer.shard)
            transaction.insert(rows.runs, key, run)
        handed = dispatch.fire_running(world, transaction, claim, draft, kept, made=made)
        if advances and row is not None:
            row = turns.fired(world, job, row, timer, made=made, due=not skipped)
            row = replace(row, due=following(row.thin, timer.due))
            transaction.put(rows.timers, job, row)
        yield from dispatch.commit_and_push(self, transaction, handed)
        if world.weather.ahead and row is not None:
            self._timers[job] = row  # who is ahead of time goes by what it has written
