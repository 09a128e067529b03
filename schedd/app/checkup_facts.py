"""Facts for diagnostics, read from etcd, the database and the other members at the same time.

If a source can't be read, its place has the reason. No error of a dependency is raised here.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from schedd.cluster.member import MemberLifecycle
from schedd.core.checkup.facts import (
    BlockedLoop,
    DatabaseFacts,
    EtcdFacts,
    Facts,
    FailedRead,
    HeldLock,
    MemberFacts,
)
from schedd.core.cluster.dependency import Dependency, DependencyFailure
from schedd.core.cluster.membership import ClusterView, MemberView
from schedd.core.ids import IncarnationId
from schedd.core.runs.model import AuditRecord, ShardRow
from schedd.core.runs.records import WorkerView
from schedd.core.timers.cluster_pauses import Pause
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.etcd.client import EtcdClient
from schedd.results.objects import StoredObjects
from schedd.results.progress import MemberProgress
from schedd.rpc.peers.peers import Peers
from schedd.runtime.cluster_clock import DatabaseClock
from schedd.runtime.dependency_health import DependencyHealth, failed_read
from schedd.store.postgres import Stores
from schedkit.clock import utcnow
from schedkit.errors import Misconfigured, Rejected, Unavailable
from schedkit.net.certificates import first_of
from schedkit.net.channel import TLS
from schedkit.records import dataclass
from schedproto.v1 import peer_service_pb2 as wire

DUPLICATE_AGE: Final = timedelta(minutes=15)
"""How long the rejection of a second worker of a name counts; while that worker runs, the rejection
is reported every ten minutes.
"""
TURNED_AWAY: Final = 20
"""Newest audit rows that are searched for rejections."""
LOOK_WITHIN: Final = 4.0
"""Timeout of the database in seconds: longer than its own timeouts, shorter than a caller waits."""
NO_ANSWER: Final = f"no answer within {LOOK_WITHIN:g} s"

HELD_FOR: Final = 1.0
"""Seconds for which a lock must be held that is reported without its age."""


@dataclass(frozen=True, slots=True)
class _Read:
    """Answers of the database. `unread`: why its tables couldn't be read."""

    database: DatabaseFacts | FailedRead
    unread: FailedRead | None = None
    rows: tuple[ShardRow, ...] = ()
    pause: Pause | None = None
    duplicates: tuple[AuditRecord, ...] = ()
    foreign: tuple[str, ...] | None = ()


