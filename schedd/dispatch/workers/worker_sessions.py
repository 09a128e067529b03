"""Sessions of workers at a member: registration, heartbeats and end of incarnations.

    hello → registered → key and lease in etcd → found → attached → goodbye │ lost

At most one incarnation serves under a worker name. A new incarnation from the same spool directory,
whose lock it holds, ends the earlier one once the results in the spool are stored. An incarnation
from another directory is rejected while the first one's lease exists. A lost incarnation is
rejected, and its worker registers as a new one; a loss is final.

A worker that is rejected for its name isn't registered. The end of an incarnation without a key
isn't a loss.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol

from schedd.cluster.worker_leases import WorkerLeases
from schedd.core.cluster.cluster_events import EventKind
from schedd.core.ids import IncarnationId, Token
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import AuditRecord, Incarnation, RunKey
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.store.cluster.workers import WorkerStore
from schedd.store.results.result_writes import ResultWrites
from schedd.store.user_store import UserStore
from schedkit.clock import boottime
from schedkit.errors import Unavailable
from schedkit.records import dataclass
from schedkit.tasks import Loop

log = logging.getLogger(__name__)

SPOOL_WITHIN: Final = 10.0
"""Seconds that an earlier incarnation of a spool is kept for the results in it."""
LOOK_EVERY: Final = 1.0
GATHER: Final = 0.05
"""Seconds in which heartbeats are collected for one refresh of leases; the first isn't delayed."""
MOST_DUPLICATES: Final = 1000
"""Rejected workers whose last audit row is remembered."""
ANOTHER: Final = "ANOTHER_WORKER"
"""Reason for rejecting a worker that uses another worker's incarnation."""
MOST_NAMES: Final = 10_000
AUDIT_EVERY: Final = 600.0
"""Seconds between two audit rows of a rejected worker that keeps trying."""


@dataclass(frozen=True, slots=True)
class RejectedHello:
    """A rejected hello: gRPC status, message, reason code."""

    status: str
    message: str
    reason: str


WRITTEN_OFF: Final = RejectedHello(
    "FAILED_PRECONDITION",
    "this registration of the worker was recorded as lost: register again",
    "INCARNATION_LOST",
)


@dataclass(frozen=True, slots=True)
class _Ending:
    """Earlier incarnations of a spool that wait until its results are stored."""

    earlier: tuple[Incarnation, ...]
    spooled: tuple[tuple[RunKey, Token], ...]
    until: float


class HeartbeatAnswer(Protocol):
    """Called with the outcome of a heartbeat."""

    def __call__(self, *, refreshed: bool, lost: bool) -> None: ...


