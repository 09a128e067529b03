"""The runs in hand: accept assignments, delay, start and stop runs, and report their results.

    assign ─→ admission ─┬─ rejected → answered on the stream that brought it
                         └─ accepted → (`delayed_start`) → `attempts` → (upload) → result sender

Invariants
- Admission decides: a run starts only if `Admission.start` permits it at that moment.
- Each run is one asyncio task, named after it. After `run` ends no run is running, except abandoned
  handlers and those that swallow their cancel.
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
from workerd.delivery.result_upload import ResultFiles, ResultUpload
from workerd.executors.base import AttemptExecutor, dies_with_lease
from workerd.logs.log_tail import Expected
from workerd.metrics import WorkerMetrics
from workerd.runs.attempts import BUG, Attempts, HeldAssignment, Origin
from workerd.runs.delayed_start import DelayedStarts
from workerd.task_set import TaskSet

log = logging.getLogger(__name__)

_TRUST_LOOK = 0.25
"""Seconds between two checks whether trust has ended."""
_FORGET_EVERY = 1.0
_END_WITHIN = 2.0
"""Seconds for running attempts to end with the worker: a handler may swallow its cancel."""
MOST_LISTED = 21_500
"""Runs in hand and unacknowledged results: a heartbeat lists both (`MOST_SLOTS`). An ended run
frees its slot, so results pile up beside running runs if members are slow to store them.
"""

BEFORE_START = failpoints.blocking("worker.before_start", None)
AFTER_END = failpoints.awaited("worker.after_end", None)


class HeldRuns:
    """All runs that this worker has accepted and that haven't ended."""

    def __init__(
        self,
        worker: str,
        admission: Admission,
        trust: WorkerLeaseTrust,
        clock: JudgingClock,
        executors: Mapping[str, AttemptExecutor],
        sender: ResultSender,
        upload: ResultUpload,
        metrics: WorkerMetrics,
    ) -> None:
        self._worker = worker
        self._attempts = Attempts(worker, trust, clock, executors, upload)
        self._admission = admission
        self._trust = trust
        self._clock = clock
        self._sender = sender
        self._upload = upload
        self._metrics = metrics
        self._items: dict[AssignmentKey, HeldAssignment] = {}
        self._expected = Expected()
        self._delayed = DelayedStarts(self._begin)
        self._tasks = TaskSet()
        self._leaving = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.on_change: Callable[[], object] = lambda: None
        """Called when slots were used or freed."""
        self.on_progress: Callable[[pb.Progress], object] = lambda _: None
        """Called when an attempt reports progress."""
        self.hindered: Callable[[], str] = lambda: ""
        """Returns why no run could be started; empty if one could."""

    async def run(self) -> NoReturn:
        """Run all attempts until canceled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._tasks.failed(), name="runs")
                group.create_task(self._watch_trust(), name="trust")
                group.create_task(self._forget(), name="forget")
        finally:
            self.drain_permanently()
            for item in self._items.values():
                item.stop.over = True
            await self._tasks.close(_END_WITHIN)
        raise AssertionError("its loops never return")

    # -- Requests of members --

    def assign(
        self, assignments: Iterable[pb.Assignment], time: MemberTime, origin: Origin
    ) -> None:
        """Handle assignments received over `origin`. `time`: of its member."""
        for assignment in assignments:
            if found := FRAME.violations(assignment) or _key_missing(assignment):
                self._reject(assignment, found, origin)
            else:
                with set_aside("assignment", f"run {assignment.key.run_id}"):
                    self._assign(assignment, time, origin)
        self.on_change()

    def _reject(self, assignment: pb.Assignment, found: Found, origin: Origin) -> None:
        """Reject an assignment out of bounds, if its key is valid. A newer member may have sent it,
        and another worker may be able to run it.
        """
        why = problem(found)
        note("assignment", f"run {assignment.key.run_id[:36]}", why)
        if not FRAME.violations(assignment.key):
            refused = NotTaken(RejectReason.UNABLE, Token(0), f"assignment is out of bounds: {why}")
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
                tail = self._expected.take_tail(offer.key)
                self._items[offer.key] = HeldAssignment(assignment, action, origin, tail=tail)
                self._idle.clear()
                self._begin(offer.key)
            case AlreadyTaken(state):
                if state is AssignmentState.ENDED:
                    self._sender.again(offer.key)
            case NotTaken():
                self._refuse(assignment.key, verdict, origin)

    def rearm(self, time: MemberTime) -> None:
        """Restart the timers of all pre-dispatched runs: the cluster's clock was set. `time`: of
        the member that showed it first.
        """
        for key, item in self._items.items():
            if self._admission.state(key) is AssignmentState.PRE_DISPATCHED:
                until = time.surely_reached(messages.seconds(item.assignment.not_before))
                self._admission.rearm(key, until)
                self._delayed.put(key, until)

    def revoke(self, message: pb.AssignmentKey) -> pb.RevokeAnswer:
        """Prevent the start of an assignment, unless it has started."""
        key = messages.key_of(message)
        revoked = self._admission.revoke(key, self._clock.read(boottime()))
        if revoked:
            self._drop(key)
        outcome = pb.RevokeAnswer.OUTCOME_REVOKED if revoked else pb.RevokeAnswer.OUTCOME_STARTED
        return pb.RevokeAnswer(key=message, outcome=outcome)

    def cancel(self, cancel: pb.Cancel, origin: Origin) -> None:
        """Cancel a run, or prevent its start."""
        key = messages.key_of(cancel.key)
        item = self._items.get(key)
        if self._admission.revoke(key, self._clock.read(boottime())):
            self._drop(key)
            refused = NotTaken(RejectReason.REVOKED, key.token, "canceled before it started")
            self._refuse(cancel.key, refused, item.origin if item else origin)
        elif item is not None:
            item.stop.ask(Cause.CANCEL, kill=cancel.kill)
        else:
            self._sender.again(key)

    def follow(self, follow: pb.Follow, origin: Origin) -> None:
        """Start or stop sending the output of an attempt to a member."""
        key = messages.key_of(follow.key)
        item = self._items.get(key)

        def send(piece: Piece) -> None:
            origin.send_log(pb.LogChunk(key=follow.key, piece=messages.piece(piece)))

        if follow.stop:
            self._expected.unfollow(key, origin)
            if item is not None:
                item.tail.unfollow(origin)
        elif item is not None:
            item.tail.follow(origin, send)
        else:
            self._expected.follow(key, origin, send)

    def remove_stream(self, origin: Origin) -> None:
        """Remove a closed stream from the followers."""
        self._expected.remove_follower(origin)
        for item in self._items.values():
            item.tail.unfollow(origin)

    # -- Requests of the worker itself --

    def renew(self, incarnation: Incarnation) -> None:
        """Change the incarnation; return assignments of the earlier one that haven't started."""
        self._withdraw(self._admission.renew(incarnation))

    def drain_permanently(self) -> None:
        """Drain permanently: undrain requests are ignored from now on."""
        self._leaving = self._upload.leaving = True
        self.drain(on=True)

    def drain(self, *, on: bool) -> None:
        """Accept and start no runs, and return those that haven't started. Or end the drain, unless
        this worker is shutting down.
        """
        self._admission.draining = on or self._leaving
        if self._admission.draining:
            self._withdraw(self._admission.withdraw_all(RejectReason.DRAINING))
        self.on_change()

    @property
    def runs(self) -> list[RunId]:
        """Runs that are held, pre-dispatched or running."""
        return [key.run for key in self._items]

    def stop_all(self, cause: Cause, *, kill: bool = False) -> None:
        """Request the end of all running attempts; with `kill` at once."""
        for item in self._items.values():
            item.stop.ask(cause, kill=kill)

    def lease_lost(self) -> None:
        """End attempts that end with the lease: trust has ended, at least briefly."""
        for item in self._items.values():
            if dies_with_lease(item.assignment):
                item.stop.ask(Cause.LEASE_LOST)

    async def idle(self) -> None:
        """Return when no run is held or running."""
        await self._idle.wait()

    def acknowledged(self, key: AssignmentKey) -> None:
        """Record that a result has left the spool."""
        self._admission.acknowledged(key)

    @property
    def remaining_capacity(self) -> int:
        """How many more runs may be in hand, independently of free slots."""
        return max(0, MOST_LISTED - len(self._items) - len(self._sender))

    @property
    def refusal_reason(self) -> str:
        """Why the worker requests no new work; empty if runs can start and results have room."""
        return self._sender.refusal_reason or self._upload.refusal_reason or self.hindered()

    def holdings(self) -> Iterator[messages.Holding]:
        """Return runs that are held, pre-dispatched, running, or ended without a spooled result.
        The result sender lists spooled results.
        """
        for key, item in self._items.items():
            state = self._admission.state(key)
            if item.ended:
                yield item.assignment.key, AssignmentState.ENDED, item.started_at
            elif state is not None:
                yield item.assignment.key, state, item.started_at

    def progress(self) -> Iterator[pb.Progress]:
        """Return the last reported progress of running attempts."""
        for item in self._items.values():
            if item.progress is not None and item.progress.reported is not None:
                yield item.progress.reported

    # -- Implementation --

    def _begin(self, key: AssignmentKey) -> None:
        BEFORE_START()
        now = boottime()
        item = self._items[key]
        verdict = self._admission.start(key, now, self._clock.read(now), trusted=self._trusted(now))
        match verdict:
            case NotYet(until):
                self._delayed.put(key, until)
            case NotTaken():
                self._drop(key)
                self._refuse(item.assignment.key, verdict, item.origin)
                self.on_change()
            case Started():
                item.started_at = self._start_date(item.assignment)
                name = f"run {key.run} {key.token}"
                item.task = self._tasks.start(self._attempt(key, item, item.started_at), name)

    async def _attempt(
        self, key: AssignmentKey, item: HeldAssignment, started_at: datetime
    ) -> None:
        self._metrics.started(item.action).inc()
        outcome = await self._attempts.run(key, item, self.on_progress)
        item.ended = True
        await AFTER_END()
        finished_at = self._attempts.date()
        try:
            await self._delayed.let_start(pre_dispatched=item.assignment.HasField("not_before"))
        finally:  # the result is reported even if the worker is ending
            self._record_end(key, item, outcome, started_at, finished_at)

    def _record_end(
        self,
        key: AssignmentKey,
        item: HeldAssignment,
        outcome: AttemptOutcome,
        started_at: datetime,
        finished_at: datetime,
    ) -> None:
        """Free the slot and report the result."""
        finished_at = max(started_at, finished_at)
        assignment, action, recording = item.assignment, item.action, item.tail.recording
        self._admission.end_execution(key)
        self._drop(key)
        self._metrics.ended_attempts(outcome.verdict.name, outcome.reason.name).inc()
        try:
            result = messages.result(
                key, assignment, self._worker, outcome, started_at, finished_at
            )
        except Exception as error:
            log.exception(BUG, action, key.run, extra=messages.log_fields(assignment))
            text = f"outcome of the {action} executor can't be encoded: {type(error).__name__}"
            outcome = AttemptOutcome(AttemptVerdict.FAILED, OutcomeReason.EXCEPTION, text)
            result = messages.result(
                key, assignment, self._worker, outcome, started_at, finished_at
            )
        parcel = self._upload.parcel(key, assignment.namespace, recording, outcome)
        self._report(result, item.origin.address, parcel)
        if recording and recording.has_output and (parcel is None or parcel.recording is None):
            self._tasks.start(recording.discard(), f"discard output of run {key.run}")
        self.on_change()

    def _report(self, result: pb.Result, issuer: Address, parcel: ResultFiles | None) -> None:
        """Report a result; data that is too large for a row is uploaded first."""
        if parcel is None:
            self._sender.put(result, issuer)
            return
        held = self._upload.unkept(parcel, result)
        self._sender.put(held, issuer, held=True)
        self._tasks.start(self._upload_result(parcel, held), f"upload {parcel.key.run}")

    async def _upload_result(self, parcel: ResultFiles, held: pb.Result) -> None:
        self._sender.release(await self._upload.upload_result(parcel, held))
        self.on_change()

    def _start_date(self, assignment: pb.Assignment) -> datetime:
        """Return the date of a start: now, but never before the due time of a pre-dispatched run,
        whose lower bound has passed.
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
        self._metrics.rejected.labels(refused.why.name).inc()
        if refused.why is RejectReason.GREATER_TOKEN_SEEN:
            log.error(
                "assignment with an old token rejected: run %s, token %d, greatest token seen %d",
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
        self._delayed.discard(key)
        if not self._items:
            self._idle.set()


def _key_missing(assignment: pb.Assignment) -> Found:
    return [] if assignment.HasField("key") else [("key", "is missing")]
