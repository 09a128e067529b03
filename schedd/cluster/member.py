"""The lifecycle of a member: join → follow or lead → leave, repeated until the process stops.

    ┌→ wait: the database answers, the name is free
    │    lease ─→ key in etcd ─→ row in PostgreSQL            join
    │      ├ trust          the lease, as long as it is kept
    │      ├ registration   the key shows this member's state
    │      ├ shards         owned as the leader's map says      follow
    │      ├ candidate      leads when no other member does     or lead
    │      └ the loops of the app
    │    hand over, if draining; fence our row; revoke the lease, which deletes our keys    leave
    └── the tenure ends, not the process: trust lost, key deleted, database unavailable only for
        us, failed over, or went back

Invariants
- One TaskGroup a tenure: when `_live` returns, nothing of the tenure runs any more. Only then is
  its row fenced.
- The tenure ends with its trust, whatever etcd reports later. The next tenure has another id.
- `run` raises only for a bug or a wrong configuration.
"""

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, InitVar, asdict, dataclass, field
from operator import attrgetter
from typing import Final, NoReturn

from schedd.cluster.leader.candidate import Candidate, Duties
from schedd.cluster.leader.recovery import Recovery
from schedd.cluster.observer import Observer
from schedd.cluster.ownership import Ownership
from schedd.cluster.prefix_claim import PrefixClaim
from schedd.cluster.registration import Name, Registration
from schedd.cluster.shards import Shards
from schedd.cluster.tenure import LiveTenure, Loops, TenureOver
from schedd.core.cluster.membership import ClusterView, MemberView
from schedd.core.ids import TenureId, new_id
from schedd.core.runs.model import AuditRecord, Tenure
from schedd.ports import Coordination, KeepLease, LeaseKeeper
from schedd.runtime.cluster_clock import DatabaseClock
from schedd.store.cluster.membership import MembershipStore
from schedd.store.cluster.recovery import RecoveryStore
from schedkit import failpoints
from schedkit.backoff import Backoff
from schedkit.clock import boottime
from schedkit.errors import Unavailable
from schedkit.tasks import Loop, guard, heed_cancellation

# Handing over: a draining member stays until others own its shards.
#
#     its key says "draining" ──→ the leader's map gives it nothing ──→ it releases, others take
#                                                                          └──→ it may leave
#
# The draining member is still a member, and still leads if it did: the map needs a leader.

WITHIN: Final = 2.0
"""Seconds for others to take the shards. Then the member leaves; its fenced row frees the rest."""

LOOK_EVERY: Final = 0.02


async def hand_over(store: MembershipStore, live: LiveTenure) -> None:
    """Wait until others own this tenure's shards: for at most `WITHIN`, and not if it is alone."""
    given = frozenset(live.owned())
    others = [one for one in live.view().members if one.tenure != live.tenure]
    if not any(one.weight > 0 and not one.draining for one in others):
        return
    try:
        async with asyncio.timeout(WITHIN):
            while True:
                owners = {row.id: row.owner for row in await store.read_shards()}
                if live.tenure not in owners.values() and all(map(owners.get, given)):
                    return
                await asyncio.sleep(LOOK_EVERY)
    except TimeoutError:
        log.warning(
            "handover timed out after %.0f s: the member leaves before other members have taken"
            " over all its shards",
            WITHIN,
        )
    except Unavailable as error:
        log.warning("handover failed, the member leaves without it: %s", error)


# Whether this member should end its tenure because PostgreSQL is unavailable only for it.
#
#     answered ──silent for 2.5 s──→ unavailable: says so in its key
#                                      ├─ for the others too ──→ stays: leaving doesn't help
#                                      └─ for us alone, for 3.5 s ─→ the tenure ends
#
# A member that can't reach the database can't release its shards. It can only give up its key, so
# that the leader fences it and others take the shards. If the database is unavailable for everyone,
# that would only move the leader and all shards, so every member waits.
#
# Invariants
# - Another member counts as better off only after 3.5 s. During that time it has reported without a
#   break that it reaches the database, while this member doesn't.
# - The reason: at the end of an outage, members reconnect one after the other. During an outage,
#   each may get a single answer, which it reports for 2.5 s and until its next check.

