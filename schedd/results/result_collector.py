"""Receive workers' results, decide the next state, store it, and only then acknowledge.

    results ──their runs──→ decide (result_decision) ──one transaction──→ acknowledge
                                                                    └──→ run index, or wake-up
    batches ──plain?──yes──→ one transaction ─ all right? ─yes──→ acknowledge, run index
                 └──no──→ results             └─no: these──→ results

Any member does this, with or without a tenure: the token alone protects the row (P5.2). A
decision made before the transaction stays valid, because the statement compares token and state.
Runs that this member dispatched under that token come from its run index; the other rows are read.
While the database is unavailable nothing is acknowledged and the worker keeps the result. Results
that this member can't decide (`result_decision`) aren't acknowledged either.

A success is plain if nothing follows from it but the end of its run, and this member dispatched the
run under its token. All plain successes of a batch take the same few calls. Any other result of a
batch becomes a result of its own, with the digest of a plain success.

Invariant: a result, refusal or start that fails is set aside; the others of its batch are stored. A
result that was set aside isn't acknowledged: its worker keeps it, and sends it to another member.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import islice, repeat
from typing import Final, TypeAlias

from schedd.core.dispatch.placement import Unable
from schedd.core.dispatch.successes import SECOND, Success, Successes
from schedd.core.events import (
    AssignmentRejected,
    AttemptEnded,
    DeadLettered,
    Emit,
    GreaterTokenSeen,
    RunsSucceeded,
    StaleResult,
    dead_run,
)
from schedd.core.ids import NO_TOKEN, IncarnationId, JobId, RunId, ShardId, Token, epoch_of
from schedd.core.runs.lifecycle import LIVE, State
from schedd.core.runs.model import LiveRun, ResultDecision, RunKey, Verdict
from schedd.core.runs.records import Unstarted
from schedd.dispatch.run_index import RunIndex
from schedd.dispatch.workers.attached_worker import AttachedStream
from schedd.dispatch.workers.worker_audit import WorkerAudit
from schedd.ports import ClusterClock, WakeUps
from schedd.results.result_decision import ReceivedResult, report_of, single_result
from schedd.runtime.definition_cache import DefinitionCache
from schedd.store.results.result_writes import ResultWrites
from schedkit import failpoints
from schedkit.clock import boottime
from schedkit.records import dataclass, replace
from schedkit.set_aside import set_aside
from schedkit.tasks import Loop, in_turns

BATCH: Final = 500
SUCCESSES: Final = 2_000
"""Limit on plain successes that one transaction stores."""
QUEUE: Final = 20_000
"""Limit on queued results, successes of batches, and refusals; further ones are dropped. A worker
sends its results again, and the scan finds refused runs, which never started. Refusals of runs that
this member dispatched are always kept: a drain returns thousands.
"""

TAKEN: Final = frozenset({Verdict.ACCEPTED, Verdict.CANCELLED})
"""Verdicts of results that this transaction stored."""
ALARM_EVERY: Final = 60.0
"""Seconds between two alarms of one shard: each causes a takeover, which delays its jobs."""

AFTER_COMMIT = failpoints.awaited("accept.after_commit")

_At: TypeAlias = tuple[RunId, Token, bytes]
"""A result: run, token, digest."""
_Kept: TypeAlias = tuple[ReceivedResult, AttachedStream]
"""A result with the stream that sent it last."""
_Ended: TypeAlias = tuple[RunId, Token, IncarnationId]
"""A success of a batch: run, token, sender."""
_Times: TypeAlias = tuple[int, int, int, tuple[str, AttachedStream]]
"""Its scheduled, start and finish time, and the worker's name with the stream that sent it last."""


@dataclass(frozen=True, slots=True)
class AssignmentRefusal:
    """Refusal of an assignment by its worker."""

    key: RunKey
    token: Token
    worker: str
    sender: IncarnationId
    why: str
    greatest: Token = NO_TOKEN
    """Greater token of the run that the worker has seen, if that is the reason."""
    detail: str = ""
    """Why the worker can't run it, in words."""


