"""A member's key in etcd: created once, kept up to date, and checked. One name, one member.

    put if absent, on our lease ──→ registered ──changed──→ put again while it is ours
                                        └── not ours any more ──→ TenureOver

Invariants
- The first write requires that no key has the name. Later writes require our create revision.
- A view without our key is only a suspicion. A linearizable read confirms it.
"""

import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, replace
from typing import Final

from schedd.cluster.observer import Observer
from schedd.cluster.tenure import TenureOver
from schedd.core.cluster.coordination import (
    NO_LEASE,
    Compare,
    CoordinationEntry,
    Delete,
    LeaseId,
    Put,
    Revision,
)
from schedd.core.cluster.etcd_values import InvalidValue
from schedd.core.cluster.membership import MemberView, decode_member, encode_member, member_key
from schedd.core.ids import TenureId
from schedd.ports import Coordination
from schedkit.clock import boottime
from schedkit.tasks import Loop

log = logging.getLogger(__name__)

SPARE: Final = 2.0
"""Seconds for which etcd may show a lease past its TTL; also the longest gap between checks."""
REPORT_EVERY: Final = 600.0
"""Seconds between two reports of a second daemon that stays."""
CHECK_EVERY: Final = 1.0
"""Seconds between two checks of the member's own key, without a change."""


@dataclass(eq=False)
class Name:
    """A member's name: one daemon at a time may serve under it.

    `on_duplicate` is called with another daemon that has the name, and again every ten minutes
    while it stays. A key counts as another daemon's if it exists for longer than twice `lease`
    seconds, the TTL of all leases here. The key of a crashed process expires earlier: a new leader
    of etcd may extend it by one TTL, and time without etcd isn't counted.
    """

    coordination: Coordination
    name: str
    _: KW_ONLY
    lease: float = math.inf
    on_duplicate: Callable[[str], Awaitable[None]] | None = None
    clock: Callable[[], float] = boottime

    def __post_init__(self) -> None:
        self._past: set[TenureId] = set()
        self._seen: Revision | None = None
        self._seen_at = self._looked_at = -math.inf
        self.taken_by = ""
        """Another running daemon that has the name; empty: none is known."""

    def add_past_tenure(self, tenure: TenureId) -> None:
        """Add an ended tenure of this process. None of its tasks runs any more."""
        self._past.add(tenure)

    async def free(self) -> bool:
        """Return whether the name is free. If not, `taken_by` has its holder.

        If an ended tenure of this process still has its lease, because etcd was unavailable, the
        lease is ended at once. After a crash, the lease of the earlier process must expire. A key
        that stays is another daemon's, and this daemon must not serve.
        """
        entry = await self.coordination.get(member_key(self.name))
        if entry is None:
            self.taken_by = ""
            return True
        if entry.lease == NO_LEASE:  # no member wrote it: it would never expire
            await self.coordination.txn([Compare.unchanged(entry)], [Delete(entry.key)])
            log.error("invalid etcd key deleted: %s has no lease", entry.key)
            return await self.coordination.get(entry.key) is None
        if _tenure_of(entry) in self._past:
            await self.coordination.revoke(entry.lease)
            return True
        now, before = self.clock(), self._looked_at
        self._looked_at = now
        if entry.create_revision != self._seen:
            self._seen, self._seen_at, self.taken_by = entry.create_revision, now, ""
            log.warning(
                "member name %r is in use by %s: waiting until its lease expires; if that is"
                " another daemon, give one of the two another name",
                self.name,
                _describe(entry),
            )
        elif now - before > SPARE:
            self._seen_at = max(self._seen_at, now)  # changes in between weren't seen
        elif now - self._seen_at > 2 * self.lease + SPARE:
            self.taken_by = _describe(entry)
            if self.on_duplicate is not None:
                await self.on_duplicate(self.taken_by)
            self._seen_at = now + REPORT_EVERY - (2 * self.lease + SPARE)
        return False


def _tenure_of(entry: CoordinationEntry) -> TenureId | None:
    try:
        return decode_member(entry).tenure
    except InvalidValue:
        return None


def _describe(entry: CoordinationEntry) -> str:
    try:
        member = decode_member(entry)
    except InvalidValue:
        return "an entry that isn't a member"
    return f"tenure {member.tenure} at {member.grpc}"


class Registration:
    """The key of one tenure. `member`: its first value. `lease`: the lease that it is on."""

    def __init__(
        self, coordination: Coordination, observer: Observer, member: MemberView, lease: LeaseId
    ) -> None:
        self._coordination = coordination
        self._observer = observer
        self._key = member_key(member.name)
        self._lease = lease
        self._wanted = member
        self._written = member
        self._life: Revision | None = None
        self.loop = Loop("registration", self.step, interval=CHECK_EVERY)

    async def put(self) -> bool:
        """Register. Return False if another daemon has the name."""
        put = Put(self._key, encode_member(self._wanted), self._lease)
        made = await self._coordination.txn([Compare.absent(self._key)], [put])
        self._life = made.revision if made.succeeded else None
        return made.succeeded

    def draining(self) -> None:
        self._want(replace(self._wanted, draining=True))

    def reports(self, *, database: bool, attached: bool) -> None:
        self._want(replace(self._wanted, database=database, attached=attached))

    def _want(self, member: MemberView) -> None:
        if member != self._wanted:
            self._wanted = member
            self.loop.wake()

    async def step(self) -> None:
        """Write a change, or check that the key still exists. Raises TenureOver: the key doesn't
        exist, or isn't ours.
        """
        if self._wanted != self._written:
            await self._write(self._wanted)
        elif self._observer.view().member(self._wanted.tenure) is None:
            await self._confirm()

    async def _write(self, member: MemberView) -> None:
        put = Put(self._key, encode_member(member), self._lease)
        written = await self._coordination.txn([self._ours()], [put])
        if not written.succeeded:
            raise TenureOver(
                f"another process has replaced this member's key {self._key} in etcd; the"
                " member joins the cluster again"
            )
        self._written = member

    async def _confirm(self) -> None:
        entry = await self._coordination.get(self._key)
        if entry is None or entry.create_revision != self._life:
            raise TenureOver(
                f"this member's key {self._key} in etcd was deleted or replaced; the member"
                " joins the cluster again"
            )
        if entry.value != encode_member(self._written):
            log.error("etcd key %s was overwritten; writing it again", self._key)
            await self._write(self._written)

    def _ours(self) -> Compare:
        if self._life is None:
            raise RuntimeError(
                f"the member's key {self._key} wasn't registered before its use (a bug of"
                " schedd: please report this message)"
            )
        return Compare.created_at(self._key, self._life)