@dataclass(frozen=True, slots=True)
class CheckupCollector:
    """Reads the facts of one member for its diagnostics (`schedd.ports.CheckupFacts`)."""

    store: Stores
    etcd: EtcdClient
    clock: DatabaseClock
    member: MemberLifecycle
    workers: WorkerRegistry
    advances: MemberProgress
    peers: Peers
    tls: TLS | None
    objects: StoredObjects
    health: DependencyHealth

    async def facts(self) -> Facts:
        view = self.member.cluster.view()
        async with asyncio.TaskGroup() as group:
            etcd = group.create_task(self._etcd(), name="checkup: etcd")
            stored = group.create_task(self._stored(), name="checkup: database")
            locks = group.create_task(self._locks(), name="checkup: locks")
            results = group.create_task(self._results(), name="checkup: result store")
            others = group.create_task(self._others(view), name="checkup: workers elsewhere")
            members = [
                group.create_task(self._member(one), name=f"checkup: {one.name}")
                for one in view.members
            ]
        read, workers = stored.result(), tuple(self.workers.workers())
        return Facts(
            now=utcnow(),
            version=self.member.identity.version,
            view=view,
            etcd=etcd.result(),
            database=read.database,
            unread=read.unread,
            locks=locks.result(),
            rows=read.rows,
            pause=read.pause,
            results_away=results.result(),
            duplicates=read.duplicates,
            foreign=read.foreign,
            members=tuple(task.result() for task in members),
            workers=workers,
            blocked={one.incarnation.id: self._blocked(one.incarnation.id) for one in workers},
            elsewhere=tuple(one for one in others.result() if not one.heartbeats_missing),
            heartbeats_missing=tuple(
                sorted(one.incarnation.worker for one in others.result() if one.heartbeats_missing)
            ),
            failures=tuple(self.health.failures()),
            trusted=self.member.cluster.trusted(),
        )

    def _blocked(self, worker: IncarnationId) -> tuple[BlockedLoop, ...]:
        return tuple(
            BlockedLoop(
                one.handler,
                one.key.run_id,
                one.blocked_for.ToTimedelta().total_seconds(),
                one.place,
            )
            for one in self.advances.blocks(worker)
        )

    def examine_member(self) -> wire.ExamineResponse:
        """Return this member's state, for its peers and itself."""
        identity = self.member.identity
        answer = wire.ExamineResponse(
            name=identity.name,
            version=identity.version,
            tzdata=identity.tzdata,
            wall_clock=_stamp(utcnow()),
            cluster_time=_stamp(self.clock.now()),
            seconds_since_database=self.clock.away_for(),
            lease_trusted=self.member.cluster.trusted(),
            failures=[_failure(each) for each in self.health.failures()],
        )
        if (ends := _ends(self.tls)) is not None:
            answer.certificate_expires_at.CopyFrom(_stamp(ends))
        return answer

    async def _etcd(self) -> EtcdFacts:
        endpoints = await self.etcd.status()
        unread, remedy = "", ""
        try:
            await self.etcd.list("")
        except Rejected as error:
            unread, remedy = error.cause, error.remedy
        except Unavailable as error:
            unread = str(error)
        return EtcdFacts(endpoints, self.member.cluster.went_back, unread, remedy)

    async def _stored(self) -> _Read:
        database: DatabaseFacts | None = None
        try:
            async with asyncio.timeout(LOOK_WITHIN):
                database = await self.store.look()
                return _Read(
                    database,
                    None,
                    tuple(await self.store.membership.read_shards()),
                    await self.store.pauses.present(),
                    await self._duplicates(),
                    await self._foreign(),
                )
        except Unavailable as error:
            failed = failed_read(error)
        except TimeoutError:
            ago = f"; the last was {self.clock.away_for():.0f} s ago" if database is None else ""
            failed = FailedRead(NO_ANSWER + ago)
        return _Read(failed) if database is None else _Read(database, failed)

    async def _locks(self) -> tuple[HeldLock, ...] | FailedRead:
        """Read them apart from `_stored`, which may wait for these locks. Locks of an unknown age
        are read twice.
        """
        try:
            async with asyncio.timeout(LOOK_WITHIN):
                held = await self.store.read_locks()
                if all(one.since for one in held):
                    return held
                await asyncio.sleep(HELD_FOR)
                still = {one.session for one in await self.store.read_locks()}
                return tuple(one for one in held if one.session in still or not one.modes)
        except Unavailable as error:
            return failed_read(error)
        except TimeoutError:
            return FailedRead(NO_ANSWER)

    async def _results(self) -> str:
        try:
            async with asyncio.timeout(LOOK_WITHIN):
                return await self.objects.check()
        except TimeoutError:
            return NO_ANSWER

    async def _others(self, view: ClusterView) -> list[WorkerView]:
        """Return running workers that aren't attached here; none without the database."""
        here = {one.id for one in self.workers.incarnations()}
        try:
            async with asyncio.timeout(LOOK_WITHIN):
                away = await self.store.workers.incarnations(sorted(view.workers - here))
                return await self.workers.views([one for one in away if one.lost_at is None])
        except (Unavailable, TimeoutError):
            return []

    async def _duplicates(self) -> tuple[AuditRecord, ...]:
        since = self.clock.now() - DUPLICATE_AGE
        found: dict[str, AuditRecord] = {}
        for action in ("join", "attach"):
            for _, line in await self.store.users.list_audit(action, None, None, None, TURNED_AWAY):
                if line.reason == "SECOND_IDENTITY" and line.at is not None and line.at > since:
                    found.setdefault(line.object, line)
        return tuple(found.values())

    async def _foreign(self) -> tuple[str, ...] | None:
        owner = self.member.cluster.view().owner
        if owner is None:
            return None
        return tuple(await self.store.membership.foreign_members(owner.prefix_id))

    async def _member(self, one: MemberView) -> MemberFacts:
        if one.tenure == self.member.cluster.tenure:
            return self._facts(one, self.examine_member(), self.clock.now())
        before = self.clock.now()
        try:
            answer = await self.peers.call(one.grpc, wire.ExamineRequest(), wire.ExamineResponse)
        except Unavailable as error:
            return MemberFacts(one, away=str(error))
        return self._facts(one, answer, before + (self.clock.now() - before) / 2)

    def _facts(self, one: MemberView, answer: wire.ExamineResponse, then: datetime) -> MemberFacts:
        """Return a peer's facts. `then`: cluster time of its answer, half a round trip after the
        request.
        """
        ends = answer.certificate_expires_at if answer.HasField("certificate_expires_at") else None
        return MemberFacts(
            one,
            wall_offset=answer.wall_clock.ToDatetime(UTC) - then,
            cluster_offset=answer.cluster_time.ToDatetime(UTC) - then,
            certificate_expires_at=None if ends is None else ends.ToDatetime(UTC),
            seconds_since_database=answer.seconds_since_database,
            trusted=answer.lease_trusted,
            failures=tuple(
                DependencyFailure(
                    Dependency(one.dependency),
                    one.reason,
                    one.cause,
                    one.remedy,
                    one.since.ToDatetime(UTC),
                )
                for one in answer.failures
            ),
        )


def _ends(tls: TLS | None) -> datetime | None:
    """Return when the certificate on disk expires; a date long past if it can't be read."""
    if tls is None:
        return None
    try:
        return first_of(tls.read()[1] or b"").not_after
    except (Misconfigured, ValueError):
        return datetime.fromtimestamp(0, UTC)


def _failure(one: DependencyFailure) -> wire.ExamineResponse.Failure:
    return wire.ExamineResponse.Failure(
        dependency=one.dependency,
        reason=one.reason,
        cause=one.cause,
        remedy=one.remedy,
        since=_stamp(one.since),
    )


def _stamp(instant: datetime) -> Timestamp:
    found = Timestamp()
    found.FromDatetime(instant)
    return found