AWAY_AFTER: Final = 2.5
"""Seconds without an answer after which a member reports its database as unavailable."""

BETTER_OFF_FOR: Final = 3.5
"""Seconds for which another member must be better off: longer than one answer is reported."""


@dataclass(slots=True)
class DatabaseWatch:
    """The check of the time without an answer from the database (`silence`, seconds), each second.
    `clock`: CLOCK_BOOTTIME, in seconds.
    """

    tenure: TenureId
    view: Callable[[], ClusterView]
    silence: Callable[[], float]
    clock: Callable[[], float]
    _better_off: dict[TenureId, float] = field(default_factory=dict, init=False)
    """Members that reach the database, and since when they have been better off."""

    @property
    def answers(self) -> bool:
        """Whether the database has answered within `AWAY_AFTER`."""
        return self.silence() < AWAY_AFTER

    def check(self) -> None:
        """Compare the other members with this one. Raises TenureOver: other members reach the
        database, and may take over.
        """
        now, known = self.clock(), self._better_off
        others = [] if self.answers else [one for one in self.view().members if one.database]
        self._better_off = {
            one.tenure: known.get(one.tenure, now) for one in others if one.tenure != self.tenure
        }
        if any(now - since >= BETTER_OFF_FOR for since in self._better_off.values()):
            raise TenureOver(
                f"this member got no answer from PostgreSQL for {self.silence():.1f} s, but"
                " other members reach PostgreSQL; the member joins the cluster again"
            )


log = logging.getLogger(__name__)

LOOK_AGAIN: Final = 0.2
"""Seconds between two checks of whether this member may join."""

LOOK_FOREIGN: Final = 1.0
"""Seconds between two checks of a prefix that belongs to another cluster."""

HEALTH_EVERY: Final = 0.5

GOODBYE_WITHIN: Final = 1.0
"""Timeout for fencing the member's own row, in seconds. After it, the leader fences the row."""

STABLE_AFTER: Final = 10.0
"""Seconds after which a tenure counts as a success, and the backoff is reset."""

UNATTACHED_AFTER: Final = 2.0
"""Seconds without a worker before the key shows it: a worker that reconnects moves no shard."""

FAILED: Final = "the member left the cluster because of an error"

acted_on = attrgetter("leader", "heir", "members")
"""Returns the parts of a view on which a candidate acts."""

BEFORE_ROW = failpoints.awaited("join.before_row")


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """The identity of this member. `grpc`, `http`: host:port where others reach it."""

    name: str
    grpc: str
    http: str
    weight: int = 100
    version: str = ""
    tzdata: str = ""

    def view(self, tenure: TenureId) -> MemberView:
        return MemberView(**asdict(self), tenure=tenure, draining=False)


