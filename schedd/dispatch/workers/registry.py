"""The workers attached to this member: what each has granted, holds, and is told.

Slots are granted, never guessed: a worker says how many it keeps free for this member (`granted`)
and how many slots' worth of assignments it has received on the stream; what was chosen for it since
(`attached`) is on its way, so

    free for us = granted − (pushed + under way − received)

A worker may lower a grant at any time. It is told how far what is on its way goes, and keeps slots
for that; what it refuses all the same costs nothing. The streams themselves
(`rpc/workers/attach.py`) are behind `AttachedStream`. Nothing is offered of a worker that was
silent for a while, or that is lost: what went to it would be lost with it, again and again.

Revoking: `ok` of pause, edit and delete waits here until nothing can start any more (PROTOCOL 3).
What concerns a worker that isn't attached here goes over one hop (`elsewhere`).
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from math import inf
from typing import Final

from schedd.core.dispatch.packed_runs import Holdings
from schedd.core.dispatch.placement import NOTHING, PlacementCriteria, Unable
from schedd.core.dispatch.ready_queue import QueueHead
from schedd.core.dispatch.slot_index import Offers
from schedd.core.events import Emit, WorkerCame, WorkerWent
from schedd.core.ids import IncarnationId, JobId, RunId, Token
from schedd.core.runs.model import Assigned, Incarnation, LiveRun
from schedd.core.runs.records import SILENT_AFTER, WorkerView, unheard
from schedd.dispatch.revocations import At, Question, Revocations, ask_elsewhere
from schedd.dispatch.start_confirmation import StartConfirmation
from schedd.dispatch.workers.attached_worker import Attached, AttachedStream
from schedd.dispatch.workers.demand import Audience, Demand
from schedd.dispatch.workers.remote_workers import Elsewhere, LastHeartbeat, Nowhere
from schedd.dispatch.workers.slot_index import Offering, SlotReservation
from schedd.ports import ClusterClock
from schedd.runtime.definition_texts import CachedDefinition
from schedkit.clock import boottime

REVOKE_MARGIN: Final = 0.5
"""Seconds past `start_by`, by this member's clock, after which nothing can start any more: by so
much a worker's may be behind.
"""


def no_demand(_: Incarnation) -> Sequence[QueueHead]:
    """Nothing waits here."""
    return ()


class WorkerRegistry:
    """Every worker attached to this member. Lives as long as the daemon, not the tenure."""

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
        self._offering = Offering(self._attached, silent_after=silent_after, boot=boot)
        self._drained: frozenset[str] | None = None
        """Names of workers that are drained, as they were last read."""
        self._revocations = Revocations()
        self.elsewhere: Elsewhere = Nowhere()
        self._slots_freed: list[Callable[[], None]] = []
        self._attachment: Callable[[bool], None] = lambda _some: None
        self._some = False
        self._demand: Demand = no_demand
        self._audience = Audience()
        self._hearing = StartConfirmation()

    def on_attachment(self, told: Callable[[bool], None]) -> None:
        """Have `told(some)` called when that changes: whether any worker is attached, and heard."""
        self._attachment = told
        told(self._some)

    def look(self) -> None:
        """See who has fallen silent: a line that was cut may stand for long before it breaks."""
        some = self._offering.some()
        if some != self._some:
            self._some = some
            self._attachment(some)

    # -- what the streams tell --

    def attach(
        self,
        incarnation: Incarnation,
        line: AttachedStream,
        *,
        draining: bool = False,
        running: int = 0,
        unstored: int = 0,
    ) -> Attached:
        """A stream was opened; it takes the place of an older one of the same incarnation. What is
        told of it counts until its first heartbeat.
        """
        now = self._boot()
        attached = Attached(
            incarnation,
            line,
            running=running,
            unstored=unstored,
            spoke_at=now,
            beat_at=now,
            draining=draining,
        )
        if self._drained is not None:
            attached.drain(incarnation.worker in self._drained)
        if (before := self._attached.get(incarnation.id)) is not None:
            self._audience.went(before)
        self._attached[incarnation.id] = attached
        self._offering.spoke(attached)
        self._audience.came(attached)
        self.look()
        self._emit(WorkerCame(incarnation.worker, incarnation.id))
        attached.tell_demand(self._demand(incarnation))
        return attached

    def detach(self, attached: Attached) -> bool:
        """The stream ended; False: a newer one of the incarnation has taken its place."""
        if self._attached.get(attached.incarnation.id) is not attached:
            return False
        del self._attached[attached.incarnation.id]
        self._offering.went(attached.incarnation.id)
        self._audience.went(attached)
        self.look()
        self._emit(WorkerWent(attached.incarnation.worker, attached.incarnation.id))
        return True

    def granted(
        self, attached: Attached, slots: int, received: int, last: float = inf, serial: int = 0
    ) -> None:
        """The worker keeps so many slots free for this member, for runs up to the rank `last`."""
        attached.grant(slots, received, last, serial)
        self._offering.spoke(attached)
        self._offering.changed(attached.incarnation.id)
        if attached.available:
            for told in self._slots_freed:
                told()

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
        refuses: str = "",
    ) -> None:
        """A heartbeat came."""
        attached.disk = disk
        attached.refuses = refuses
        attached.last_heartbeat = LastHeartbeat(at, holding)
        attached.free = free
        attached.running = holding.unended
        attached.unstored = holding.spooled
        attached.since_refresh = since_refresh
        attached.beat_at = self._boot()
        self._offering.spoke(attached)
        if attached.draining != draining:
            attached.draining = draining
            self._offering.changed(attached.incarnation.id)

    def drained(self, names: Collection[str]) -> None:
        """The workers of these names are drained, and no others."""
        self._drained = frozenset(names)
        for attached in self._attached.values():
            on = attached.incarnation.worker in self._drained
            if on != attached.drained:
                attached.drain(on)
                self._offering.changed(attached.incarnation.id)

    def lost(self, incarnations: Iterable[IncarnationId]) -> None:
        """These are written off: nothing more for them, even while their streams stand."""
        self._mark(incarnations, lost=True)

    def spared(self, incarnations: Iterable[IncarnationId]) -> None:
        """Their loss was not committed: they may be given work again."""
        self._mark(incarnations, lost=False)

    def revoke_answered(self, run: RunId, token: Token) -> None:
        """The worker gave the assignment up, or says that it has started."""
        self._revocations.answered((run, token))

    def unable(self, incarnation: IncarnationId, job: JobId, unable: Unable) -> None:
        """It refused a run of this job for want of something."""
        if (attached := self._attached.get(incarnation)) is not None:
            attached.cant_do(job, unable)

    # -- what the dispatcher asks --

    def on_slots_freed(self, told: Callable[[], None]) -> None:
        """Have `told()` called when slots may be free."""
        self._slots_freed.append(told)

    def offers(self) -> Offers:
        """The slots that may be used now. It is the same one each time, and goes with the time."""
        return self._offering.now()

    def still_offered(self) -> Offers:
        """What of the last `offers` may still be used."""
        return self._offering.still()

    def choosing(self) -> SlotReservation:
        """Around a choice among offers, and all that it leads to up to the push."""
        return SlotReservation(self._offering)

    def slots(self) -> int:
        """All that the workers here have, free or not."""
        return sum(
            attached.incarnation.slots
            for attached in self._attached.values()
            if self._offering.speaks(attached) and not attached.draining
        )

    def free_slots(self) -> int:
        """Of these: what nothing holds, by the last heartbeats."""
        return sum(
            attached.free
            for attached in self._attached.values()
            if self._offering.speaks(attached) and not attached.draining
        )

    def incarnations(self) -> list[Incarnation]:
        """All that are attached here."""
        return [attached.incarnation for attached in self._attached.values()]

    def present(self) -> list[Incarnation]:
        """Those attached here that may be given work, slots or not."""
        return [
            attached.incarnation
            for attached in self._attached.values()
            if self._offering.speaks(attached) and attached.stays
        ]

    def leaving(self) -> set[IncarnationId]:
        """Those attached here that take nothing more."""
        return {one.incarnation.id for one in self._attached.values() if not one.stays}

    def push(self, assigned: Assigned, known: CachedDefinition) -> bool:
        """Hand a run to its worker; False: its stream is gone, see `elsewhere`, or has come again
        and may not have it.
        """
        attached = self._of(assigned.run)
        namespace = known.definition.namespace
        if attached is None or not attached.incarnation.may_work_for(namespace):
            return False
        attached.pushed += known.definition.slots
        self._offering.changed(attached.incarnation.id)
        attached.line.assign(assigned, known)
        return True

    def demand(self, demand: Demand, asked: PlacementCriteria = NOTHING) -> None:
        """Tell each worker what waits here for it, if that is news. What it can't do it isn't
        told: slots granted for that would be idle, and missing elsewhere. `asked`: all that what
        waits looks at.
        """
        self._demand = demand
        self._audience.tell(demand, asked)

    # -- what calls ask --

    async def revoke(self, runs: Sequence[LiveRun], within: float = inf) -> list[At]:
        """Ask for these assignments back; returns when each is settled or past its `start_by`, or
        after `within` seconds. Gives those without an answer.
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
                attached = self._of(run)
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
        """Have its worker end a run. A broadcast has none: its children are told."""
        if run.incarnation is None:
            return
        attached = self._of(run)
        if attached is not None:
            attached.line.cancel(run.key, run.token, kill=kill)
        if attached is None or not self._offering.speaks(attached):
            self.elsewhere.cancel(run, kill=kill)

    def follow(self, run: LiveRun, *, on: bool) -> None:
        """Have its worker tell what it writes, or no more, if it is attached here."""
        if (attached := self._of(run)) is not None:
            attached.line.follow(run.key, run.token, on=on)

    def workers(self) -> list[WorkerView]:
        """Those attached here."""
        now = self._boot()
        return [attached.view(now) for attached in self._attached.values()]

    async def views(self, incarnations: Sequence[Incarnation]) -> list[WorkerView]:
        """How each of these stands, by the member that heard it last. Asks the other members about
        those that aren't attached here, or silent, all at once.
        """
        here = {one.incarnation.id: one for one in self._attached.values()}
        away = [
            one
            for one in incarnations
            if (attached := here.get(one.id)) is None or not self._offering.speaks(attached)
        ]
        told = await self.elsewhere.views(away) if away else ()
        now = self._boot()
        found = {view.incarnation.id: view for view in told}
        for one in incarnations:
            if (attached := here.get(one.id)) is not None:
                own, other = attached.view(now), found.get(one.id)
                found[one.id] = own if other is None or own.silent <= other.silent else other
        return [found.get(one.id) or unheard(one) for one in incarnations]

    def refusals(self, job: JobId, generation: int) -> dict[IncarnationId, str]:
        """Those attached here that have refused a run of it, as it was in this generation: why."""
        return {
            incarnation: said.why
            for incarnation, attached in self._attached.items()
            if (said := attached.unable.get(job)) is not None and said.generation == generation
        }

    def lists(self, run: LiveRun) -> bool:
        """Whether its worker is attached here, and its last heartbeat lists this assignment."""
        attached = self._of(run)
        return (
            attached is not None
            and attached.last_heartbeat is not None
            and attached.last_heartbeat.lists(run)
        )

    def lacks(self, run: LiveRun, since: datetime) -> bool:
        """Whether its worker, attached here, has received all that was pushed to it, and said by a
        heartbeat of later than `since` that it doesn't have this assignment.
        """
        attached = self._of(run)
        if (
            attached is None
            or attached.last_heartbeat is None
            or attached.received < attached.pushed
        ):
            return False
        return attached.last_heartbeat.at > since and not attached.last_heartbeat.lists(run)

    async def never_started(self, runs: Collection[LiveRun]) -> list[LiveRun]:
        """Those of which their live worker has said, by a heartbeat stamped after `start_by`,
        that it doesn't have this assignment. Asks the other members about workers that aren't
        attached here, or silent, once each.
        """
        said = {each.incarnation.id: each.last_heartbeat for each in self._attached.values()}
        speaking = {
            each.incarnation.id for each in self._attached.values() if self._offering.speaks(each)
        }
        return await self._hearing.never_started(
            runs, said, speaking, self.elsewhere, self._clock.now()
        )

    def attached(self, incarnation: IncarnationId) -> Attached | None:
        """Its stream here."""
        return self._attached.get(incarnation)

    def answers_to(self, ats: Iterable[At], within: float) -> AbstractContextManager[Question]:
        """Around the sending of these revokes: their answers, for so many seconds."""
        return self._revocations.asking(dict.fromkeys(ats, within))

    def _mark(self, incarnations: Iterable[IncarnationId], *, lost: bool) -> None:
        for incarnation in incarnations:
            if (attached := self._attached.get(incarnation)) is not None:
                attached.lost = lost
                self._offering.changed(incarnation)

    def _of(self, run: LiveRun) -> Attached | None:
        return None if run.incarnation is None else self._attached.get(run.incarnation)
