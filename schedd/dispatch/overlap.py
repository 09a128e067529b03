"""Apply the overlap policy to jobs that have several runs.

    blocked at assign ─┐
    found by scan ─────┴→ does its job, or a trigger, queue runs? ──one transaction a lane──→ parted
                              ended → out of the run index     cancelled → cancel sent to its worker

The statement decides on rows which runs end (`schedd/store/dispatch/overlap.py`). This module
decides when to run it: at once when overlap kept a run from being dispatched, and at each scan,
because runs without a free slot are checked too. Each scan sends the cancel again until the run has
ended (`rescue`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from heapq import nsmallest
from itertools import takewhile
from typing import Final

from schedd.cluster.owner_transactions import Failed
from schedd.core.events import EndedUnreported
from schedd.core.ids import NO_TOKEN, JobId, RunId
from schedd.core.jobs.definition import Overlap
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import LiveRun, OverlapCandidates
from schedd.core.runs.overlap import LINED_UP, WAITS_LONG, policy_of
from schedd.core.runs.records import OverlapOutcome
from schedd.dispatch.owner_context import OwnerContext, OwnerPart
from schedd.runtime.definition_texts import CachedDefinition

MOST_LOOKED_AT: Final = 500
"""Jobs that one scan checks; later scans check the others."""
MOST_OF_LINE: Final = 100
"""Oldest waiting runs of a job that are checked for an end by their definition."""

Piled = Mapping[JobId, Sequence[LiveRun]]
NONE_PILED: Final[Piled] = {}


class OverlapEnforcer(OwnerPart):
    """Enforces overlap policies."""

    def __init__(self, context: OwnerContext) -> None:
        super().__init__(context)
        self._last = b""

    async def judge_blocked(self, runs: Sequence[LiveRun], piled: Piled = NONE_PILED) -> bool:
        """Check jobs that a scan found `crowded` or `piled_up`; return whether any run is ready."""
        turn = self._next_jobs({run.job_id for run in runs})
        mine = [run for run in runs if run.job_id in turn]
        known = await self._definition_cache.of_runs(mine)
        return await self.part([run for run in mine if run.job_id in known], known, piled)

    async def part(
        self,
        runs: Iterable[LiveRun],
        known: Mapping[JobId, CachedDefinition],
        piled: Piled = NONE_PILED,
    ) -> bool:
        """Check the jobs of these runs if they have several; return whether runs became ready.

        Raises the first lane's error after the other lanes are done.
        """
        now = self._clock.now()
        candidates: dict[JobId, OverlapCandidates] = {}
        for run in runs:
            definition = known[run.job_id].definition
            policy = policy_of(run, definition)
            ending = _ending(piled.get(run.job_id), known[run.job_id], now)
            judged = policy in LINED_UP or (policy is Overlap.SKIP and ending is not None)
            if run.job_id not in candidates and judged:
                candidates[run.job_id] = OverlapCandidates(
                    run.job_id,
                    run.shard,
                    definition.generation,
                    definition.overlap,
                    now,
                    counted=definition.max_runs > 0,
                    ending=ending,
                )
        answers = await self._transactor.by_lane(candidates.values(), self._store.part)
        released = sum(
            self._apply(each, candidates) for each in answers if isinstance(each, OverlapOutcome)
        )
        for answer in answers:
            if isinstance(answer, Failed):
                raise answer.error
        return released > 0

    def _apply(self, parted: OverlapOutcome, candidates: Mapping[JobId, OverlapCandidates]) -> int:
        """Apply the result of the statement here; return how many runs became ready."""
        counted = {job for _, job in parted.ended if candidates[job].counted}
        if counted:  # runs counted by `max_runs` are given back: an ended schedule may continue
            self._wake_ups.jobs_changed([(job, candidates[job].shard) for job in counted])
        ends = (
            (State.CANCELLED, Reason.BY_OVERLAP, len(parted.ended) - parted.skipped),
            (State.SKIPPED, Reason.BUFFER_FULL, parted.skipped - parted.overlapped),
            (State.SKIPPED, Reason.OVERLAP, parted.overlapped),
        )
        for state, reason, count in ends:
            if count:
                self._emit(EndedUnreported(state, reason, count))
        for run in parted.cancelled:
            self._workers.cancel(run, kill=run.killing)
        self._wake_ups.runs_changed(
            [
                *((key.run_id, job) for key, job in parted.ended),
                *(run.hint for run in parted.cancelled),
            ]
        )
        return sum(self._run_index.forget(key.run_id, job) for key, job in parted.ended)

    def _next_jobs(self, jobs: set[JobId]) -> set[JobId]:
        if len(jobs) <= MOST_LOOKED_AT:
            return jobs
        turn = sorted(jobs, key=lambda job: (job <= self._last, job))[:MOST_LOOKED_AT]
        self._last = turn[-1]
        return set(turn)


def piled_up(runs: Sequence[LiveRun], now: datetime) -> Piled:
    """Return jobs with several waiting runs that no worker ever had, one of which has waited for
    long. Each job has the oldest of those runs.
    """
    long_ago = now - timedelta(seconds=WAITS_LONG)
    fresh = [r for r in runs if r.token == NO_TOKEN and r.parent is None and r.ready_at <= now]
    if len({run.job_id for run in fresh}) == len(fresh):
        return {}
    waiting: dict[JobId, list[LiveRun]] = defaultdict(list)
    for run in fresh:
        waiting[run.job_id].append(run)
    return {
        job: nsmallest(MOST_OF_LINE, its, key=_age)
        for job, its in waiting.items()
        if len(its) > 1 and any(run.ready_at <= long_ago for run in its)
    }


def _age(run: LiveRun) -> tuple[datetime, datetime, RunId]:
    return run.due_at, run.key.scheduled_at, run.key.run_id


def _ending(
    line: Sequence[LiveRun] | None, known: CachedDefinition, now: datetime
) -> tuple[RunId, ...] | None:
    """Return the runs at the head of the line that end by their definition; None: there is no line,
    or its head must end first.
    """
    if line is None:
        return None
    found = tuple(run.key.run_id for run in takewhile(lambda run: known.ends(run, now), line))
    return found if len(found) < MOST_OF_LINE else None


def crowded(runs: Sequence[LiveRun]) -> list[LiveRun]:
    """Return, for jobs with several runs of which one never had a token, one run of each kind.

    Kinds differ by the overlap policy of the trigger. The run returned has the newest definition.
    Children of broadcasts block no run.
    """
    jobs = [run.job_id for run in runs if run.parent is None]
    if len({*jobs}) == len(jobs):
        return []
    waiting = {run.job_id for run in runs if run.token == NO_TOKEN and run.parent is None}
    several = {job for job, count in Counter(jobs).items() if count > 1} & waiting
    kinds: dict[tuple[JobId, Overlap | None], LiveRun] = {}
    for run in runs:
        if run.job_id in several and run.parent is None:
            known = kinds.setdefault((run.job_id, run.overlap), run)
            if known.generation < run.generation:
                kinds[run.job_id, run.overlap] = run
    return [*kinds.values()]
