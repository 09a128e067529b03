"""Fakes of etcd and of the membership tables: in memory, deterministic, cut off at will.

    etcd = FakeEtcd();  client = FakeCoordination(etcd)        one client a member
    rows = FakeDatabase();  store = FakeMembershipStore(rows)  one store a member
    keep_lease = leases(client)                                its keepers: `.kept`

The servers' state is shared; a client or a store can be `cut`, and then raises `Unavailable`.
Leases expire when a test says so (`FakeEtcd.expire`), never by time.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import math
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from schedd.core.cluster.cluster_events import ClusterEventRecord, Losses
from schedd.core.cluster.coordination import (
    NO_LEASE,
    NOTHING_DELETED,
    Compare,
    CoordinationEntry,
    Delete,
    DeletePrefix,
    Followed,
    Get,
    Lease,
    LeaseId,
    Listing,
    Op,
    Put,
    Revision,
    TxnResult,
)
from schedd.core.cluster.data_loss_check import Lineage, Mark
from schedd.core.ids import SHARDS, Epoch, JobId, ShardId, TenureId, Term, Timeline
from schedd.core.runs.model import AuditRecord, Claim, RunKey, ShardRow, Tenure
from schedd.core.runs.records import DatabaseProbe, StoredDefinition, WaitingRun
from schedd.core.timers.cluster_pauses import Pause, Pauses
from schedd.ports import LeaseKeeper
from schedd.store.cluster.membership import MembershipStore
from schedd.store.cluster.recovery import RecoveryStore
from schedkit.clock import utcnow
from schedkit.errors import Unavailable
from support.fake_of import fake_of

# ── etcd ─────────────────────────────────────────────────────────────────────────────────────────


class FakeEtcd:
    """The keys, leases and revisions of one etcd."""

    def __init__(self) -> None:
        self.cluster_id = 1
        self.revision = Revision(1)
        self.entries: dict[str, CoordinationEntry] = {}
        self.leases: dict[LeaseId, int] = {}
        self.news: list[asyncio.Event] = []
        self._ids = itertools.count(1)

    def grant(self, ttl: int) -> Lease:
        """A new lease."""
        lease = Lease(LeaseId(next(self._ids)), ttl)
        self.leases[lease.id] = ttl
        return lease

    def expire(self, lease: LeaseId) -> None:
        """End the lease, by its time or by a revoke; its keys go in one revision."""
        self.leases.pop(lease, None)
        self._commit([Delete(entry.key) for entry in self.entries.values() if entry.lease == lease])

    def listing(self, prefix: str) -> Listing:
        """Return the entries under the prefix."""
        found = sorted(key for key in self.entries if key.startswith(prefix))
        entries = tuple(self.entries[key] for key in found)
        return Listing(self.revision, self.cluster_id, entries)

    def txn(
        self, compare: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op]
    ) -> TxnResult:
        """Run a transaction."""
        succeeded = all(each.holds(self.entries.get(each.key)) for each in compare)
        return replace(self._commit(then if succeeded else otherwise), succeeded=succeeded)

    def _commit(self, ops: Sequence[Op]) -> TxnResult:
        for op in ops:
            if isinstance(op, Put) and op.lease != NO_LEASE and op.lease not in self.leases:
                raise Unavailable("etcd: requested lease not found")
        revision, before = Revision(self.revision + 1), dict(self.entries)
        read: list[CoordinationEntry | None] = []
        deleted = wrote = 0
        for op in ops:
            match op:
                case Put(key, value, lease):
                    self.entries[key] = self._put(key, value, lease, revision)
                    wrote += 1
                case Delete(key):
                    deleted += self.entries.pop(key, None) is not None
                case DeletePrefix(prefix):
                    gone = [key for key in self.entries if key.startswith(prefix)]
                    deleted += len(gone)
                    for key in gone:
                        del self.entries[key]
                case Get(key):
                    read.append(self.entries.get(key))
        if wrote or before != self.entries:
            self.revision = revision
            for news in self.news:
                news.set()
        return TxnResult(True, self.revision, self.cluster_id, tuple(read), deleted)

    def _put(self, key: str, value: bytes, lease: LeaseId, revision: Revision) -> CoordinationEntry:
        known = self.entries.get(key)
        if known is None:
            return CoordinationEntry(key, value, revision, revision, 1, lease)
        return replace(
            known, value=value, mod_revision=revision, version=known.version + 1, lease=lease
        )


@dataclass(slots=True)
class FakeCoordination:
    """The port `Coordination` for one member.

    `loses_answers`: how many of the next writing transactions are applied without an answer.
    """

    etcd: FakeEtcd
    cut: bool = False
    loses_answers: int = 0

    async def get(self, key: str) -> CoordinationEntry | None:
        """The key's entry."""
        await self._travel()
        return self.etcd.entries.get(key)

    async def list(self, prefix: str) -> Listing:
        """Return the entries under the prefix."""
        await self._travel()
        return self.etcd.listing(prefix)

    async def txn(
        self, compare: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
    ) -> TxnResult:
        """Run a transaction."""
        await self._travel()
        result = self.etcd.txn(compare, then, otherwise)
        if self.loses_answers and any(not isinstance(op, Get) for op in (*then, *otherwise)):
            self.loses_answers -= 1
            raise Unavailable("the answer was lost")
        await self._travel()
        return result

    async def grant(self, ttl: int) -> Lease:
        """A lease."""
        await self._travel()
        return self.etcd.grant(ttl)

    async def revoke(self, lease: LeaseId) -> None:
        """End a lease."""
        await self._travel()
        self.etcd.expire(lease)

    async def keepalive_once(self, lease: LeaseId) -> int:
        """The lease's TTL, 0 if it is gone."""
        await self._travel()
        return self.etcd.leases.get(lease, 0)

    async def keep_alive(self, leases: Collection[LeaseId]) -> dict[LeaseId, int]:
        """The TTL of each, 0 if it is gone."""
        await self._travel()
        return {lease: self.etcd.leases.get(lease, 0) for lease in leases}

    async def follow(self, prefix: str) -> AsyncIterator[Followed]:
        """The state at once, and after each change that we aren't cut off from. What goes here goes
        between two listings: no deletion is watched.
        """
        news = asyncio.Event()
        self.etcd.news.append(news)
        news.set()
        shown: Listing | None = None
        while True:
            await news.wait()
            news.clear()
            listing = self.etcd.listing(prefix)
            if not self.cut and (shown is None or shown.entries != listing.entries):
                shown = listing
                yield Followed(listing, NOTHING_DELETED)

    async def _travel(self) -> None:
        await asyncio.sleep(0)
        if self.cut:
            raise Unavailable("etcd is away")


