"""The workers attached to this member: their granted slots, their runs, the demand sent to them.

Workers grant slots to this member (`granted`), and report how many slots of assignments they have
received on the stream. Runs chosen since are on their way (`attached_worker`), so

    free for this member = granted − (pushed + under way − received)

A worker may lower a grant at any time. It is sent the number of slots in use and keeps those; a
refused run costs nothing. The streams (`rpc/workers/attach.py`) are behind `AttachedStream`. A
silent or lost worker offers no slots: its runs would be lost with it.

Revoking: `ok` of pause, edit and delete waits here until no run can start any more (P3.8).
Requests for a worker that isn't attached here go over one hop (`elsewhere`).
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from math import inf
from typing import Final

from schedd.core.dispatch.packed_runs import Holdings
from schedd.core.dispatch.placement import NOTHING, Need, PlacementCriteria, Unable, able
from schedd.core.dispatch.ready_queue import QueueHead
from schedd.core.dispatch.slot_index import SlotIndex
from schedd.core.events import Emit, WorkerAttached, WorkerDetached
from schedd.core.ids import IncarnationId, JobId, RunId, Token
from schedd.core.runs.model import DispatchedBatch, Incarnation, LiveRun
from schedd.core.runs.records import SILENT_AFTER, WorkerView, view_without_heartbeats
from schedd.dispatch.revocations import At, Question, Revocations, ask_elsewhere
from schedd.dispatch.start_confirmation import StartConfirmation
from schedd.dispatch.workers.attached_slots import AttachedSlots, SlotReservation
from schedd.dispatch.workers.attached_worker import Attached, AttachedStream
from schedd.dispatch.workers.demand import Demand, WorkerDemand
from schedd.dispatch.workers.remote_workers import LastHeartbeat, NoRemoteWorkers, RemoteWorkers
from schedd.ports import ClusterClock
from schedd.runtime.definition_texts import CachedDefinition
from schedkit.clock import boottime

REVOKE_MARGIN: Final = 0.5
"""Seconds past `start_by`, by this member's clock, after which no run can start: a worker's clock
may be behind by this much.
"""


def no_demand(_: Incarnation) -> Sequence[QueueHead]:
    """Return no heads: no runs wait here."""
    return ()


class WorkerRegistry:
    """All workers attached to this member. Created once per process, not per tenure."""

    def __init__(
        self,
        clock: ClusterClock,
        emit: Emit,
        *,
        silent_after: float = SILENT_AFTER,
        boot: Callable[[], float] = boottime,
    ) -> None:
        self._clock = clock
        self._emit = emit
        self._boot = boot
        self._attached: dict[IncarnationId, Attached] = {}
        self._offering = AttachedSlots(self._attached, silent_after=silent_after, boot=boot)
        self._drained: frozenset[str] | None = None
        """Names of drained workers, as last read."""
        self._revocations = Revocations()
        self.elsewhere: RemoteWorkers = NoRemoteWorkers()
        self._slots_freed: list[Callable[[], None]] = []
        self._attachment: Callable[[bool], None] = lambda _some: None
        self._some = False
        self._demand: Demand = no_demand
        self._audience = WorkerDemand()
        self._hearing = StartConfirmation()

    def on_attachment(self, callback: Callable[[bool], None]) -> None:
        """Call `callback(some)` when it changes whether any worker is attached and not silent."""
        self._attachment = callback
        callback(self._some)

    def check_silent_workers(self) -> None:
        """Check for silent workers: a cut connection may stay open for long."""
        some = self._offering.has_awake()
        if some != self._some:
            self._some = some
            self._attachment(some)

    # -- calls of the streams --

    def attach(
        self,
        incarnation: Incarnation,
        line: AttachedStream,
        *,
        draining: bool = False,
        running: int = 0,
        unstored_results: int = 0,
    ) -> Attached:
        """Add an opened stream; it replaces an older one of the same incarnation. The given state
        is used until its first heartbeat.
        """
        now = self._boot()
        attached = Attached(
            incarnation,
            line,
            running=running,
            unstored_results=unstored_results,
            spoke_at=now,
            beat_at=now,
            draining=draining,
        )
        if self._drained is not None:
            attached.drain(incarnation.worker in self._drained)
        if (before := self._attached.get(incarnation.id)) is not None:
            self._audience.remove_worker(before)
        self._attached[incarnation.id] = attached
        self._offering.spoke(attached)
        self._audience.add_worker(attached)
        self.check_silent_workers()
        self._emit(WorkerAttached(incarnation.worker, incarnation.id))
        attached.tell_demand(self._demand(incarnation))
        return attached

    def detach(self, attached: Attached) -> bool:
        """Remove an ended stream. Return False if a newer stream of the incarnation has replaced
        it.
        """
        if self._attached.get(attached.incarnation.id) is not attached:
            return False
        del self._attached[attached.incarnation.id]
        self._offering.remove_worker(attached.incarnation.id)
        self._audience.remove_worker(attached)
        self.check_silent_workers()
        self._emit(WorkerDetached(attached.incarnation.worker, attached.incarnation.id))
        return True

    def granted(
        self, attached: Attached, slots: int, received: int, last: float = inf, serial: int = 0
    ) -> None:
        """Record a grant: the worker keeps these slots free for runs of this member up to rank
        `last`.
        """
        attached.grant(slots, received, last, serial)
        self._offering.spoke(attached)
        self._offering.changed(attached.incarnation.id)
        if attached.available:
            for callback in self._slots_freed:
                callback()

    def record_heartbeat(
        self,
        attached: Attached,
        at: datetime,
        holding: Holdings,
        *,
        free: int,
        since_refresh: float,
        draining: bool,
        disk: tuple[int, int] = (0, 0),
        refusal_reason: str = "",
    ) -> None:
        """Record a received heartbeat."""
        attached.disk = disk
        attached.refusal_reason = refusal_reason
        attached.last_heartbeat = LastHeartbeat(at, holding)
        attached.free = free
        attached.running = holding.unended
        attached.unstored_results = holding.spooled
        attached.since_refresh = since_refresh
        attached.beat_at = self._boot()
        self._offering.spoke(attached)
        if attached.draining != draining:
            attached.draining = draining
            self._offering.changed(attached.incarnation.id)

    def drained(self, names: Collection[str]) -> None:
        """Set the names of all drained workers."""
        self._drained = frozenset(names)
        for attached in self._attached.values():
            on = attached.incarnation.worker in self._drained
            if on != attached.drained:
                attached.drain(on)
                self._offering.changed(attached.incarnation.id)

    def lost(self, incarnations: Iterable[IncarnationId]) -> None:
        """Send nothing more to lost incarnations, even while their streams are open."""
        self._mark(incarnations, lost=True)

    def spared(self, incarnations: Iterable[IncarnationId]) -> None:
        """Undo `lost`: the loss wasn't committed, so these incarnations may get work again."""
        self._mark(incarnations, lost=False)

    def revoke_answered(self, run: RunId, token: Token) -> None:
        """Note that the worker gave the assignment up or reported its start."""
        self._revocations.answered((run, token))

    def unable(self, incarnation: IncarnationId, job: JobId, unable: Unable) -> None:
        """Note that the worker refused a run of this job because it lacks something."""
        if (attached := self._attached.get(incarnation)) is not None:
            attached.cant_do(job, unable)

    # -- calls of dispatch --

    def on_slots_freed(self, callback: Callable[[], None]) -> None:
        """Call `callback()` when slots may be free."""
        self._slots_freed.append(callback)

    def offers(self) -> SlotIndex:
        """Return the slots that may be used now. Each call returns the same object, updated."""
        return self._offering.now()

    def still_offered(self) -> SlotIndex:
        """Return the part of the last `offers` that may still be used."""
        return self._offering.still()

    def choosing(self) -> SlotReservation:
        """Surround a choice among offers, up to the push."""
        return SlotReservation(self._offering)

    def slots(self) -> int:
        """Return the number of slots of all workers here, free or not."""
        return sum(
            attached.incarnation.slots
            for attached in self._attached.values()
            if self._offering.speaks(attached) and not attached.draining
        )

    def free_slots(self) -> int:
        """Return the number of their free slots, by the last heartbeats."""
        return sum(
            attached.free
            for attached in self._attached.values()
            if self._offering.speaks(attached) and not attached.draining
        )

    def incarnations(self) -> list[Incarnation]:
        """Return all incarnations attached here."""
        return [attached.incarnation for attached in self._attached.values()]

    def present(self) -> list[Incarnation]:
        """Return incarnations attached here that may receive work, with or without free slots."""
        return [
            attached.incarnation
            for attached in self._attached.values()
            if self._offering.speaks(attached) and attached.stays
        ]

    def able_to(self) -> Callable[[Need], bool]:
        """Return whether a worker that may receive work can run a need, with free slots or not, as
        a function that is valid for a moment.
        """
        present = self.present()
        found: dict[int, tuple[Need, bool]] = {}  # by id: jobs of one text share their need

        def able_here(need: Need) -> bool:
            known = found.get(id(need))
            if known is None:
                known = found[id(need)] = need, any(able(one, need) for one in present)
            return known[1]

        return able_here

    def leaving(self) -> set[IncarnationId]:
        """Return incarnations attached here that take no more work."""
        return {one.incarnation.id for one in self._attached.values() if not one.stays}

    def push(self, batch: DispatchedBatch, known: Sequence[CachedDefinition]) -> bool:
        """Push assignments to their worker; return False if that isn't possible. `known`: the
        definition of each.

        Its stream has ended (see `elsewhere`), or the worker reconnected without permission for the
        namespace.
        """
        attached, definition = self._worker_of(batch.first), known[0].definition
        if attached is None or not attached.incarnation.may_work_for(definition.namespace):
            return False
        attached.pushed += definition.slots * len(known)
        self._offering.changed(attached.incarnation.id)
        attached.line.assign(batch, known)
        return True

    def demand(self, demand: Demand, asked: PlacementCriteria = NOTHING) -> None:
        """Send each worker the queue heads that it can do, if they matter to it. Slots granted for
        other heads would be idle. `asked`: the criteria of all waiting runs.
        """
        self._demand = demand
        self._audience.send_heads(demand, asked)

    # -- calls of the API --

    async def revoke(self, runs: Sequence[LiveRun], within: float = inf) -> list[At]:
        """Revoke these assignments. Return those without an answer when each is resolved, past its
        `start_by`, or after `within` seconds.
        """
        now = self._clock.now()
        left = {
            (run.key.run_id, run.token): min(
                within, (run.start_by - now).total_seconds() + REVOKE_MARGIN
            )
            for run in runs
            if run.start_by is not None
        }
        away: dict[IncarnationId, list[LiveRun]] = {}
        with self._revocations.asking(left) as question:
            for run in runs:
                attached = self._worker_of(run)
                if attached is not None:
                    attached.line.revoke(run.key, run.token)
                if run.incarnation and (attached is None or not self._offering.speaks(attached)):
                    away.setdefault(run.incarnation, []).append(run)
            async with asyncio.TaskGroup() as group:
                asking = ask_elsewhere(self.elsewhere, away, self._revocations.answered)
                task = group.create_task(asking, name="revoke elsewhere")
                await question.resolved()
                task.cancel()
            return [*question.open]

    def cancel(self, run: LiveRun, *, kill: bool = False) -> None:
        """Send a cancel to the run's worker. A broadcast has none: its children are cancelled."""
        if run.incarnation is None:
            return
        attached = self._worker_of(run)
        if attached is not None:
            attached.line.cancel(run.key, run.token, kill=kill)
        if attached is None or not self._offering.speaks(attached):
            self.elsewhere.cancel(run, kill=kill)

    def follow(self, run: LiveRun, *, on: bool) -> None:
        """Start or stop following the output of a run, if its worker is attached here."""
        if (attached := self._worker_of(run)) is not None:
            attached.line.follow(run.key, run.token, on=on)

    def workers(self) -> list[WorkerView]:
        """Return the workers attached here."""
        now = self._boot()
        return [attached.view(now) for attached in self._attached.values()]

    async def views(self, incarnations: Sequence[Incarnation]) -> list[WorkerView]:
        """Return the state of each, from the member that received its last heartbeat. Asks the
        other members about all workers that are silent or not attached here, in one round.
        """
        here = {one.incarnation.id: one for one in self._attached.values()}
        away = [
            one
            for one in incarnations
            if (attached := here.get(one.id)) is None or not self._offering.speaks(attached)
        ]
        others = await self.elsewhere.views(away) if away else ()
        now = self._boot()
        found = {view.incarnation.id: view for view in others}
        for one in incarnations:
            if (attached := here.get(one.id)) is not None:
                own, other = attached.view(now), found.get(one.id)
                found[one.id] = own if other is None or own.silent <= other.silent else other
        return [found.get(one.id) or view_without_heartbeats(one) for one in incarnations]

    def refusals(self, job: JobId, generation: int) -> dict[IncarnationId, str]:
        """Return workers attached here that refused this generation of the job, with reasons."""
        return {
            incarnation: said.why
            for incarnation, attached in self._attached.items()
            if (said := attached.unable.get(job)) is not None and said.generation == generation
        }

    def lists(self, run: LiveRun) -> bool:
        """Return whether the last heartbeat of a worker attached here lists this assignment."""
        attached = self._worker_of(run)
        return (
            attached is not None
            and attached.last_heartbeat is not None
            and attached.last_heartbeat.lists(run)
        )

    def lacks(self, run: LiveRun, since: datetime) -> bool:
        """Return whether a heartbeat from after `since` shows that the worker doesn't have the
        assignment.

        The worker must be attached here and have received everything that was pushed to it.
        """
        attached = self._worker_of(run)
        if (
            attached is None
            or attached.last_heartbeat is None
            or attached.received < attached.pushed
        ):
            return False
        return attached.last_heartbeat.at > since and not attached.last_heartbeat.lists(run)

    async def never_started(self, runs: Collection[LiveRun]) -> list[LiveRun]:
        """Return the runs that certainly never started, by a heartbeat of their running worker.

        The heartbeat was stamped after `start_by` and doesn't list the assignment. Other members
        are asked once about each worker that isn't attached here or is silent.
        """
        said = {each.incarnation.id: each.last_heartbeat for each in self._attached.values()}
        speaking = {
            each.incarnation.id for each in self._attached.values() if self._offering.speaks(each)
        }
        return await self._hearing.never_started(
            runs, said, speaking, self.elsewhere, self._clock.now()
        )

    def attached(self, incarnation: IncarnationId) -> Attached | None:
        """Return the incarnation's stream here."""
        return self._attached.get(incarnation)

    def answers_to(self, ats: Iterable[At], within: float) -> AbstractContextManager[Question]:
        """Surround the sending of these revokes; collect their answers for `within` seconds."""
        return self._revocations.asking(dict.fromkeys(ats, within))

    def _mark(self, incarnations: Iterable[IncarnationId], *, lost: bool) -> None:
        for incarnation in incarnations:
            if (attached := self._attached.get(incarnation)) is not None:
                attached.lost = lost
                self._offering.changed(incarnation)

    def _worker_of(self, run: LiveRun) -> Attached | None:
        return None if run.incarnation is None else self._attached.get(run.incarnation)
