"""The runs in hand: accept assignments, delay, start and stop runs, and report their results.

    assign ─→ admission ─┬─ rejected → answered on the stream that brought it
                         └─ accepted → `delayed_start` → `attempts` → (upload) → result sender

Runs that arrive together are accepted, started and ended together: the batch is the unit, and a run
is a batch and a place in it. A single assignment is a batch of one.

Invariants
- Admission decides: a run starts only if `Admission.start` permits it at that moment.
- A run is one asyncio task, named after it: of the worker's loop, or of a handler's. After `run`
  ends no run is running, except abandoned handlers and those that swallow their cancel.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from typing import NoReturn

from schedkit import failpoints
from schedkit.bounds import FRAME, problem
from schedkit.bounds.common import SLOTS
from schedkit.bounds.frames import MOST_IN_BATCH
from schedkit.clock import boottime
from schedkit.set_aside import note, set_aside
from schedproto.v1 import worker_service_pb2 as pb
from workerd import messages
from workerd.assigned_batch import AssignedBatch, violations
from workerd.core.admission import (
    Admission,
    AssignmentState,
    NotTaken,
    RejectReason,
)
from workerd.core.capture import Piece
from workerd.core.cluster_time import JudgingClock, MemberTime
from workerd.core.ids import Address, AssignmentKey, Incarnation, RunId, Token
from workerd.core.lease_trust import WorkerLeaseTrust
from workerd.core.outcome import SUCCESS, AttemptOutcome, AttemptVerdict, Cause, OutcomeReason
from workerd.delivery.result_sender import ResultSender
from workerd.delivery.result_upload import ResultFiles, ResultUpload
from workerd.delivery.success_batch import SuccessBatch
from workerd.executors.base import ActionExecutor, BatchExecutor
from workerd.logs.log_tail import Expected
from workerd.metrics import WorkerMetrics
from workerd.runs.attempts import BEFORE_EXEC, BUG, Attempts, HeldAssignment, Origin
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

_BATCH = attrgetter("batch")
_SENDER = attrgetter("origin", "batch.incarnation")
_PLAIN = SUCCESS.verdict.name, SUCCESS.reason.name

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
        executors: Mapping[str, ActionExecutor],
        sender: ResultSender,
        upload: ResultUpload,
        metrics: WorkerMetrics,
    ) -> None:
        self._attempts = Attempts(
            worker,
            trust,
            clock,
            executors,
            upload,
            self._report_progress,
            self._ended,
        )
        self._admission = admission
        self._trust = trust
        self._clock = clock
        self._sender = sender
        self._upload = upload
        self._metrics = metrics
        self._items: dict[AssignmentKey, HeldAssignment] = {}
        self._ends: list[tuple[HeldAssignment, AttemptOutcome]] = []
        """Attempts that ended in this turn of the loop."""
        self._finishing: dict[int, Sequence[tuple[HeldAssignment, AttemptOutcome]]] = {}
        """Groups of them whose task hasn't reported them."""
        self._repeated: list[AssignmentKey] = []
        """Ended runs that members assigned again, or canceled."""
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
            self._finish_ended()
            for item in [*self._items.values()]:
                if item.task is None and item.started_at is not None:
                    item.stop.abandon()
                item.stop.over = True
            await self._tasks.close(_END_WITHIN)
            for ends in [*self._finishing.values()]:  # their tasks were canceled before they began
                self._record_ends(ends, self._attempts.now())
        raise AssertionError("its loops never return")

    # -- Requests of members --

    def assign(
        self,
        assignments: Iterable[pb.Assignment],
        time: MemberTime,
        origin: Origin,
        batches: Iterable[pb.RunBatch] = (),
    ) -> None:
        """Handle assignments received over `origin`. `time`: of its member."""
        for assignment in assignments:
            found = FRAME.violations(assignment)
            if found or not assignment.HasField("key"):
                why = problem(found) if found else "key: is missing"
                self._reject([assignment.key], why, origin)
            else:
                with set_aside("assignment", f"run {assignment.key.run_id}"):
                    self._take(AssignedBatch.of_one(assignment), time, origin)
        for message in batches:
            if found := violations(message):
                self._reject(_readable_keys(message), problem(found), origin)
            else:
                with set_aside("batch of assignments", f"job {message.common.job}"):
                    self._take(AssignedBatch.of(message), time, origin)
        self.on_change()

    def _reject(self, keys: Sequence[pb.AssignmentKey], why: str, origin: Origin) -> None:
        """Reject assignments out of bounds whose keys are valid. A newer member may have sent them,
        and another worker may be able to run them.
        """
        note("assignment", f"run {keys[0].run_id[:36] if keys else 'unknown'}", why)
        detail = f"assignment is out of bounds: {why}"
        refused = NotTaken(RejectReason.UNABLE, Token(0), detail)
        for key in keys:
            if not FRAME.violations(key):
                self._refuse(key, refused, origin)

    def _take(self, batch: AssignedBatch, time: MemberTime, origin: Origin) -> None:
        """Offer a batch to admission, and start the runs that were accepted when they are due."""
        now, offered = boottime(), batch.offered(time)
        answers = self._admission.offer(
            offered,
            self._clock.read(now),
            trusted=self._trusted(now),
            unable=self._attempts.objection(batch),
        )
        taken = batch.keys
        if answers:
            taken = [key for place, key in enumerate(taken) if place not in answers]
        for place, answer in answers.items():
            if isinstance(answer, NotTaken):
                self._refuse(batch.key(place), answer, origin)
            elif answer.state is AssignmentState.ENDED:
                self._repeated.append(batch.keys[place])
        for place, key in enumerate(batch.keys):
            if place not in answers:
                self._items[key] = HeldAssignment(batch, place, origin, self._attempts)
        if len(self._expected):
            for key in taken:
                if (tail := self._expected.take_tail(key)) is not None:
                    self._items[key].find_tail(tail)
        if taken:
            self._idle.clear()
            self._delayed.put(taken, now if offered.not_before is None else offered.not_before)

    def rearm(self, time: MemberTime) -> None:
        """Restart the timers of all pre-dispatched runs: the cluster's clock was set. `time`: of
        the member that showed it first.
        """
        for key, item in self._items.items():
            not_before = item.batch.not_before
            if not_before is not None and self._admission.state(key) is AssignmentState.HELD:
                until = time.surely_reached(not_before / 1e6)
                self._admission.rearm(key, until)
                self._delayed.put([key], until)

    def revoke(self, message: pb.AssignmentKey) -> pb.RevokeAnswer:
        """Prevent the start of an assignment, unless it has started."""
        key = messages.key_of(message)
        revoked = self._admission.revoke(key, self._clock.read(boottime()))
        if revoked:
            self._drop([key])
        outcome = pb.RevokeAnswer.OUTCOME_REVOKED if revoked else pb.RevokeAnswer.OUTCOME_STARTED
        return pb.RevokeAnswer(key=message, outcome=outcome)

    def cancel(self, cancel: pb.Cancel, origin: Origin) -> None:
        """Cancel a run, or prevent its start."""
        key = messages.key_of(cancel.key)
        item = self._items.get(key)
        if self._admission.revoke(key, self._clock.read(boottime())):
            self._drop([key])
            refused = NotTaken(RejectReason.REVOKED, key.token, "canceled before it started")
            self._refuse(cancel.key, refused, item.origin if item else origin)
        elif item is not None:
            item.stop.ask(Cause.CANCEL, kill=cancel.kill)
        else:
            self._repeated.append(key)

    def send_again(self) -> None:
        """Send the results of ended runs that a frame has assigned again, or canceled."""
        if self._repeated:
            repeated, self._repeated = self._repeated, []
            self._sender.again(repeated)

    def follow(self, follow: pb.Follow, origin: Origin) -> None:
        """Start or stop sending the output of an attempt to a member."""
        key = messages.key_of(follow.key)
        item = self._items.get(key)

        def send(piece: Piece) -> None:
            origin.send_log(pb.LogChunk(key=follow.key, piece=messages.piece(piece)))

        if follow.stop:
            self._expected.unfollow(key, origin)
            if item is not None:
                item.unfollow(origin)
        elif item is not None:
            item.find_tail().follow(origin, send)
        else:
            self._expected.follow(key, origin, send)

    def remove_stream(self, origin: Origin) -> None:
        """Remove a closed stream from the followers."""
        self._expected.remove_follower(origin)
        for item in self._items.values():
            item.unfollow(origin)

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
        """Runs that are held or running."""
        return [key.run for key in self._items]

    def stop_all(self, cause: Cause, *, kill: bool = False) -> None:
        """Request the end of all running attempts; with `kill` at once."""
        for item in self._items.values():
            item.stop.ask(cause, kill=kill)

    def lease_lost(self) -> None:
        """End started attempts that end with the lease: trust has ended, at least briefly.
        Admission judges the trust of the others when they start.
        """
        for item in self._items.values():
            if item.batch.dies_with_lease and item.started_at is not None:
                item.stop.ask(Cause.LEASE_LOST)

    async def idle(self) -> None:
        """Return when no run is held or running."""
        await self._idle.wait()

    def acknowledged(self, keys: Iterable[AssignmentKey]) -> None:
        """Record that results have left the spool."""
        self._admission.acknowledged(keys)

    @property
    def remaining_capacity(self) -> int:
        """How many more runs may be in hand, independently of free slots."""
        return max(0, MOST_LISTED - len(self._items) - len(self._sender))

    @property
    def refusal_reason(self) -> str:
        """Why the worker requests no new work; empty if runs can start and results have room."""
        return self._sender.refusal_reason or self._upload.refusal_reason or self.hindered()

    def holdings(self) -> Iterator[messages.Holding]:
        """Return runs that are held, running, or ended without a spooled result.
        The result sender lists spooled results.
        """
        for key, item in self._items.items():
            state = AssignmentState.ENDED if item.ended else self._admission.state(key)
            if state is not None:
                yield key, item.batch.scheduled[item.place], state, item.started_at

    def progress(self) -> Iterator[pb.Progress]:
        """Return the last reported progress of running attempts."""
        for item in self._items.values():
            if item.progress is not None and item.progress.reported is not None:
                yield item.progress.reported

    # -- Implementation --

    def _begin(self, keys: Sequence[AssignmentKey]) -> None:
        """Start runs that are held and due."""
        BEFORE_START()
        now = boottime()
        answers = self._admission.start(
            keys, now, self._clock.read(now), trusted=self._trusted(now)
        )
        if answers:
            keys = [key for key in keys if key not in answers]
            later: dict[float, list[AssignmentKey]] = {}
            for key, answer in answers.items():
                if isinstance(answer, NotTaken):
                    self._return(key, answer)
                else:
                    later.setdefault(answer.until, []).append(key)
            for until, waiting in later.items():
                self._delayed.put(waiting, until)
            self.on_change()
        if keys:
            self._start([self._items[key] for key in keys])

    def _start(self, items: Sequence[HeldAssignment]) -> None:
        """Begin the attempts of runs that admission has started."""
        now = self._attempts.now()
        together: list[tuple[BatchExecutor, AssignedBatch, list[HeldAssignment]]] = []
        self._attempts.limit(items)
        for batch, group in groupby(items, _BATCH):
            # Never before the due time of pre-dispatched runs, whose lower bound has passed.
            started_at = max(now, batch.not_before or 0)
            runs = [*group]
            for item in runs:
                item.started_at = started_at
            self._metrics.started(batch.action).inc(len(runs))
            if (executor := self._attempts.many(batch)) is not None:
                together.append((executor, batch, runs))
                continue
            for item in runs:
                name = f"run {item.key.run} {item.key.token}"
                item.task = self._tasks.start(self._attempt(item), name)
        if together:
            self._tasks.start(self._begin_many(together), f"begin runs of {len(together)} batches")

    async def _begin_many(
        self, together: Iterable[tuple[BatchExecutor, AssignedBatch, Sequence[HeldAssignment]]]
    ) -> None:
        await BEFORE_EXEC()
        for executor, batch, items in together:
            self._attempts.begin(executor, batch, items)

    async def _attempt(self, item: HeldAssignment) -> None:
        await self._finish([(item, await self._attempts.run(item))])

    def _report_progress(self, progress: pb.Progress) -> None:
        self.on_progress(progress)

    def _ended(self, item: HeldAssignment, outcome: AttemptOutcome) -> None:
        """Finish an attempt of a batch, together with others that end in this turn of the loop."""
        if item.ended or item.stop.over:
            return
        item.close()
        if not self._ends:
            asyncio.get_running_loop().call_soon(self._finish_ended)
        self._ends.append((item, outcome))

    def _finish_ended(self) -> None:
        ends, self._ends = self._ends, []
        due = [each for each in ends if each[0].batch.not_before is None]
        delayed = [each for each in ends if each[0].batch.not_before is not None]
        for group in (due, delayed):
            if group:
                self._finishing[id(group)] = group
                self._tasks.start(self._finish(group), f"end of {len(group)} runs")

    async def _finish(self, ends: Sequence[tuple[HeldAssignment, AttemptOutcome]]) -> None:
        """Report the ends of attempts of which all or none were pre-dispatched."""
        await AFTER_END()
        finished_at = self._attempts.now()
        judged = [
            (item, outcome if outcome is SUCCESS else self._attempts.judged(item, outcome))
            for item, outcome in ends
        ]
        pre_dispatched = ends[0][0].batch.not_before is not None
        try:
            await self._delayed.let_start(pre_dispatched=pre_dispatched)
        finally:  # the results are reported even if the worker is ending
            self._finishing.pop(id(ends), None)
            self._record_ends(judged, finished_at)

    def _record_ends(
        self, ends: Sequence[tuple[HeldAssignment, AttemptOutcome]], finished_at: int
    ) -> None:
        """Free the slots and report the results."""
        keys = [item.key for item, _ in ends]
        self._admission.end_executions(keys)
        self._drop(keys)
        plain = [item for item, outcome in ends if outcome is SUCCESS]
        if plain:
            self._metrics.ended_attempts(*_PLAIN).inc(len(plain))
            for (origin, _), group in groupby(plain, _SENDER):
                runs = [*group]
                started = [item.started_at or finished_at for item in runs]
                successes = SuccessBatch(
                    runs[0].batch.incarnation,
                    [item.key for item in runs],
                    [item.batch.scheduled[item.place] for item in runs],
                    started,
                    [max(each, finished_at) for each in started],
                )
                self._sender.put_successes(successes, origin.address)
        if len(plain) < len(ends):
            for item, outcome in ends:
                if outcome is not SUCCESS:
                    with set_aside("result", f"run {item.key.run}"):
                        self._record_end(item, outcome, finished_at)
        self.on_change()

    def _record_end(self, item: HeldAssignment, outcome: AttemptOutcome, finished_at: int) -> None:
        """Report a result that isn't a plain success."""
        batch, action, recording = item.batch, item.batch.action, item.recording
        self._metrics.ended_attempts(outcome.verdict.name, outcome.reason.name).inc()
        try:
            result = self._result(item, outcome, finished_at)
            parcel = self._upload.parcel(item.key, batch.common.namespace, recording, outcome)
        except Exception as error:
            log.exception(BUG, action, item.key.run, extra=batch.log_fields(item.place))
            text = f"the result of the {action} executor can't be encoded: {type(error).__name__}"
            outcome = AttemptOutcome(AttemptVerdict.FAILED, OutcomeReason.EXCEPTION, text)
            result, parcel = self._result(item, outcome, finished_at), None
        self._report(result, item.origin.address, parcel)
        self._discard(item, parcel)

    def _result(self, item: HeldAssignment, outcome: AttemptOutcome, finished_at: int) -> pb.Result:
        started_at = item.started_at or finished_at
        key, batch = item.key, item.batch
        return messages.result(
            key,
            batch.key(item.place),
            batch.incarnation,
            item.worker,
            outcome,
            started_at,
            max(started_at, finished_at),
        )

    def _discard(self, item: HeldAssignment, parcel: ResultFiles | None) -> None:
        """Remove the recording of the output, unless it is uploaded."""
        recording = item.recording
        if recording and recording.has_output and (parcel is None or parcel.recording is None):
            self._tasks.start(recording.discard(), f"discard output of run {item.key.run}")

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
                "assignment rejected, its fencing token is outdated: run %s, token %d, greatest"
                " token seen %d",
                key.run_id,
                key.fencing_token,
                refused.greatest,
                extra={"run_id": key.run_id, "token": key.fencing_token},
            )
        origin.send_refusal(messages.refusal(key, refused))

    def _withdraw(self, withdrawn: Iterable[tuple[AssignmentKey, NotTaken]]) -> None:
        for key, refused in withdrawn:
            self._return(key, refused)

    def _return(self, key: AssignmentKey, refused: NotTaken) -> None:
        """Return a run that hasn't started to its member."""
        item = self._items[key]
        self._drop([key])
        self._refuse(item.batch.key(item.place), refused, item.origin)

    def _drop(self, keys: Iterable[AssignmentKey]) -> None:
        for key in keys:
            self._items.pop(key, None)
        self._delayed.discard(keys)
        if not self._items:
            self._idle.set()


def slots_of(assignments: Iterable[pb.Assignment], batches: Iterable[pb.RunBatch] = ()) -> int:
    """Return the slots of assignments, valid or not, as their member counts them."""
    slots = sum([min(max(each.slots, 1), SLOTS.high) for each in assignments])
    for batch in batches:
        runs = min(len(batch.fencing_tokens), MOST_IN_BATCH)
        slots += runs * min(max(batch.common.slots, 1), SLOTS.high)
    return slots


def _readable_keys(message: pb.RunBatch) -> Sequence[pb.AssignmentKey]:
    """Return the keys of a batch out of bounds, as far as its columns have entries."""
    count = min(len(message.run_ids) // 16, len(message.fencing_tokens), len(message.scheduled_at))
    count = min(count, MOST_IN_BATCH)
    keys = messages.keys_of(message.run_ids[: 16 * count], message.fencing_tokens[:count])
    found = []
    for key, scheduled in zip(keys, message.scheduled_at, strict=False):
        with suppress(ValueError):  # a time that no message holds
            found.append(messages.key_message(key, scheduled))
    return found
