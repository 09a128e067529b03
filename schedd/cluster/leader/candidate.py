"""The candidate: every member during its tenure. It waits for the election key, then leads.

    wait ──no leader──→ campaign ──won──→ open the term ──→ reconcile until the term ends ──→ wait
     └─ another member was           └─ lost, or unknown ─→ wait
         requested (`transfer`): wait a while

To reconcile is to fence lost members, assign shards to the others and publish the map. It runs once
a second, and at each change of the view. Each part compares before it writes, so an extra step
costs only reads.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY
from functools import partial
from typing import Final, TypeAlias

from schedd.cluster.leader.recovery import Recovery
from schedd.cluster.leader.term import (
    OUTRANKED,
    REPLACED,
    Duty,
    Leadership,
    TermOver,
    campaign,
    delete_invalid,
    lead,
    open_term,
    withdraw,
)
from schedd.cluster.leader.transfer import HEIR_TIMEOUT, delete_invalid_heir, forget
from schedd.cluster.tenure import LiveTenure
from schedd.core.cluster.coordination import Get, Put
from schedd.core.cluster.membership import HEIR, LEADER, MAP, MEMBERS, Heir, MemberView, members_of
from schedd.core.cluster.partition import assign
from schedd.core.cluster.shard_map import ShardMap, encode
from schedd.core.ids import Timeline
from schedd.ports import Coordination
from schedd.store.cluster.membership import MembershipStore
from schedkit import failpoints
from schedkit.backoff import Backoff
from schedkit.clock import boottime
from schedkit.records import dataclass
from schedkit.tasks import Loop

# Fencing: a tenure without a key in etcd loses its row in PostgreSQL, and with it its shards.
#
#     unfenced rows  −  keys, listed afterwards  =  departed  ──→ fenced
#     unfenced rows  ∩  keys                     =  active    ──→ may be given shards
#
# A member writes its key first and its row second. So a row that was read before the list, and has
# no key in the list, belongs to a tenure whose key was deleted for good. In the reverse order, a
# member that joined between the two reads would be fenced at once.


@dataclass(frozen=True, slots=True)
class Census:
    """The members found. `active`: with row and key. `joining`: with a key and no row yet."""

    active: tuple[MemberView, ...]
    joining: tuple[MemberView, ...]


async def fence_departed(
    coordination: Coordination, store: MembershipStore, leadership: Leadership
) -> Census:
    """Fence the tenures whose key was deleted; return the remaining members. Raises TermOver: the
    term was raised meanwhile, or trust has passed.
    """
    tenures = await store.unfenced_tenures()
    members = {member.tenure: member for member in members_of(await coordination.list(MEMBERS))}
    departed = [tenure for tenure in tenures if tenure.id not in members]
    if departed:
        leadership.check()
        if not await store.fence([tenure.id for tenure in departed], leadership.term):
            raise TermOver(OUTRANKED)
        for tenure in departed:
            log.info("fenced tenure %s of member %s", tenure.id, tenure.member)
    rows = {tenure.id for tenure in tenures}
    return Census(
        active=tuple(member for member in members.values() if member.tenure in rows),
        joining=tuple(member for member in members.values() if member.tenure not in rows),
    )


# The map: the assigned owner of each shard (`core/cluster/partition.py`), for all members to
# follow.
#
# Invariants
# - The map is written only if it differs, or if it has another term. So each term's map differs
#   from the map before it.
# - Writes compare the mandate: a replaced leader can't overwrite its successor's map.


async def publish(coordination: Coordination, leadership: Leadership, shard_map: ShardMap) -> bool:
    """Write the map if etcd has another one. Return whether it was written. Raises TermOver: the
    mandate was lost, or the trust window has passed.
    """
    guards, value = leadership.mandate.guards, encode(shard_map)
    present = await coordination.txn(guards, [Get(MAP)])
    if not present.succeeded:
        raise TermOver(REPLACED)
    [entry] = present.read
    if entry is not None and entry.value == value:
        return False
    leadership.check()
    written = await coordination.txn(guards, [Put(MAP, value)])
    if not written.succeeded:
        raise TermOver(REPLACED)
    log.info(
        "shard map written: term %d, %d shards, %d members",
        shard_map.term,
        len(shard_map.assigned),
        len(set(shard_map.assigned.values())),
        extra={"term": shard_map.term},
    )
    return True


log = logging.getLogger(__name__)

Duties: TypeAlias = Callable[[Leadership], Sequence[Duty]]

RECONCILE_EVERY: Final = 1.0
LOOK_EVERY: Final = 1.0

BEFORE_TERM = failpoints.awaited("lead.before_term")
AFTER_TERM = failpoints.awaited("lead.after_term")
BEFORE_MAP = failpoints.awaited("lead.before_map")


@dataclass(eq=False)
class Candidate:
    """The candidacy of one tenure. `able`: whether this member should lead now (it isn't draining,
    and its database answers). `duties`: the leader's other loops, created for each term.
    """

    coordination: Coordination
    store: MembershipStore
    live: LiveTenure
    _: KW_ONLY
    timeline: Callable[[], Timeline]
    able: Callable[[], bool]
    recovery: Recovery
    duties: Duties

    def __post_init__(self) -> None:
        self._reconciling: Loop | None = None
        self._soon = Backoff(initial=0.02, maximum=RECONCILE_EVERY)
        self._zones: dict[str, str] = {}
        self._heir: Heir | None = None
        self._heir_until = 0.0
        self.leadership: Leadership | None = None
        backoff = Backoff(initial=0.1, maximum=1.0)
        self.loop = Loop("candidate", self.step, interval=LOOK_EVERY, backoff=backoff)

    def wake(self) -> None:
        self._soon.reset()
        (self._reconciling or self.loop).wake()

    async def step(self) -> float | None:
        """Campaign if there is no leader, and lead until the term ends. Return seconds until the
        next check. Raises Unavailable: etcd or PostgreSQL doesn't answer; nothing was won.
        """
        view = self.live.view()
        leader = view.leader
        if LEADER in view.unreadable and self.live.trusted():
            await delete_invalid(self.coordination)
        if leader == self.live.tenure:
            # The key was won by a call with a lost answer, or not deleted: a new election is safer.
            await withdraw(self.coordination, self.live.tenure)
        elif leader is None and self.able() and self.live.trusted():
            if (wait := self._leaves_it_to_an_heir()) > 0:
                return wait
            await self._campaign()
        return None

    def _leaves_it_to_an_heir(self) -> float:
        """Return seconds to wait for a requested leader. The wait is limited: it may be down."""
        heir = self.live.view().heir
        if heir is None or heir.tenure == self.live.tenure:
            self._heir = None
            return 0.0
        if heir != self._heir:
            self._heir, self._heir_until = heir, boottime() + HEIR_TIMEOUT
        return self._heir_until - boottime()

    async def _campaign(self) -> None:
        mandate = await campaign(self.coordination, self.live.tenure, self.live.keeper.lease.id)
        if mandate is None:
            return
        await BEFORE_TERM()
        try:
            leadership = await open_term(
                self.coordination, self.store, mandate, self.live.trusted, self.live.view().term
            )
            await self.recovery.check_data_loss(leadership)
        except TermOver as over:
            log.warning("elected, but opening a term failed: %s", over)
        else:
            await AFTER_TERM()
            await self._lead(leadership)
        await withdraw(self.coordination, self.live.tenure)

    async def _lead(self, leadership: Leadership) -> None:
        backoff = Backoff(initial=0.05, maximum=RECONCILE_EVERY)
        step = partial(self._reconcile, leadership)
        reconciling = Loop("reconcile", step, interval=RECONCILE_EVERY, backoff=backoff)
        self.leadership, self._reconciling = leadership, reconciling
        try:
            marking = self.recovery.marking(leadership)
            await lead(leadership, [reconciling, marking, *self.duties(leadership)])
        finally:
            self.leadership = self._reconciling = None

    async def _reconcile(self, leadership: Leadership) -> float | None:
        """Reconcile once; return seconds until the next step if a member is about to join. Raises
        TermOver: the map in etcd has a later term, or no leader wrote it. The next term is above
        the map's, so that members follow the new leader's map.
        """
        if (later := self.live.view().term) > leadership.term:
            raise TermOver(
                f"the shard map in etcd is from a later leader: its term {later} is greater"
                f" than this leader's term {leadership.term}; this member stops leading"
            )
        await self._heed_heir(leadership)
        census = await fence_departed(self.coordination, self.store, leadership)
        self._compare_zones(census)
        shard_map = ShardMap(leadership.term, assign(census.active), self.timeline())
        await BEFORE_MAP()
        await publish(self.coordination, leadership, shard_map)
        return self._soon.next() if census.joining else None

    async def _heed_heir(self, leadership: Leadership) -> None:
        """Step down for the heir that was requested in this term, if the heir is running. Raises
        TermOver: stepping down.
        """
        view = self.live.view()
        heir = view.heir
        if HEIR in view.unreadable:
            await delete_invalid_heir(self.coordination, leadership.mandate.guards)
        if heir is None:
            return
        member = view.member(heir.tenure)
        if heir.term == leadership.term and heir.tenure != self.live.tenure and member is not None:
            raise TermOver(f"leadership transferred to {member.name}, as requested")
        await forget(self.coordination, heir)

    def _compare_zones(self, census: Census) -> None:
        """Warn if members have different time zone rules: they would fire at different times."""
        zones = {member.name: member.tzdata for member in census.active}
        if zones != self._zones and len(set(zones.values())) > 1:
            log.warning("members have different time zone data (tzdata): %s", zones)
        self._zones = zones