class WorkerSessions:
    """Registers, keeps and ends incarnations. Created once per process."""

    def __init__(
        self,
        workers: WorkerRegistry,
        leases: WorkerLeases,
        store: WorkerStore,
        results: ResultWrites,
        audit: UserStore,
    ) -> None:
        self._workers = workers
        self._leases = leases
        self._store = store
        self._results = results
        self._audit = audit
        self._endings: list[_Ending] = []
        self._lost: set[IncarnationId] = set()
        self._audited: dict[tuple[str, IncarnationId], float] = {}
        """Time of the last audit row, by rejected spool directory and holder of the name."""
        self._heartbeats: list[tuple[Incarnation, HeartbeatAnswer]] = []
        self._names: dict[IncarnationId, str] = {}
        """Worker names of earlier incarnations whose results arrived."""
        self._refreshes = Loop("worker leases", self._refresh, interval=5.0)
        self._look = Loop("worker liveness", self._look_after, interval=LOOK_EVERY)

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The loops that answer heartbeats."""
        return self._refreshes, self._look

    async def greet(
        self, incarnation: Incarnation, spooled: Sequence[tuple[RunKey, Token]]
    ) -> RejectedHello | None:
        """Handle a hello; return None if the worker is welcome. Raises Unavailable."""
        others = [
            one
            for one in await self._store.of_worker(incarnation.worker)
            if one.id != incarnation.id
        ]
        if duplicate := await self._duplicate(incarnation, others):
            return await self._lost_before(incarnation) or await self._turn_away(
                incarnation, duplicate
            )
        stored = await self._store.register(incarnation)
        if stored.worker != incarnation.worker:
            return RejectedHello(
                "PERMISSION_DENIED",
                f"this registration (incarnation) belongs to worker {stored.worker}",
                ANOTHER,
            )
        if stored.lost_at is not None:
            return WRITTEN_OFF
        created = await self._leases.ensure(incarnation)
        turned = await self._came_second(incarnation)
        if turned is not None:
            return turned
        if created:
            await self._store.note_seen([incarnation.id])
        earlier = tuple(one for one in others if one.spool_id == incarnation.spool_id)
        if earlier:
            ending = _Ending(earlier, tuple(spooled), boottime() + SPOOL_WITHIN)
            if not spooled:
                await self._end(ending)
            else:
                self._endings.append(ending)
        return None

    async def is_of(self, worker: str, incarnation: IncarnationId) -> bool:
        """Return whether the incarnation is or was of this worker, or is unknown: an unknown one
        has no runs. Raises Unavailable.
        """
        if incarnation not in self._names:
            found = await self._store.incarnations([incarnation])
            if not found:
                return True
            self._names[incarnation] = found[0].worker
            if len(self._names) > MOST_NAMES:
                del self._names[next(iter(self._names))]
        return self._names[incarnation] == worker

    def record_heartbeat(
        self, incarnation: Incarnation, since_refresh: float, answer: HeartbeatAnswer
    ) -> None:
        """Record a heartbeat; `answer` is called when its lease was refreshed, or that failed."""
        if incarnation.id in self._lost:
            answer(refreshed=False, lost=True)
        elif self._leases.due(incarnation.id, since_refresh):
            self._heartbeats.append((incarnation, answer))
            self._refreshes.wake()
        else:
            answer(refreshed=False, lost=False)

    async def goodbye(self, incarnation: Incarnation) -> None:
        """End an incarnation at its own request: delete its key."""
        try:
            await self._write_off(incarnation, None)
        except Unavailable as away:
            log.info(
                "signing off worker %s failed: %s; its lease expires automatically",
                incarnation.worker,
                away,
            )

    def forget_incarnation(self, incarnation: IncarnationId) -> None:
        """Forget an incarnation whose last stream to this member has ended."""
        self._lost.discard(incarnation)
        self._leases.forget(incarnation)

    async def _lost_before(self, incarnation: Incarnation) -> RejectedHello | None:
        found = await self._store.incarnations([incarnation.id])
        return WRITTEN_OFF if found and found[0].lost_at is not None else None

    async def _duplicate(
        self, incarnation: Incarnation, others: Sequence[Incarnation]
    ) -> Incarnation | None:
        """Return the incarnation of another spool directory that has the name and a key."""
        strangers = [one for one in others if one.spool_id != incarnation.spool_id]
        if not strangers:
            return None
        live = await self._leases.others_live(incarnation)
        return next((one for one in strangers if one.id in live), None)

    async def _came_second(self, incarnation: Incarnation) -> RejectedHello | None:
        """Check for another worker of this name again after writing the key: both may have
        registered at the same moment.
        """
        elders = await self._leases.elders(incarnation)
        if not elders:
            return None
        for one in await self._store.incarnations(sorted(elders)):
            if one.spool_id != incarnation.spool_id and one.lost_at is None:
                await self._leases.end(incarnation.worker, incarnation.id)
                return await self._turn_away(incarnation, one)
        return None

    async def _turn_away(self, incarnation: Incarnation, duplicate: Incarnation) -> RejectedHello:
        message = (
            f"worker {incarnation.worker} already exists on host {duplicate.host}:"
            " stop it there, or give this worker another name"
        )
        turned = RejectedHello("ALREADY_EXISTS", message, "SECOND_IDENTITY")
        rejected, now = (str(incarnation.spool_id), duplicate.id), boottime()
        if now - self._audited.get(rejected, -AUDIT_EVERY) < AUDIT_EVERY:  # it retries each second
            return turned
        await self._audit.audit(
            AuditRecord(
                actor=f"worker/{incarnation.worker}",
                action="attach",
                object=f"worker/{incarnation.worker}",
                outcome="refused",
                reason="SECOND_IDENTITY",
                worker=incarnation.worker,
                source=incarnation.host,
            )
        )
        self._audited[rejected] = now
        if len(self._audited) > MOST_DUPLICATES:
            del self._audited[next(iter(self._audited))]
        return turned

    async def _refresh(self) -> float:
        """Refresh the leases of workers whose heartbeats were received, in one call."""
        received, self._heartbeats = self._heartbeats, []
        named = {incarnation.id: incarnation for incarnation, _ in received}  # may be there twice
        refreshed = await self._leases.refresh([*named.values()])
        for incarnation, answer in received:
            answer(refreshed=incarnation.id in refreshed, lost=incarnation.id in self._lost)
        if received:
            await asyncio.sleep(GATHER)
        return 0.0 if self._heartbeats else 5.0

    async def _look_after(self) -> None:
        """Check for silent and lost workers, and end incarnations that waited for a spool."""
        self._workers.check_silent_workers()
        attached = self._workers.incarnations()
        ended, drained = await self._store.ended_and_drained([one.id for one in attached])
        self._workers.drained(drained)
        gone = [one for one in attached if one.id in ended]
        self._workers.lost(one.id for one in gone)  # each time: `spared` may have undone it
        for one in gone:
            if one.id not in self._lost:
                log.info(
                    "registration ended: worker=%s; if it runs, it registers again", one.worker
                )
                if (
                    self._workers.attached(one.id) is not None
                ):  # `forget_incarnation` removes it later
                    self._lost.add(one.id)
                await self._leases.end(one.worker, one.id)
        for ending in list(self._endings):
            if boottime() > ending.until or await self._all_stored(ending):
                await self._end(ending)
                self._endings.remove(ending)

    async def _all_stored(self, ending: _Ending) -> bool:
        runs = await self._results.reported_runs([key for key, _ in ending.spooled])
        return not any(
            key in runs and runs[key].state is State.RUNNING and runs[key].token == token
            for key, token in ending.spooled
        )

    async def _end(self, ending: _Ending) -> None:
        for one in ending.earlier:
            await self._write_off(one, EventKind.WORKER_RESTARTED)

    async def _write_off(self, incarnation: Incarnation, kind: EventKind | None) -> None:
        """Record the loss, then delete the key: in this order no heartbeat creates it again."""
        await self._store.lose([incarnation.id], kind)
        await self._leases.end(incarnation.worker, incarnation.id)