@dataclass(eq=False)
class MemberLifecycle:
    """The lifecycle of one `schedd` process in the cluster. `cluster`: the newest view, for
    others. `lanes`: of the database's thread pool. `loops`: the owner's loops, created for each
    tenure. `duties`: the leader's loops beyond fencing and assigning, created for each term.
    """

    identity: MemberIdentity
    _: KW_ONLY
    coordination: Coordination
    keep_lease: KeepLease
    store: MembershipStore
    recovery: RecoveryStore
    clock: DatabaseClock
    lanes: int
    loops: Loops = lambda _: ()
    duties: Duties = lambda _: ()
    member_ttl: InitVar[float] = math.inf
    audit: Callable[[AuditRecord], Awaitable[None]] | None = None
    claim: PrefixClaim | None = None

    def __post_init__(self, member_ttl: float) -> None:
        self.cluster = Observer(self.coordination)
        self._name = Name(
            self.coordination, self.identity.name, lease=member_ttl, on_duplicate=self._second
        )
        self._backoff = Backoff(initial=0.2, maximum=2.0)
        self._attached_until = -math.inf
        self._look: Callable[[], None] = lambda: None

    def attached(self, some: bool) -> None:
        """Set whether a worker is attached here. A member without a worker gets no shards while
        other members have workers.
        """
        self._attached_until = math.inf if some else boottime() + UNATTACHED_AFTER

    def request_leader_check(self) -> None:
        """Let the leader reconcile now, because the cluster may differ from its map."""
        self._look()

    async def run(self, draining: asyncio.Event) -> None:
        """Be a member until `draining` is set and the shards are handed over, if possible."""
        self.cluster.listen(lambda _, view: self.clock.expect(view.timeline))
        async with asyncio.TaskGroup() as group:
            background = [
                group.create_task(guard(self.cluster.run, "observer"), name="observer"),
                group.create_task(guard(self.clock.loop.run, "clock"), name="clock"),
            ]
            while not draining.is_set():
                await _pause(await self._once(draining), draining)
            for task in background:
                task.cancel()

    async def _once(self, draining: asyncio.Event) -> float:
        """Live one tenure if the member can join now. Return seconds until the next try."""
        if self.claim is not None:
            if (owner := self.cluster.view().owner) is not None:
                self.claim.record_owner(owner)
            self.cluster.foreign = self.clock.lineage.foreign or self.claim.refused
        self.clock.follow()
        if not self.clock.known or self.clock.away_for() > AWAY_AFTER:
            return LOOK_AGAIN
        began = boottime()
        try:
            if self.claim is not None and not await self._claimed(self.claim):
                return LOOK_FOREIGN
            free = await self._name.free()
            self.cluster.duplicate = self._name.taken_by
            if not free:
                return LOOK_AGAIN
            async with self.keep_lease() as keeper:
                await self._tenure(keeper, draining)
        except Unavailable as error:
            log.warning("this member can't join the cluster, retrying: %s", error)
        if boottime() - began > STABLE_AFTER:
            self._backoff.reset()
        return self._backoff.next()

    async def _claimed(self, claim: PrefixClaim) -> bool:
        """Return whether the etcd prefix belongs to the database's cluster. Raises Unavailable."""
        database = self.clock.database
        claimed = database != "" and await claim.check(database)
        self.cluster.foreign = self.clock.lineage.foreign or claim.refused
        return claimed

    async def _tenure(self, keeper: LeaseKeeper, draining: asyncio.Event) -> None:
        tenure = TenureId(new_id())
        ownership = Ownership(tenure, self.clock.timeline, self.lanes)
        live = LiveTenure(tenure, ownership, keeper, self.cluster.view)
        member = self.identity.view(live.tenure)
        registration = Registration(self.coordination, self.cluster, member, keeper.lease.id)
        if not await registration.put():
            return
        over = ""
        try:
            await BEFORE_ROW()
            now = self.clock.now()
            prefix = self.claim.prefix_id if self.claim is not None else None
            row = Tenure(
                tenure, member.name, now, None, member.grpc, member.http, member.version, prefix
            )
            await self.store.open_tenure(row)
            self.cluster.lives(live)
            log.info("member joined the cluster", extra={"tenure": live.tenure})
            over = await self._live(live, registration, draining)
        finally:
            self.cluster.lives(None)
            self._name.add_past_tenure(live.tenure)
            await self._fence_tenure(live, "" if draining.is_set() else over or FAILED)

    async def _second(self, first: str) -> None:
        log.error(
            "the member's name is already in use by another daemon, %s: this daemon can't serve;"
            " stop one of the two, or give it another name",
            first,
        )
        if self.audit is not None:
            name, source = self.identity.name, self.identity.grpc
            await self.audit(
                AuditRecord(
                    actor=f"member/{name}",
                    action="join",
                    object=f"member/{name}",
                    outcome="refused",
                    reason="SECOND_IDENTITY",
                    source=source,
                    after=json.dumps({"first": first}),
                )
            )

    async def _live(
        self, live: LiveTenure, registration: Registration, draining: asyncio.Event
    ) -> str:
        """Follow or lead until the tenure ends, or until all shards are handed over. Return why
        the tenure ended if the member wasn't asked to leave.
        """
        why = ""
        watch = DatabaseWatch(live.tenure, self.cluster.view, self.clock.away_for, boottime)
        shards = Shards(self.store, live)

        def able() -> bool:
            return watch.answers and not draining.is_set() and not self._changed(live)

        candidate = self._candidate(live, able)
        self._look = candidate.wake
        health = self._health(live, watch, registration)
        loops = [registration.loop, shards.loop, candidate.loop, health, *self.loops(live)]

        def seen(known: ClusterView, view: ClusterView) -> None:
            if view.map != known.map:
                shards.wake()
            if acted_on(view) != acted_on(known):
                candidate.wake()

        unlisten = self.cluster.listen(seen)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_trust(live.keeper), name="trust")]
                tasks += [
                    group.create_task(guard(loop.run, loop.name), name=loop.name) for loop in loops
                ]
                await draining.wait()
                registration.draining()
                await hand_over(self.store, live)
                for task in tasks:
                    task.cancel()
        except* TenureOver as over:
            why = "; ".join(str(each) for each in over.exceptions)
            log.warning("member left the cluster: %s", why, extra={"tenure": live.tenure})
        finally:
            unlisten()
        heed_cancellation()
        return why

    def _candidate(self, live: LiveTenure, able: Callable[[], bool]) -> Candidate:
        return Candidate(
            self.coordination,
            self.store,
            live,
            timeline=lambda: self.clock.timeline,
            able=able,
            recovery=Recovery(self.coordination, self.recovery, live.keeper.lease.ttl),
            duties=self.duties,
        )

    def _health(self, live: LiveTenure, watch: DatabaseWatch, registration: Registration) -> Loop:
        async def step() -> None:
            if changed := self._changed(live):
                raise TenureOver(
                    f"this member's database or etcd prefix changed: {changed}; the member"
                    " joins the cluster again"
                )
            watch.check()
            attached = boottime() < self._attached_until
            registration.reports(database=watch.answers, attached=attached)

        return Loop("health", step, interval=HEALTH_EVERY)

    def _changed(self, live: LiveTenure) -> str:
        """Return why the tenure is about to end because of its database; empty: no reason. A
        member that became leader at this moment would be replaced at once.
        """
        if self.clock.timeline != live.ownership.timeline:
            return "PostgreSQL failed over to another timeline"
        if (claim := self.claim) is not None and (owner := live.view().owner) is not None:
            claim.record_owner(owner)
            if owner.cluster_id != self.clock.database:
                return f"the etcd prefix belongs to cluster {owner.cluster_id}"
        return self.clock.lineage.broken

    async def _fence_tenure(self, live: LiveTenure, why: str) -> None:
        """Fence the tenure, so that its shards are free at once. None of its tasks runs any more.
        `why`: the reason why the member leaves without being asked to; empty: it was asked to.
        """
        try:
            async with asyncio.timeout(GOODBYE_WITHIN):
                await self.store.fence_own(live.tenure, why)
        except (Unavailable, TimeoutError) as error:
            log.info(
                "signing off from the database failed, the leader will record the loss: %r",
                error,
                extra={"tenure": live.tenure},
            )


async def _trust(keeper: LeaseKeeper) -> NoReturn:
    loss = await keeper.until_lost()
    raise TenureOver(
        f"the member's lease in etcd was lost: {loss.value}; the member joins the cluster again"
    )


async def _pause(seconds: float, draining: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await draining.wait()
    except TimeoutError:
        return