class Loss(enum.Enum):
    """Why a fake's lease is lost."""

    REQUESTED = "a test ended the lease"
    STOPPED = "the keeper was stopped"


@dataclass(slots=True)
class FakeKeeper:
    """The port `LeaseKeeper`: trusted until a test ends it."""

    lease: Lease
    lost: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def trusted_until(self) -> float:
        """For ever, or for never."""
        return -math.inf if self.lost.is_set() else math.inf

    def trusted(self) -> bool:
        """Whether no test has ended it."""
        return not self.lost.is_set()

    async def until_lost(self) -> enum.Enum:
        """Wait for the end of trust."""
        await self.lost.wait()
        return Loss.REQUESTED


@dataclass(slots=True)
class FakeLeases:
    """Makes keepers over one client; `kept` are those in use, the newest last."""

    client: FakeCoordination
    ttl: int = 5
    kept: list[FakeKeeper] = field(default_factory=list)

    def __call__(self) -> AbstractAsyncContextManager[LeaseKeeper]:
        """A lease for the time of the block."""
        return self._keep()

    @asynccontextmanager
    async def _keep(self) -> AsyncIterator[FakeKeeper]:
        keeper = FakeKeeper(await self.client.grant(self.ttl))
        self.kept.append(keeper)
        try:
            yield keeper
        finally:
            self.kept.remove(keeper)
            if not self.client.cut:
                await self.client.revoke(keeper.lease.id)


