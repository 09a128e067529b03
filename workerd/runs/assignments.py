"""The runs in hand: accept assignments, delay, start and stop runs, and report their results.

    assign ─→ admission ─┬─ rejected → answered on the stream that brought it
                         └─ accepted → `delayed_start` → `attempts` → (upload) → result sender

Runs that arrive together are accepted, started and ended together: the batch is the unit, and a run
is a place in its columns. A single assignment is a batch of one.

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
from typing import NoReturn, TypeAlias, cast

from schedkit import failpoints
from schedkit.bounds import FRAME, problem
from schedkit.bounds.rules import GREATEST_SLOTS
from schedkit.bounds.tables import MOST_IN_BATCH
from schedkit.clock import boottime
from schedkit.set_aside import note, set_aside
from schedproto.v1 import worker_service_pb2 as pb
from workerd import messages
from workerd.batches import AssignedBatch, run_violations
from workerd.core.admission import (
    ENDING,
    HELD,
    RUNNING,
    Admission,
    AssignmentState,
    NotTaken,
    NotYet,
    OfferedBatch,
    RejectReason,
    fill,
)
from workerd.core.capture import Piece
from workerd.core.cluster_time import JudgingClock, MemberTime
from workerd.core.ids import Address, AssignmentKey, Incarnation, RunId, Token
from workerd.core.lease_trust import WorkerLeaseTrust
from workerd.core.outcome import SUCCESS, AttemptOutcome, AttemptVerdict, Cause, OutcomeReason
from workerd.delivery.result_sender import ResultSender
from workerd.delivery.result_upload import ResultFiles, ResultUpload
from workerd.executors.base import ActionExecutor
from workerd.frame_queue import MemberFrameQueue
from workerd.logs.log_tail import Expected
from workerd.metrics import WorkerMetrics
from workerd.runs.attempts import BEFORE_EXEC, BUG, Attempts, HeldAssignment, HeldBatch
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

End: TypeAlias = tuple[HeldBatch, Sequence[int], AttemptOutcome]
"""Attempts of a batch that ended with the same outcome, by place."""
Begun: TypeAlias = tuple[ActionExecutor, HeldBatch, Sequence[int]]
_LISTED = dict(zip((HELD, RUNNING, ENDING), AssignmentState, strict=True))
"""Runs that use slots, as members see them."""
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
        self.attempts = Attempts(worker, trust, clock, executors, upload, self._ended)
        self.admission = admission
        self.trust = trust
        self.clock = clock
        self.sender = sender
        self._upload = upload
        self._metrics = metrics
        self._batches: dict[HeldBatch, bool] = {}
        """Batches with runs that use slots."""
        self._count = 0
        """Number of these runs."""
        self._ends: list[End] = []
        """Attempts that ended in this turn of the loop."""
        self._finishing: dict[int, Sequence[End]] = {}
        """Groups of them whose task hasn't reported them."""
        self._repeated: list[AssignmentKey] = []
        """Ended runs that members assigned again, or canceled."""
        self._expected = Expected()
        self._delayed = DelayedStarts[HeldBatch](self._begin)
        self._tasks = TaskSet()
        self._leaving = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.on_change: Callable[[], object] = lambda: None
        """Called when slots were used or freed."""
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
            for batch in [*self._batches]:
                for place in batch.places(RUNNING):
                    item = batch.attempt(place)
                    if item.task is None:
                        item.stop.abandon()
                    item.stop.over = True
            await self._tasks.close(_END_WITHIN)
            for ends in [*self._finishing.values()]:  # their tasks were canceled before they began
                self._record_ends(ends, self.attempts.now())
        raise AssertionError("unreachable: the loops of a stream end only with an error")

    # -- Requests of members --

    def assign(
        self,
        assignments: Iterable[pb.Assignment],
        time: MemberTime,
        origin: MemberFrameQueue,
        batches: Iterable[pb.RunBatch] = (),
    ) -> None:
        for assignment in assignments:
            found = FRAME.violations(assignment)
            if found or not assignment.HasField("key"):
                why = problem(found) if found else "key: is missing"
                self._reject([assignment.key], why, origin)
            else:
                with set_aside("assignment", f"run {assignment.key.run_id}"):
                    self._take(AssignedBatch.of_one(assignment), time, origin)
        for message in batches:
            if found := run_violations(message):
                self._reject(_readable_keys(message), problem(found), origin)
            else:
                with set_aside("batch of assignments", f"job {message.common.job}"):
                    self._take(AssignedBatch.of(message), time, origin)
        self.on_change()

    def _reject(self, keys: Sequence[pb.AssignmentKey], why: str, origin: MemberFrameQueue) -> None:
        """Reject assignments out of bounds whose keys are valid. A newer member may have sent them,
        and another worker may be able to run them.
        """
        note("assignment", f"run {keys[0].run_id[:36] if keys else 'unknown'}", why)
        detail = f"assignment is out of bounds: {why}"
        refused = NotTaken(RejectReason.UNABLE, Token(0), detail)
        for key in keys:
            if not FRAME.violations(key):
                self._refuse(key, refused, origin)

    def _take(self, assigned: AssignedBatch, time: MemberTime, origin: MemberFrameQueue) -> None:
        now, batch = boottime(), HeldBatch(assigned, origin, self.attempts, time)
        answers = self.admission.offer(
            batch,
            self.clock.read(now),
            trusted=self._trusted(now),
            unable=self.attempts.objection(assigned),
        )
        for place, answer in answers.items():
            if isinstance(answer, NotTaken):
                self._refuse(assigned.key(place), answer, origin)
            elif answer.state is AssignmentState.ENDED:
                self._repeated.append(batch.keys[place])
        if not batch.active:
            return
        if len(self._expected):
            for place in batch.places(HELD):
                if (tail := self._expected.take_tail(batch.keys[place])) is not None:
                    batch.attempt(place).find_tail(tail)
        self._batches[batch] = True
        self._count += batch.active
        self._idle.clear()
        self._delayed.put(batch, now if batch.not_before is None else batch.not_before)

    def rearm(self, time: MemberTime) -> None:
        """Restart the timers of all pre-dispatched runs: the cluster's clock was set. `time`: of
        the member that showed it first.
        """
        for batch in self._batches:
            if (not_before := batch.assigned.not_before) is not None and batch.places(HELD):
                batch.not_before = time.surely_reached(not_before / 1e6)
                self._delayed.put(batch, batch.not_before)

    def revoke(self, message: pb.AssignmentKey) -> pb.RevokeAnswer:
        key = messages.key_of(message)
        batch = self._find(key)
        revoked = self.admission.revoke(key, self.clock.read(boottime()))
        if revoked and batch is not None:
            self._drop(batch, [batch.place(key)])
        outcome = pb.RevokeAnswer.OUTCOME_REVOKED if revoked else pb.RevokeAnswer.OUTCOME_STARTED
        return pb.RevokeAnswer(key=message, outcome=outcome)

    def cancel(self, cancel: pb.Cancel, origin: MemberFrameQueue) -> None:
        key = messages.key_of(cancel.key)
        batch = self._find(key)
        if self.admission.revoke(key, self.clock.read(boottime())):
            if batch is not None:
                self._drop(batch, [batch.place(key)])
                origin = batch.origin
            refused = NotTaken(RejectReason.REVOKED, key.token, "canceled before it started")
            self._refuse(cancel.key, refused, origin)
        elif batch is not None and batch.states[batch.place(key)] == RUNNING:
            batch.attempt(batch.place(key)).stop.ask(Cause.CANCEL, kill=cancel.kill)
        else:
            self._repeated.append(key)

    def _find(self, key: AssignmentKey) -> HeldBatch | None:
        return cast("HeldBatch | None", self.admission.find(key))

    def send_again(self) -> None:
        """Send the results of ended runs that a frame has assigned again, or canceled."""
        if self._repeated:
            repeated, self._repeated = self._repeated, []
            self.sender.again(repeated)

    def follow(self, follow: pb.Follow, origin: MemberFrameQueue) -> None:
        key = messages.key_of(follow.key)
        batch = self._find(key)
        item = None if batch is None else batch.attempt(batch.place(key))

        def send(piece: Piece) -> None:
            origin.send_log(pb.LogChunk(key=follow.key, piece=messages.piece(piece)))

        if follow.stop:
            self._expected.unfollow(key, origin)
            if item is not None and item.tail is not None:
                item.tail.unfollow(origin)
        elif item is not None:
            item.find_tail().follow(origin, send)
        else:
            self._expected.follow(key, origin, send)

    def remove_stream(self, origin: MemberFrameQueue) -> None:
        """Remove a closed stream from the followers."""
        self._expected.remove_follower(origin)
        for item in self._attempts_in_hand():
            if item.tail is not None:
                item.tail.unfollow(origin)

    def _attempts_in_hand(self) -> Iterator[HeldAssignment]:
        for batch in self._batches:
            yield from cast("list[HeldAssignment]", [*batch.attempts.values()])

    # -- Requests of the worker itself --

    def renew(self, incarnation: Incarnation) -> None:
        """Change the incarnation; return assignments of the earlier one that haven't started."""
        self._withdraw(self.admission.renew(incarnation), RejectReason.OTHER_INCARNATION)

    def drain_permanently(self) -> None:
        """Drain permanently: undrain requests are ignored from now on."""
        self._leaving = self._upload.leaving = True
        self.drain(on=True)

    def drain(self, *, on: bool) -> None:
        """Accept and start no runs, and return those that haven't started. Or end the drain, unless
        this worker is shutting down.
        """
        self.admission.draining = on or self._leaving
        if self.admission.draining:
            self._withdraw(self.admission.withdraw_all(), RejectReason.DRAINING)
        self.on_change()

    @property
    def runs(self) -> list[RunId]:
        return [key.run for key, *_ in self.holdings()]

    def stop_all(self, cause: Cause, *, kill: bool = False) -> None:
        for batch in self._batches:
            for place in (*batch.places(HELD), *batch.places(RUNNING)):
                batch.attempt(place).stop.ask(cause, kill=kill)

    def lease_lost(self) -> None:
        """End started attempts that end with the lease: trust has ended, at least briefly.
        Admission judges the trust of the others when they start.
        """
        for batch in self._batches:
            if batch.assigned.dies_with_lease:
                for place in batch.places(RUNNING):
                    batch.attempt(place).stop.ask(Cause.LEASE_LOST)

    async def idle(self) -> None:
        await self._idle.wait()

    def acknowledged(self, keys: Iterable[AssignmentKey]) -> None:
        self.admission.acknowledged(keys)

    @property
    def remaining_capacity(self) -> int:
        """How many more runs may be in hand, independently of free slots."""
        return max(0, MOST_LISTED - self._count - len(self.sender))

    @property
    def refusal_reason(self) -> str:
        """Why the worker requests no new work; empty if runs can start and results have room."""
        return self.sender.refusal_reason or self._upload.refusal_reason or self.hindered()

    def holdings(self) -> Iterator[messages.Holding]:
        """Return runs that are held, running, or ended without a spooled result.
        The result sender lists spooled results.
        """
        for batch in self._batches:
            scheduled, started_at = batch.assigned.scheduled, batch.started_at
            for place, state in enumerate(batch.states):
                if (listed := _LISTED.get(state)) is not None:
                    yield batch.keys[place], scheduled[place], listed, started_at[place] or None

    def progress(self) -> Iterator[pb.Progress]:
        for item in self._attempts_in_hand():
            if item.progress is not None and item.progress.reported is not None:
                yield item.progress.reported

    # -- Implementation --

    def _begin(self, parts: Sequence[tuple[HeldBatch, range]]) -> None:
        BEFORE_START()
        now = boottime()
        judged, trusted = self.clock.read(now), self._trusted(now)
        together: list[Begun] = []
        for batch, part in parts:
            places, answer = self.admission.start(batch, part, now, judged, trusted=trusted)
            if answer is None and places:
                self._start(batch, places, together)
            elif isinstance(answer, NotYet):
                self._delayed.put(batch, answer.until)
            elif answer is not None:
                self._withdraw([(batch, places)], answer)
                self.on_change()
        if together:
            self._tasks.start(self._begin_many(together), f"begin runs of {len(together)} batches")

    def _start(self, batch: HeldBatch, places: Sequence[int], together: list[Begun]) -> None:
        self.attempts.start(batch, places)
        self._metrics.started(batch.assigned.action).inc(len(places))
        if (executor := self.attempts.many(batch.assigned)) is not None:
            together.append((executor, batch, places))
            return
        for place in places:
            item = batch.attempt(place)
            name = f"run {item.key.run} {item.key.token}"
            item.task = self._tasks.start(self._attempt(item), name)

    async def _begin_many(self, together: Iterable[Begun]) -> None:
        await BEFORE_EXEC()
        for executor, batch, places in together:
            self.attempts.begin(executor, batch, places)

    async def _attempt(self, item: HeldAssignment) -> None:
        await self._finish([(item.held, [item.place], await self.attempts.run(item))])

    def _ended(self, batch: HeldBatch, places: Sequence[int], outcome: AttemptOutcome) -> None:
        """Finish attempts of a batch, together with others that end in this turn of the loop."""
        if places is not batch.succeeded:
            places = [place for place in places if self._end(batch, place)]
            if not places:
                return
        if not self._ends:
            asyncio.get_running_loop().call_soon(self._finish_ended)
        self._ends.append((batch, places, outcome))

    def _end(self, batch: HeldBatch, place: int) -> bool:
        """End an attempt. Return False if it has ended, or ends with the worker."""
        if batch.states[place] != RUNNING:
            return False
        if place in batch.attempts:
            item = batch.attempt(place)
            if item.stop.over:
                return False
            item.close()
        batch.states[place] = ENDING
        return True

    def _finish_ended(self) -> None:
        ends, self._ends = self._ends, []
        groups: dict[bool, list[End]] = {}
        for end in ends:
            batch, places, _ = end
            if places is batch.succeeded:
                batch.succeeded = []
                fill(batch.states, places, ENDING)
            groups.setdefault(batch.not_before is not None, []).append(end)
        for group in groups.values():
            self._finishing[id(group)] = group
            self._tasks.start(self._finish(group), f"end of runs of {len(group)} batches")

    async def _finish(self, ends: Sequence[End]) -> None:
        """Report the ends of attempts of which all or none were pre-dispatched."""
        await AFTER_END()
        finished_at = self.attempts.now()
        judged: list[End] = []
        for batch, places, outcome in ends:
            if outcome is SUCCESS:
                judged.append((batch, places, outcome))
            else:
                judged += [
                    (batch, [place], self.attempts.judged(batch, place, outcome))
                    for place in places
                ]
        pre_dispatched = ends[0][0].not_before is not None
        try:
            await self._delayed.let_start(pre_dispatched=pre_dispatched)
        finally:  # the results are reported even if the worker is ending
            self._finishing.pop(id(ends), None)
            self._record_ends(judged, finished_at)

    def _record_ends(self, ends: Sequence[End], finished_at: int) -> None:
        for batch, places, outcome in ends:
            self.admission.end_executions(batch, places)
            if outcome is SUCCESS:
                self._metrics.ended_attempts(*_PLAIN).inc(len(places))
                successes = batch.successes(places, finished_at)
                self.sender.put_successes(successes, batch.origin.address)
            else:
                for place in places:
                    with set_aside("result", f"run {batch.keys[place].run}"):
                        self._record_end(batch.attempt(place), outcome, finished_at)
            self._drop(batch, places)
        self.on_change()

    def _record_end(self, item: HeldAssignment, outcome: AttemptOutcome, finished_at: int) -> None:
        batch, action = item.batch, item.batch.action
        recording = None if item.tail is None else item.tail.recording
        self._metrics.ended_attempts(outcome.verdict.name, outcome.reason.name).inc()
        try:
            result = self._result(item, outcome, finished_at)
            parcel = self._upload.parcel(item.key, batch.common.namespace, recording, outcome)
        except Exception as error:
            log.exception(BUG, action, item.key.run, extra=batch.log_fields(item.place))
            text = f"the result of the {action} executor can't be encoded: {type(error).__name__}"
            outcome = AttemptOutcome(AttemptVerdict.FAILED, OutcomeReason.EXCEPTION, text)
            result, parcel = self._result(item, outcome, finished_at), None
        self._report(result, item.held.origin.address, parcel)
        if recording and recording.has_output and (parcel is None or parcel.recording is None):
            self._tasks.start(recording.discard(), f"discard output of run {item.key.run}")

    def _result(self, item: HeldAssignment, outcome: AttemptOutcome, finished_at: int) -> pb.Result:
        key, batch = item.key, item.batch
        started_at = item.held.started_at[item.place] or finished_at
        return messages.result(
            key,
            batch.key(item.place),
            batch.incarnation,
            item.worker,
            outcome,
            started_at,
            max(started_at, finished_at),
        )

    def _report(self, result: pb.Result, issuer: Address, parcel: ResultFiles | None) -> None:
        """Report a result; data that is too large for a row is uploaded first."""
        if parcel is None:
            self.sender.put(result, issuer)
            return
        held = self._upload.unkept(parcel, result)
        self.sender.put(held, issuer, held=True)
        self._tasks.start(self._upload_result(parcel, held), f"upload {parcel.key.run}")

    async def _upload_result(self, parcel: ResultFiles, held: pb.Result) -> None:
        self.sender.release(await self._upload.upload_result(parcel, held))
        self.on_change()

    async def _watch_trust(self) -> NoReturn:
        while True:
            await asyncio.sleep(_TRUST_LOOK)
            if not self.trust.holds(boottime()):
                self.lease_lost()

    async def _forget(self) -> NoReturn:
        while True:
            await asyncio.sleep(_FORGET_EVERY)
            if self.clock.known:
                self.admission.forget(self.clock.read(boottime()))

    def _trusted(self, now: float) -> bool:
        return self.trust.holds(now) and self.clock.known

    def _refuse(self, key: pb.AssignmentKey, refused: NotTaken, origin: MemberFrameQueue) -> None:
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

    def _withdraw(
        self, withdrawn: Iterable[tuple[OfferedBatch, Sequence[int]]], why: RejectReason
    ) -> None:
        """Return runs that haven't started to their member."""
        for offered, places in withdrawn:
            batch = cast("HeldBatch", offered)
            for place in places:
                refused = NotTaken(why, batch.keys[place].token)
                self._refuse(batch.assigned.key(place), refused, batch.origin)
            self._drop(batch, places)

    def _drop(self, batch: HeldBatch, places: Sequence[int]) -> None:
        """Forget runs that no longer use slots."""
        self._count -= len(places)
        if batch.attempts:
            for place in places:
                if place in batch.attempts:
                    batch.attempt(place).close()
                    del batch.attempts[place]
        if not batch.active:
            self._batches.pop(batch, None)
            batch.close()
        if not self._count:
            self._idle.set()


def slots_of(assignments: Iterable[pb.Assignment], batches: Iterable[pb.RunBatch] = ()) -> int:
    """Return the slots of assignments, valid or not, as their member counts them."""
    slots = sum([min(max(each.slots, 1), GREATEST_SLOTS) for each in assignments])
    for batch in batches:
        runs = min(len(batch.fencing_tokens), MOST_IN_BATCH)
        slots += runs * min(max(batch.common.slots, 1), GREATEST_SLOTS)
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