NO_SUCH_RUN: Final = "the run doesn't exist, or was deleted"
STRAYS_A_MINUTE: Final = 6_000
"""Limit on stale results of one worker. A restored database may have lost all runs of a worker's
spool, which holds 20,000 results.
"""
TOO_MANY_STRAYS: Final = (
    f"more than {STRAYS_A_MINUTE:,} results a minute were stale:"
    " further results of this worker are rejected until the minute ends"
)
AUDITED_A_MINUTE: Final = 60
"""Limit on stale results of one worker that get an audit row each, whatever their tokens. Only
results of existing runs count. Beyond it, only results under assigned tokens get a row.
"""
NEVER_ASSIGNED: Final = (
    f"more than {AUDITED_A_MINUTE} results a minute were stale: the audit log doesn't list each"
    " result with a token that was never assigned"
)
MOST_STRAYING: Final = 1_000
"""Workers whose stale results are counted."""


class PerMinuteLimit:
    """Limit per minute."""

    __slots__ = ("_most", "_since", "_taken")

    def __init__(self, now: float, most: int) -> None:
        self._most, self._since, self._taken = most, now, 0

    def use_one(self, now: float) -> None:
        """Count one."""
        if now - self._since >= 60:
            self._since, self._taken = now, 0
        self._taken += 1

    def is_available(self, now: float) -> bool:
        """Return whether this minute's limit isn't reached."""
        return now - self._since >= 60 or self._taken < self._most