# ── PostgreSQL ───────────────────────────────────────────────────────────────────────────────────


class FakeDatabase:
    """The rows of the membership tables."""

    def __init__(self, clock: Callable[[], datetime] = utcnow) -> None:
        self.clock = clock
        self.timeline = Timeline(1)
        self.term = Term(0)
        self.mark = Mark(None, "fake", 1)
        self.pauses: list[Pause] = []
        self.audit: list[AuditRecord] = []
        self.tenures: dict[TenureId, Tenure] = {}
        self.shards = {
            ShardId(at): ShardRow(ShardId(at), None, Epoch(0), Timeline(0)) for at in range(SHARDS)
        }
        self.takings: list[tuple[ShardId, Epoch, TenureId]] = []

    def fenced(self, tenure: TenureId) -> bool:
        """Whether it was fenced, or never opened."""
        row = self.tenures.get(tenure)
        return row is None or row.fenced_at is not None

    def fence(self, tenures: Sequence[TenureId]) -> None:
        """Fence these."""
        for tenure in tenures:
            if not self.fenced(tenure):
                self.tenures[tenure] = replace(self.tenures[tenure], fenced_at=self.clock())

    def owners(self) -> dict[ShardId, TenureId | None]:
        """Shard → the tenure that owns its row."""
        return {row.id: row.owner for row in self.shards.values()}


