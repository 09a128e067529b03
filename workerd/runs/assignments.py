"""The runs in hand: takes assignments, arms, starts, stops, and reports their end.

    assign ─→ admission ─┬─ refused → said on the stream it came by
                         └─ taken → (`armed`) → start → `attempts` → (result store) → courier

Invariants
- Admission decides, here it is done: nothing runs that `Admission.start` hasn't let through, at
  the moment of its start.
- Each run is one asyncio task of `nursery`, named after it; when `run` ends nothing runs, but what
  was left behind and what swallows its cancel.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import NoReturn

from schedkit import failpoints
from schedkit.bounds import FRAME, problem
from schedkit.bounds.rules import Found
from schedkit.clock import boottime
from schedkit.set_aside import note, set_aside
from schedproto.v1 import worker_service_pb2 as pb
from workerd import messages
from workerd.core.admission import (
    Admission,
    AlreadyTaken,
    AssignmentState,
    NotTaken,
    NotYet,
    RejectReason,
    Started,
    Taken,
)
from workerd.core.capture import Piece
from workerd.core.cluster_time import JudgingClock, MemberTime
from workerd.core.ids import Address, AssignmentKey, Incarnation, RunId, Token
from workerd.core.lease_trust import WorkerLeaseTrust
from workerd.core.outcome import AttemptOutcome, AttemptVerdict, Cause, OutcomeReason
from workerd.delivery.result_sender import ResultSender
from workerd.delivery.result_upload import Parcel, ResultUpload
from workerd.executors.base import AttemptExecutor, dies_with_lease
from workerd.logs.log_tail import Expected
from workerd.metrics import WorkerMetrics
from workerd.runs.attempts import BUG, Attempts, HeldAssignment, Origin
from workerd.runs.delayed_start import Armed
from workerd.task_set import Nursery

log = logging.getLogger(__name__)

_TRUST_LOOK = 0.25
"""Seconds between two looks at whether trust has ended."""
_FORGET_EVERY = 1.0
_END_WITHIN = 2.0
"""Seconds that all that runs has to end when the worker does: a handler may swallow its cancel."""
MOST_LISTED = 21_500
"""Runs in hand and results that nobody has acknowledged: a heartbeat tells both (`MOST_SLOTS`). An
end frees its slot, so where members are slow to store them results gather beside what runs.
"""

BEFORE_START = failpoints.blocking("worker.before_start", None)
AFTER_END = failpoints.awaited("worker.after_end", None)


class HeldRuns:
    """Everything this worker has taken and not ended."""

    def __init__(
        self,
        worker: str,
        admission: Admission,
        trust: WorkerLeaseTrust,
        clock: JudgingClock,
        executors: Mapping[str, AttemptExecutor],
        courier: ResultSender,
        keeping: ResultUpload,
        metrics: WorkerMetrics,
    ) -> None:
        self._worker = worker
        self._attempts = Attempts(worker, trust, clock, executors, keeping)
        self._admission = admission
        self._trust = trust
        self._clock = clock
        self._courier = courier
        self._keeping = keeping
        self._metrics = metrics
        self._items: dict[AssignmentKey, HeldAssignment] = {}
        self._expected = Expected()
        self._armed = Armed(self._begin)
        self._nursery = Nursery()
        self._leaving = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.on_change: Callable[[], object] = lambda: None
        """Called when slots were taken or became free."""
        self.on_progress: Callable[[pb.Progress], object] = lambda _: None
        """Called when an attempt has got further."""
        self.hindered: Callable[[], str] = lambda: ""
        """Why nothing could be started, in words."""

    async def run(self) -> NoReturn:
        """Be the home of all runs until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._nursery.failed(), name="runs")
                group.create_task(self._watch_trust(), name="trust")
                group.create_task(self._forget(), name="forget")
        finally:
            self.leave()
            for item in self._items.values():
                item.stop.over = True
            await self._nursery.close(_END_WITHIN)
        raise AssertionError("its loops never return")

    # -- What members ask --

    def assign(
        self, assignments: Iterable[pb.Assignment], time: MemberTime, origin: Origin
    ) -> None:
        """Assignments have come by `origin`, whose member's time is `time`."""
        for assignment in assignments:
            if found := FRAME.violations(assignment):
                self._reject(assignment, found, origin)
            else:
                with set_aside("assignment", f"run {assignment.key.run_id}"):
                    self._assign(assignment, time, origin)
        self.on_change()

    def _reject(self, assignment: pb.Assignment, found: Found, origin: Origin) -> None:
        """One out of its bounds, of a newer member perhaps: another worker may be able to run it.
        If its key is good, its member is answered.
        """
        why = problem(found)
        note("assignment", f"run {assignment.key.run_id[:36]}", why)
        if not FRAME.violations(assignment.key):
            refused = NotTaken(
                RejectReason.UNABLE, Token(0), f"the assignment is out of bounds: {why}"
            )
            self._refuse(assignment.key, refused, origin)

    def _assign(self, assignment: pb.Assignment, time: MemberTime, origin: Origin) -> None:
        now = boottime()
        offer = messages.offer_of(assignment, time)
        action = messages.action_of(assignment)
        verdict = self._admission.offer(
            offer,
            self._clock.read(now),
            trusted=self._trusted(now),
            unable=self._attempts.objection(action, assignment),
        )
        match verdict:
            case Taken():
                tail = self._expected.came(offer.key)
                self._items[offer.key] = HeldAssignment(assignment, action, origin, tail=tail)
                self._idle.clear()
                self._begin(offer.key)
            case AlreadyTaken(state):
                if state is AssignmentState.ENDED:
                    self._courier.again(offer.key)
            case NotTaken():
                self._refuse(assignment.key, verdict, origin)

    def rearm(self, time: MemberTime) -> None:
        """The clock that all members follow was set, as one's `time` tells first: what is armed
        waits for its instant anew, by whatever stream it came.
        """
        for key, item in self._items.items():
            if self._admission.state(key) is AssignmentState.ARMED:
                until = time.surely_reached(messages.seconds(item.assignment.not_before))
                self._admission.rearm(key, until)
                self._armed.put(key, until)

    def revoke(self, message: pb.AssignmentKey) -> pb.RevokeAnswer:
        """Never start this one, unless it has started."""
        key = messages.key_of(message)
        revoked = self._admission.revoke(key, self._clock.read(boottime()))
        if revoked:
            self._drop(key)
        outcome = pb.RevokeAnswer.OUTCOME_REVOKED if revoked else pb.RevokeAnswer.OUTCOME_STARTED
        return pb.RevokeAnswer(key=message, outcome=outcome)

    def cancel(self, cancel: pb.Cancel, origin: Origin) -> None:
        """End this one; if it hasn't started, it never will."""
        key = messages.key_of(cancel.key)
        item = self._items.get(key)
        if self._admission.revoke(key, self._clock.read(boottime())):
            self._drop(key)
            refused = NotTaken(RejectReason.REVOKED, key.token, "cancelled before its start")
            self._refuse(cancel.key, refused, item.origin if item else origin)
        elif item is not None:
            item.stop.ask(Cause.CANCEL, kill=cancel.kill)
        else:
            self._courier.again(key)

    def follow(self, follow: pb.Follow, origin: Origin) -> None:
        """Somebody at that member reads along what an attempt writes, or nobody any more."""
        key = messages.key_of(follow.key)
        item = self._items.get(key)

        def hear(piece: Piece) -> None:
            origin.send_log(pb.LogChunk(key=follow.key, piece=messages.piece(piece)))

        if follow.stop:
            self._expected.unfollow(key, origin)
            if item is not None:
                item.tail.unfollow(origin)
        elif item is not None:
            item.tail.follow(origin, hear)
        else:
            self._expected.follow(key, origin, hear)

    def gone(self, origin: Origin) -> None:
        """That stream is over: nobody reads along by it."""
        self._expected.gone(origin)
        for item in self._items.values():
            item.tail.unfollow(origin)

    # -- What the worker's own life asks --

    def renew(self, incarnation: Incarnation) -> None:
        """A new registration: what waits was meant for the earlier one."""
        self._withdraw(self._admission.renew(incarnation))

    def leave(self) -> None:
        """Take and start nothing more, whatever anybody says; what waits is given back."""
        self._leaving = self._keeping.leaving = True
        self.drain(on=True)

    def drain(self, *, on: bool) -> None:
        """Take and start nothing more; what waits is given back. Or take work again, unless this
        worker is leaving.
        """
        self._admission.draining = on or self._leaving
        if self._admission.draining:
            self._withdraw(self._admission.withdraw_all(RejectReason.DRAINING))
        self.on_change()

    @property
    def runs(self) -> list[RunId]:
        """What is held, armed or runs."""
        return [key.run for key in self._items]

    def stop_all(self, cause: Cause, *, kill: bool = False) -> None:
        """Ask everything that runs to end; with `kill` at once."""
        for item in self._items.values():
            item.stop.ask(cause, kill=kill)

    def lease_lost(self) -> None:
        """Trust has ended, for a moment at least: end what dies with it."""
        for item in self._items.values():
            if dies_with_lease(item.assignment):
                item.stop.ask(Cause.LEASE_LOST)

    async def idle(self) -> None:
        """Return when nothing is held or runs."""
        await self._idle.wait()

    def acknowledged(self, key: AssignmentKey) -> None:
        """Its result has left the spool."""
        self._admission.acknowledged(key)

    @property
    def left(self) -> int:
        """How many more may be in hand at most, free slots or not."""
        return max(0, MOST_LISTED - len(self._items) - len(self._courier))

    @property
    def refuses(self) -> str:
        """Why no new work may be asked for, in words; empty: it would begin, and its results find
        room.
        """
        return self._courier.refuses or self._keeping.refuses or self.hindered()

    def holdings(self) -> Iterator[messages.Holding]:
        """What is held, armed or runs, or has ended and isn't told yet. What waits in the spool is
        the courier's to tell.
        """
        for key, item in self._items.items():
            state = self._admission.state(key)
            if item.ended:
                yield item.assignment.key, AssignmentState.ENDED, item.started_at
            elif state is not None:
                yield item.assignment.key, state, item.started_at

    def progress(self) -> Iterator[pb.Progress]:
        """How far what runs is, as far as it tells."""
        for item in self._items.values():
            if item.advance is not None and item.advance.told is not None:
                yield item.advance.told

    # -- How --

    def _begin(self, key: AssignmentKey) -> None:
        BEFORE_START()
        now = boottime()
        item = self._items[key]
        verdict = self._admission.start(key, now, self._clock.read(now), trusted=self._trusted(now))
        match verdict:
            case NotYet(until):
                self._armed.put(key, until)
            case NotTaken():
                self._drop(key)
                self._refuse(item.assignment.key, verdict, item.origin)
                self.on_change()
            case Started():
                item.started_at = self._start_date(item.assignment)
                name = f"run {key.run} {key.token}"
                item.task = self._nursery.start(self._attempt(key, item, item.started_at), name)

    async def _attempt(
        self, key: AssignmentKey, item: HeldAssignment, started_at: datetime
    ) -> None:
        self._metrics.started(item.action).inc()
        outcome = await self._attempts.run(key, item, self.on_progress)
        item.ended = True
        await AFTER_END()
        finished_at = self._attempts.date()
        try:
            await self._armed.let_start(armed=item.assignment.HasField("not_before"))
        finally:  # what has ended is told, though this is the end of the worker
            self._ended(key, item, outcome, started_at, finished_at)

    def _ended(
        self,
        key: AssignmentKey,
        item: HeldAssignment,
        outcome: AttemptOutcome,
        started_at: datetime,
        finished_at: datetime,
    ) -> None:
        """Free its slot and tell its end."""
        finished_at = max(started_at, finished_at)
        assignment, action, recording = item.assignment, item.action, item.tail.recording
        self._admission.ended(key)
        self._drop(key)
        self._metrics.ended(outcome.verdict.name, outcome.reason.name).inc()
        try:
            result = messages.result(
                key, assignment, self._worker, outcome, started_at, finished_at
            )
        except Exception as error:
            log.exception(BUG, action, key.run, extra=messages.said(assignment))
            told = (
                f"what the worker's executor of {action} gave can't be told: {type(error).__name__}"
            )
            outcome = AttemptOutcome(AttemptVerdict.FAILED, OutcomeReason.EXCEPTION, told)
            result = messages.result(
                key, assignment, self._worker, outcome, started_at, finished_at
            )
        parcel = self._keeping.parcel(key, assignment.namespace, recording, outcome)
        self._tell(result, item.origin.address, parcel)
        if recording and recording.begun and (parcel is None or parcel.recording is None):
            self._nursery.start(recording.discard(), f"discard output of run {key.run}")
        self.on_change()

    def _tell(self, result: pb.Result, issuer: Address, parcel: Parcel | None) -> None:
        """Its end; what is too large for a row is stored first."""
        if parcel is None:
            self._courier.put(result, issuer)
            return
        told = self._keeping.unkept(parcel, result)
        self._courier.put(told, issuer, held=True)
        self._nursery.start(self._keep(parcel, told), f"keep {parcel.key.run}")

    async def _keep(self, parcel: Parcel, told: pb.Result) -> None:
        self._courier.release(await self._keeping.keep(parcel, told))
        self.on_change()

    def _start_date(self, assignment: pb.Assignment) -> datetime:
        """Now; what was armed began once its instant had surely come, whatever likelier date
        the round trips of all members' streams give together.
        """
        at = self._attempts.date()
        if assignment.HasField("not_before"):
            at = max(at, messages.date_of(assignment.not_before))
        return at

    async def _watch_trust(self) -> NoReturn:
        while True:
            await asyncio.sleep(_TRUST_LOOK)
            if not self._trust.holds(boottime()):
                self.lease_lost()

    async def _forget(self) -> NoReturn:
        while True:
            await asyncio.sleep(_FORGET_EVERY)
            if self._clock.known:
                self._admission.forget(self._clock.read(boottime()))

    def _trusted(self, now: float) -> bool:
        return self._trust.holds(now) and self._clock.known

    def _refuse(self, key: pb.AssignmentKey, refused: NotTaken, origin: Origin) -> None:
        self._metrics.refusals.labels(refused.why.name).inc()
        if refused.why is RejectReason.GREATER_TOKEN_SEEN:
            log.error(
                "run %s came with token %d after %d",
                key.run_id,
                key.fencing_token,
                refused.greatest,
                extra={"run_id": key.run_id, "token": key.fencing_token},
            )
        origin.send_refusal(messages.refusal(key, refused))

    def _withdraw(self, withdrawn: Iterable[tuple[AssignmentKey, NotTaken]]) -> None:
        for key, refused in withdrawn:
            item = self._items[key]
            self._drop(key)
            self._refuse(item.assignment.key, refused, item.origin)

    def _drop(self, key: AssignmentKey) -> None:
        self._items.pop(key, None)
        self._armed.discard(key)
        if not self._items:
            self._idle.set()