class ResultCollector:
    """Stores results. Created once per process."""

    def __init__(
        self,
        definition_cache: DefinitionCache,
        store: ResultWrites,
        clock: ClusterClock,
        wake_ups: WakeUps,
        emit: Emit,
        audit: WorkerAudit,
        *,
        boot: Callable[[], float] = boottime,
    ) -> None:
        self._boot = boot
        self._audit = audit
        self._alarmed: dict[ShardId, float] = {}
        self._definition_cache = definition_cache
        self._store = store
        self._clock = clock
        self._wake_ups = wake_ups
        self._emit = emit
        self.run_index: RunIndex | None = None
        """Run index of this member's tenure, while it has one."""
        self._ready: Callable[[], None] = lambda: None
        self._unable: Callable[[IncarnationId, JobId, Unable], None] = lambda *_: None
        self._strays: dict[str, PerMinuteLimit] = {}
        """Limits on results that were rejected as stale, by worker."""
        self._audited: dict[str, PerMinuteLimit] = {}
        """Limits on stale results with an audit row, by worker."""
        self._results: dict[_At, _Kept] = {}
        self._successes: dict[_Ended, _Times] = {}
        self._refusals: dict[tuple[RunId, Token], AssignmentRefusal] = {}
        self._starts: dict[tuple[RunId, Token], tuple[RunKey, Token, datetime]] = {}
        self.loop = Loop("collect", self.step, interval=5.0)

    def on_ready(self, callback: Callable[[], None]) -> None:
        """Call `callback()` when runs of this member became ready."""
        self._ready = callback

    def on_unable(self, callback: Callable[[IncarnationId, JobId, Unable], None]) -> None:
        """Call `callback(worker, job, unable)` when a worker refuses a job as unable."""
        self._unable = callback

    def reported(self, reported: ReceivedResult, line: AttachedStream) -> None:
        """Queue a result. Once stored, it is acknowledged over the stream that sent it last."""
        if self._sends_too_many(reported.worker):
            return
        at = (reported.key.run_id, reported.token, reported.digest)
        if at in self._results or len(self._results) < QUEUE:
            self._results[at] = (reported, line)
            self._note_ends([at[0]], [at[1]])

    def succeeded(self, worker: str, successes: Successes, line: AttachedStream) -> None:
        """Queue a batch of a worker's successes. Once stored, they are acknowledged over the stream
        that sent them last.
        """
        if self._sends_too_many(worker):
            return
        keys = zip(successes.run_ids, successes.tokens, successes.senders, strict=True)
        times = zip(
            successes.scheduled, successes.started, successes.finished, repeat((worker, line))
        )
        arrived = dict(zip(keys, times, strict=True))
        if len(self._successes) + len(arrived) > QUEUE:
            arrived = {at: one for at, one in arrived.items() if at in self._successes}
        self._successes.update(arrived)
        self._note_ends([at[0] for at in arrived], [at[1] for at in arrived])

    @property
    def _queued(self) -> int:
        return len(self._results) + len(self._successes)

    def _sends_too_many(self, worker: str) -> bool:
        """Return whether results of this worker aren't taken: it sends them again."""
        strays = self._strays.get(worker)
        if strays is None or strays.is_available(self._boot()):
            return False
        self._audit.note(worker, "", "result", TOO_MANY_STRAYS)
        return True

    def _note_ends(self, run_ids: Sequence[RunId], tokens: Sequence[Token]) -> None:
        if self._starts:
            for at in zip(run_ids, tokens, strict=True):
                self._starts.pop(at, None)  # the result contains its start time
        if self.run_index is not None and self.run_index.report(run_ids, tokens):
            self._ready()
        self.loop.wake()

    def refused(self, refusal: AssignmentRefusal) -> None:
        """Queue a refusal: the worker rejected an assignment, or gave it up before its start."""
        run_id, token = refusal.key.run_id, refusal.token
        self._emit(AssignmentRejected(refusal.why, refusal.worker, run_id, token))
        run = self.run_index.running.get(refusal.key.run_id) if self.run_index else None
        theirs = run and (run.token, run.incarnation) == (refusal.token, refusal.sender)
        if run and theirs and refusal.why == "UNABLE":
            self._unable(refusal.sender, run.job_id, Unable(run.generation, refusal.detail))
        at = (refusal.key.run_id, refusal.token)
        if theirs or at in self._refusals or len(self._refusals) < QUEUE:
            self._refusals[at] = refusal
            self.loop.wake()

    def is_anothers(self, key: RunKey, token: Token, sender: IncarnationId) -> bool:
        """Return whether this assignment is known to be of another worker than the sender."""
        run = self.run_index.running.get(key.run_id) if self.run_index else None
        return run is not None and run.token == token and run.incarnation != sender

    def lacks_start(self, run_id: RunId, token: Token, sender: IncarnationId) -> bool:
        """Return whether the start time of the sender's assignment isn't known yet."""
        run = self.run_index.running.get(run_id) if self.run_index else None
        if run is None or run.started_at is not None:
            return False
        return run.token == token and run.incarnation == sender

    def started(self, run_id: RunId, token: Token, at: datetime) -> None:
        """Store the start time that a heartbeat reported, for display."""
        run = self.run_index.running.get(run_id) if self.run_index else None
        if run is not None and run.token == token and self.run_index:
            self.run_index.running.add(replace(run, started_at=at))
            self._starts[run_id, token] = (run.key, token, at)
            self.loop.wake()

    async def step(self) -> float:
        """Store one batch of each kind; return the seconds until the next."""
        if self._refusals:
            await self._store_refusals()
        if self._successes:
            await self._store_successes()
        if self._results:
            await self._store_results()
        if self._starts:
            await self._store_starts()
        return 0.0 if self._queued or self._refusals or self._starts else 5.0

    async def _store_successes(self) -> None:
        """Store the plain ones of a batch of successes. The others become single results."""
        room = min(SUCCESSES, QUEUE - len(self._results))
        batch = dict(islice(self._successes.items(), max(0, room)))
        plain = self._plain_of([*batch])
        others = [at for at in batch if at not in plain] if len(plain) < len(batch) else []
        if plain:
            times = [batch[at] for at in plain] if others else [*batch.values()]
            run_ids, tokens, senders = zip(*plain, strict=True)
            scheduled, started, finished, _ = zip(*times, strict=True)
            left = await self._store.accept_successes(
                Successes(run_ids, tokens, senders, scheduled, started, finished)
            )
            await AFTER_COMMIT()
            for one in left:
                others.append((one.run_id, one.token, one.sender))
                del plain[others[-1]]
            self._succeeded(plain)
        async for at in in_turns(others):
            if len(self._results) >= QUEUE:
                break  # others arrived meanwhile: the rest stays here
            *its_times, (worker, line) = self._successes.pop(at)
            single = single_result(Success(*at, *its_times), worker)
            self._results[single.key.run_id, single.token, single.digest] = single, line

    def _plain_of(self, batch: Sequence[_Ended]) -> dict[_Ended, LiveRun]:
        """Return the plain successes among these, with their runs (`of_senders`)."""
        if self.run_index is None:
            return {}
        found = self.run_index.running.of_senders(batch)
        known = self._definition_cache.cached([one[0].job_id for one in found if one is not None])
        return {
            at: one[0]
            for at, one in zip(batch, found, strict=True)
            if one is not None
            and (entry := known.get(one[0].job_id)) is not None
            and entry.text.plain_success
            and entry.text.definition.generation >= one[1]
        }

    def _succeeded(self, stored: Mapping[_Ended, LiveRun]) -> None:
        """Acknowledge stored plain successes, and remove their runs."""
        times = [*map(self._successes.pop, stored)]  # with the newest stream of each
        answers: dict[AttachedStream, list[_Ended]] = defaultdict(list)
        for at, (_, _, _, (_, line)) in zip(stored, times, strict=True):
            answers[line].append(at)
        for line, ended in answers.items():
            line.acknowledge_all([at[0] for at in ended], [at[1] for at in ended])
        if stored:
            runs = [*stored.values()]
            ready = [run.due_at if run.attempt <= 1 else run.ready_at for run in runs]
            latenesses = [
                started / SECOND - since.timestamp()
                for (_, started, _, _), since in zip(times, ready, strict=True)
            ]
            durations = [(finished - started) / SECOND for _, started, finished, _ in times]
            self._emit(RunsSucceeded(latenesses, durations))
            self._remove_ended(runs, [at[1] for at in stored])

    async def _store_results(self) -> None:
        batch = list(self._results.items())[:BATCH]
        runs = await self._runs_of([reported for _, (reported, _) in batch])
        decided = await self._decide([reported for _, (reported, _) in batch], runs)
        reports: dict[_At, ResultDecision] = {}
        for (at, _), report in zip(batch, decided, strict=True):
            if report is None:  # not acknowledged, so its worker sends it to another member
                del self._results[at]
            else:
                reports[at] = self._with_audit(report, runs.get(report.key))
        verdicts = await self._store.accept([*reports.values()]) if reports else []
        await AFTER_COMMIT()
        async for (at, report), verdict in in_turns(zip(reports.items(), verdicts, strict=True)):
            reported, line = self._results.pop(at)  # the newest stream that sent it
            if verdict is None:
                continue
            line.acknowledge(reported.key, reported.token, stale=verdict is Verdict.STALE)
            run = runs.get(report.key)
            if verdict is Verdict.STALE:
                self._stray(report, exists=run is not None)
            self._emit_verdict(report, verdict, run)
        answers = zip(reports.values(), verdicts, strict=True)
        changed = [
            report for report, verdict in answers if verdict in TAKEN and report.key in runs
        ]  # rows of others can't be read: the next scan finds that they have ended
        ended = [runs[report.key] for report in changed if report.state not in LIVE]
        self._remove_ended(ended, [run.token for run in ended])
        await self._hand_on([report.key for report in changed if report.state in LIVE])
        failed = {
            (run.job_id, run.shard)
            for report in changed
            if report.pause_after and report.state is State.FAILED
            for run in (runs[report.key],)
        }
        if failed:  # `pause_after_failures` may be reached
            self._wake_ups.jobs_changed(sorted(failed))

    async def _runs_of(self, reported: Sequence[ReceivedResult]) -> dict[RunKey, LiveRun]:
        """Return the runs of results: as dispatched here under their tokens, else as stored."""
        running = self.run_index.running if self.run_index else {}
        found = {
            one.key: run
            for one in reported
            if (run := running.get(one.key.run_id)) is not None
            and (run.key, run.token, run.incarnation) == (one.key, one.token, one.sender)
        }
        others = [one.key for one in reported if one.key not in found]
        return found | await self._store.reported_runs(others) if others else found

    async def _decide(
        self, reported: Sequence[ReceivedResult], runs: dict[RunKey, LiveRun]
    ) -> list[ResultDecision | None]:
        # An ended run needs no decision, and its definition may have been deleted.
        running = [run for run in runs.values() if run.state is State.RUNNING]
        known = await self._definition_cache.of_runs(running)
        now = self._clock.now()
        decided: list[ResultDecision | None] = []
        async for one in in_turns(reported):
            decided.append(None)
            with set_aside("result", f"run {one.key.run_id}"):
                decided[-1] = report_of(one, runs.get(one.key), known, now)
        return decided

    async def _store_starts(self) -> None:
        batch = dict(list(self._starts.items())[:BATCH])
        await self._store.started([*batch.values()])
        self._wake_ups.runs_changed([(key.run_id, None) for key, _, _ in batch.values()])
        for at in batch:
            self._starts.pop(at, None)

    async def _store_refusals(self) -> None:
        batch = dict(list(self._refusals.items())[:BATCH])
        runs = await self._store.reported_runs([one.key for one in batch.values()])
        refused = [one for one in batch.values() if one.key in runs]
        for one in refused:
            with set_aside("refusal", f"run {one.key.run_id}"):
                await self._look_for_alarm(one, runs[one.key])
        unstarted = [
            Unstarted(one.key, runs[one.key].shard, one.token, one.sender) for one in refused
        ]
        await self._hand_on(await self._store.refuse(unstarted))
        for at in batch:
            self._refusals.pop(at, None)

    async def _look_for_alarm(self, refusal: AssignmentRefusal, run: LiveRun) -> None:
        """Raise the shard's epoch if the worker has seen a token greater than the row ever had,
        before the run is dispatched again.

        A late frame of an earlier token, or another worker's assignment, raises nothing. A false
        report of a worker costs a shard one takeover a minute.
        """
        theirs = (run.token, run.incarnation) == (refusal.token, refusal.sender)
        if not theirs or refusal.greatest <= run.token:
            return
        now = self._boot()
        if now < self._alarmed.get(run.shard, -math.inf) + ALARM_EVERY:
            return
        event = GreaterTokenSeen(run.key.run_id, run.token, refusal.greatest, refusal.worker)
        self._emit(event)
        await self._store.outdo(run.shard, epoch_of(refusal.greatest))
        self._alarmed[run.shard] = now
        if self.run_index is not None:
            self.run_index.ownership.drop([run.shard])

    def _remove_ended(self, runs: Sequence[LiveRun], tokens: Sequence[Token]) -> None:
        """Remove runs that ended under these tokens from the run index."""
        self._wake_ups.runs_changed([(run.key.run_id, run.job_id) for run in runs])
        self._definition_cache.forget_ended([run.job_id for run in runs])
        if self.run_index is not None and self.run_index.remove_ended(runs, tokens):
            self._ready()

    async def _hand_on(self, keys: Sequence[RunKey]) -> None:
        """Update the run index with these runs, or wake their owners."""
        if not keys:
            return
        self._wake_ups.runs_changed([(key.run_id, None) for key in keys])
        runs = await self._store.reported_runs(keys)
        self._definition_cache.forget_ended(
            run.job_id for run in runs.values() if run.state not in LIVE
        )
        run_index = self.run_index
        elsewhere: set[ShardId] = set()
        for key, run in runs.items():
            if run_index is None or run.shard not in run_index.ownership.epochs:
                if run.state in LIVE:
                    elsewhere.add(run.shard)
            elif run.state not in LIVE:
                if run_index.forget(key.run_id, run.job_id):
                    self._ready()
            elif run_index.put_runs([run], self._clock.now()):
                self._ready()
        if elsewhere:
            self._wake_ups.runs_ready(sorted(elsewhere))

    def _stray(self, report: ResultDecision, *, exists: bool) -> None:
        """Count a stale result against the worker's limit per minute. Stale results of missing runs
        have one audit row a minute.
        """
        if not exists:
            self._audit.note(report.worker, str(report.sender), "result", NO_SUCH_RUN)
        elif not report.audited:
            self._audit.note(report.worker, str(report.sender), "result", NEVER_ASSIGNED)
        self._allowance(self._strays, report.worker, STRAYS_A_MINUTE).use_one(self._boot())

    def _with_audit(self, report: ResultDecision, run: LiveRun | None) -> ResultDecision:
        """Return the report, marked whether it gets an audit row. Only stale results under a token
        that was never assigned are limited: a worker can invent any number of those.
        """
        if run is None or run.token == report.token:
            return report
        allowance = self._allowance(self._audited, report.worker, AUDITED_A_MINUTE)
        if not allowance.is_available(self._boot()):
            return replace(report, audited=False)
        allowance.use_one(self._boot())
        return report

    def _allowance(self, of: dict[str, PerMinuteLimit], worker: str, most: int) -> PerMinuteLimit:
        found = of.setdefault(worker, PerMinuteLimit(self._boot(), most))
        while len(of) > MOST_STRAYING:
            del of[next(iter(of))]
        return found

    def _emit_verdict(self, report: ResultDecision, verdict: Verdict, run: LiveRun | None) -> None:
        if verdict is Verdict.STALE:
            self._emit(
                StaleResult(report.key.run_id, report.token, report.worker, known=run is not None)
            )
        elif verdict in TAKEN:
            started, finished = report.started_at, report.finished_at
            cancelled = verdict is Verdict.CANCELLED
            if report.dead and run is not None and not cancelled:
                self._emit(DeadLettered((dead_run(run, report.reason),)))
            self._emit(
                AttemptEnded(
                    State.CANCELLED if cancelled else report.state,
                    None if cancelled else report.reason,
                    lateness=run.lateness(started) if run else None,
                    duration=finished - started if started and finished else None,
                )
            )