@fake_of(MembershipStore, RecoveryStore)
@dataclass(slots=True)
class FakeMembershipStore:
    """`MembershipStore` and `RecoveryStore` for one member."""

    rows: FakeDatabase
    cut: bool = False
    lineage: Lineage = field(default_factory=Lineage)

    async def probe(self) -> DatabaseProbe:
        """Return the clock, and the mark of the database."""
        known = self.lineage.known
        await self._travel()
        mark = replace(self.rows.mark, timeline=self.rows.timeline)
        self.lineage.record_mark(mark, known)
        if self.lineage.broken:
            raise Unavailable(self.lineage.broken)
        return DatabaseProbe(self.rows.clock(), self.rows.timeline, in_recovery=False, mark=mark)

    async def cluster_id(self) -> str:
        """Always the same."""
        await self._travel()
        return "fake"

    async def open_tenure(self, tenure: Tenure) -> None:
        """Insert it."""
        await self._travel()
        self.rows.tenures.setdefault(tenure.id, tenure)

    async def unfenced_tenures(self) -> list[Tenure]:
        """All that may take shards."""
        await self._travel()
        return [row for row in self.rows.tenures.values() if row.fenced_at is None]

    async def fenced(self, tenures: Sequence[TenureId]) -> frozenset[TenureId]:
        """Return the fenced ones of these tenures."""
        await self._travel()
        return frozenset(tenure for tenure in tenures if self.rows.fenced(tenure))

    async def fence_own(self, tenure: TenureId, why: str = "") -> None:
        """A goodbye, or the end of a tenure for this reason."""
        del why
        await self._travel()
        self.rows.fence([tenure])

    async def losses(self, kept: timedelta) -> Losses:
        """No losses: this fake records none."""
        del kept
        return Losses()

    async def event_before_term(self) -> int:
        """There is none."""
        return 0

    async def events_after(self, id_: int) -> list[ClusterEventRecord]:
        """There are none."""
        del id_
        return []

    async def fence(self, tenures: Sequence[TenureId], term: Term) -> bool:
        """Fence them under the term."""
        await self._travel()
        if self.rows.term != term:
            return False
        self.rows.fence(tenures)
        return True

    async def read_term(self) -> Term:
        """The term."""
        await self._travel()
        return self.rows.term

    async def raise_term(self, seen: Term, leader: TenureId, above: int = 0) -> Term | None:
        """Compare and set."""
        await self._travel()
        if self.rows.term != seen:
            return None
        self.rows.term = Term(max(seen, above) + 1)
        return self.rows.term

    async def read_shards(self) -> list[ShardRow]:
        """All rows."""
        await self._travel()
        return list(self.rows.shards.values())

    async def read_shards_of(self, tenure: TenureId) -> tuple[list[ShardRow], bool]:
        """All rows, and whether the tenure may take shards."""
        rows = await self.read_shards()
        return rows, tenure in self.rows.tenures and not self.rows.fenced(tenure)

    async def take_shards(
        self, tenure: TenureId, timeline: Timeline, seen: dict[ShardId, Epoch]
    ) -> dict[ShardId, Epoch]:
        """Take the shards that are free at the epochs seen."""
        await self._travel()
        rows = self.rows
        if rows.fenced(tenure) or timeline != rows.timeline:
            return {}
        taken: dict[ShardId, Epoch] = {}
        for shard, epoch in seen.items():
            row = rows.shards[shard]
            free = row.owner in (None, tenure) or rows.fenced(row.owner)
            if row.epoch == epoch and free:
                taken[shard] = Epoch(epoch + 1)
                rows.shards[shard] = ShardRow(shard, tenure, taken[shard], timeline)
                rows.takings.append((shard, taken[shard], tenure))
        return taken

    async def release(self, claim: Claim) -> None:
        """Free those that are still the claim's."""
        await self._travel()
        for shard, epoch in claim.epochs.items():
            row = self.rows.shards[shard]
            if (row.owner, row.epoch, row.timeline) == (claim.tenure, epoch, claim.timeline):
                self.rows.shards[shard] = replace(row, owner=None)

    # ── `RecoveryStore` ──────────────────────────────────────────────────────────────────────

    async def read_mark(self) -> Mark:
        """Return the mark of the rows."""
        await self._travel()
        return replace(self.rows.mark, timeline=self.rows.timeline)

    async def mark(self, term: Term) -> Mark | None:
        """The next one."""
        await self._travel()
        if self.rows.term != term:
            return None
        self.rows.mark = replace(self.rows.mark, at=self.rows.clock())
        return await self.read_mark()

    async def tell(self, term: Term, entry: AuditRecord) -> bool:
        """Into the audit."""
        await self._travel()
        if self.rows.term == term:
            self.rows.audit.append(entry)
        return self.rows.term == term

    async def begin(
        self,
        term: Term | None,
        until: datetime | None,
        note: Callable[[datetime, datetime, Pause | None], str],
        entry: Callable[[Pauses, Pauses], AuditRecord],
    ) -> Pause | None:
        """Add a pause."""
        await self._travel()
        if term is not None and self.rows.term != term:
            return None
        before = Pauses(len(self.rows.pauses), tuple(self.rows.pauses))
        began, lost_until = self.rows.mark.at or self.rows.clock(), until or self.rows.clock()
        text = note(began, lost_until, before.present)
        self.rows.pauses.append(Pause(began, "schedd", text, lost_until=lost_until))
        after = Pauses(len(self.rows.pauses), tuple(self.rows.pauses))
        self.rows.audit.append(entry(before, after))
        return after.present

    async def holding(self) -> Pause | None:
        """The last pause, if it is a recovery's and lasts."""
        await self._travel()
        present = Pauses(len(self.rows.pauses), tuple(self.rows.pauses)).present
        return present if present is not None and present.recovering else None

    async def waiting(
        self, after: WaitingRun | None, until: datetime, limit: int
    ) -> list[WaitingRun]:
        """There are no runs here."""
        await self._travel()
        return []

    async def definitions(self, jobs: Collection[JobId]) -> dict[JobId, StoredDefinition]:
        """There are no jobs here."""
        await self._travel()
        return {}

    async def end(
        self, term: Term | None, keys: Sequence[RunKey], error: str, fingerprint: str
    ) -> int | None:
        """Nothing to end."""
        await self._travel()
        return 0

    async def _travel(self) -> None:
        await asyncio.sleep(0)
        if self.cut:
            raise Unavailable("the database is away")
