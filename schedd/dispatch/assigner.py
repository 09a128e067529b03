"""Write the chosen assignments, one transaction a lane, then push them to their workers.

    chosen ──drafts──→ one transaction a lane ──┬─ assigned ──push──→ worker
                                                ├─ refused ───→ again, if its definition was old
                                                ├─ blocked ───→ until a run of its job or pool ends
                                                ╰─ failed ────→ back into the run index

The choice is provisional: the assign statement checks overlap, pause, generation and state on rows,
under the shard's lock (P3.5). A run is pushed only after its COMMIT succeeded. If a COMMIT is in
doubt, the scan finds the run and makes it ready again if it never started.

A refused draft is checked again. If its definition was old, a new draft is made at once. If other
runs of its job block it, it is blocked until one of them ends, and runs that it replaces are ended
(`overlap`). Otherwise the scan reads it again.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from schedd.cluster.owner_transactions import Failed
from schedd.core.dispatch.placement import need_of
from schedd.core.events import AssignedRuns, EndedUnreported
from schedd.core.ids import JobId, RunId
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import Claim, Draft, LiveRun
from schedd.core.runs.records import Assignments, Unstarted
from schedd.dispatch.assignment import Chosen, Handed, drafts_of
from schedd.dispatch.catch_up_limiter import CatchUpLimiter
from schedd.dispatch.overlap import OverlapEnforcer
from schedd.dispatch.owner_context import OwnerContext, OwnerPart
from schedd.dispatch.pool_usage_cache import PoolUsageCache
from schedd.dispatch.workers.attached_slots import SlotReservation
from schedd.runtime.definition_texts import CachedDefinition
from schedkit import failpoints

Going: TypeAlias = tuple[LiveRun, CachedDefinition]
"""A run with its definition."""

AFTER_COMMIT = failpoints.awaited("assign.after_commit")


class Assigner(OwnerPart):
    """Writes and pushes the assignments that dispatch has chosen."""

    def __init__(
        self,
        context: OwnerContext,
        overlap: OverlapEnforcer,
        late: CatchUpLimiter,
        pools: PoolUsageCache,
    ) -> None:
        super().__init__(context)
        self._overlap = overlap
        self._late = late
        self._pools = pools

    async def dispatch_runs(self, chosen: Sequence[Chosen], choice: SlotReservation) -> bool:
        """Dispatch these runs; return whether some must be tried again at once."""
        known = {each[0].key.run_id: each[:2] for each in chosen}
        drafts = drafts_of(chosen)
        self._run_index.judge({run.job_id for run, _, _ in chosen})
        answers = await self._transactor.by_lane(drafts, self._write)
        refused: list[Going] = []
        held: list[LiveRun] = []
        full: list[Going] = []
        unpushed: list[Handed] = []
        for answer in answers:
            if not isinstance(answer, Failed):
                unpushed += self._push(answer, known)
                refused += [known[key.run_id] for key in answer.waiting]
                held += [known[key.run_id][0] for key in answer.held]
                full += [known[key.run_id] for key in answer.full]
        choice.release()
        now = self._clock.now()
        for run in held:
            if run.ready_at > now:  # the blocking run may have ended by then
                self._run_index.wait(run)
            else:
                self._run_index.hold(run)
        self._wait_for_pools(full)
        stays = {run.key.run_id for run in held} | {run.key.run_id for run, _ in refused}
        self._pools.forget({known[run_id][1].definition.pool for run_id in stays})
        tried = self._run_index.judged() + self._begin(answers)
        late = [each for each in chosen if each[0].ready_at > each[0].due_at]
        if late:
            back = {run.key for run in held} | {run.key for run, _ in (*full, *refused)}
            went = [each for each in late if each[0].key not in back]
            self._late.released(sum(run.paced_by(entry.definition) for run, entry, _ in went))
        failed = [answer for answer in answers if isinstance(answer, Failed)]
        for answer in failed:
            # The transaction failed or is in doubt: either way the statement checks these runs
            # again, or a scan finds that they run.
            runs = [draft.run for draft in answer.items]
            self._run_index.put_runs(runs, now)
            self._run_index.read_again(runs)
            self._pools.forget({draft.terms.pool for draft in answer.items})
        if unpushed:
            await self._send_elsewhere(unpushed)
        if failed:
            self._definition_cache.forget(run.job_id for run, _ in refused)
            raise failed[0].error
        again = tried > 0
        if refused:
            again = await self._look_into(refused) or again
        if not held:
            return again
        entries = {run.job_id: entry for run, entry, _ in chosen}
        return await self._overlap.part(held, entries) or again

    def _begin(self, answers: Sequence[Assignments | Failed[Draft]]) -> int:
        """Record broadcasts that have begun, and their children; return how many are ready."""
        begun = [run for one in answers if not isinstance(one, Failed) for run in one.begun]
        if begun:
            self._wake_ups.runs_changed([run.hint for run in begun])
        return self._run_index.put_runs(begun, self._clock.now())

    def _wait_for_pools(self, full: Sequence[Going]) -> None:
        """Let these runs wait for their pools, which had less room than expected."""
        self._pools.forget({known.definition.pool for _, known in full})
        for run, known in full:
            need, paced = need_of(known.definition, run), run.paced_by(known.definition)
            self._run_index.ready.add([run], need, paced=paced)

    async def _send_elsewhere(self, batches: Sequence[Handed]) -> None:
        """Send assignments through other members: their streams here broke meanwhile.

        If a worker is attached nowhere, it never received the token. Its run can't start and is
        made ready again.
        """
        handed = [each for batch, of in batches for each in zip(batch.single(), of, strict=True)]
        absent = [each.run for each in await self._workers.elsewhere.assign(handed)]
        unstarted = [Unstarted(run.key, run.shard, run.token) for run in absent]
        back = await self._transactor.rows(unstarted, self._store.give_back)
        self._run_index.put_runs(back, self._clock.now())

    async def _write(self, claim: Claim, drafts: Sequence[Draft]) -> Assignments:
        next_token = self._transactor.ownership.sequencer(claim)
        assigned = await self._store.assign(claim, drafts, next_token)
        await AFTER_COMMIT()
        return assigned

    def _push(self, answer: Assignments, known: Mapping[RunId, Going]) -> list[Handed]:
        """Push the assigned runs and report the others; return those that couldn't be pushed."""
        self._transactor.lost(answer.lost, "assign")
        unpushed = self._push_all(
            [(batch, [known[run_id][1] for run_id in batch.places]) for batch in answer.batches]
        )
        turns = []
        for key in answer.ended:
            run, entry = known[key.run_id]
            self._run_index.forget(key.run_id, run.job_id)
            if entry.definition.max_runs:
                turns.append((run.job_id, run.shard))
        if turns:  # runs counted by `max_runs` are given back: an ended schedule may continue
            self._wake_ups.jobs_changed(turns)
        if answer.ended:
            self._emit(EndedUnreported(State.SKIPPED, Reason.OVERLAP, len(answer.ended)))
        self._wake_ups.runs_changed([known[key.run_id][0].hint for key in answer.ended])
        return unpushed

    async def push_fired(self, handed: Sequence[Handed], choice: SlotReservation) -> None:
        """Push runs that were fired as RUNNING, after their COMMIT was seen."""
        unpushed = self._push_all(handed)
        choice.release()
        if unpushed:
            await self._send_elsewhere(unpushed)

    def _push_all(self, handed: Sequence[Handed]) -> list[Handed]:
        """Push these assignments and report them; return those that couldn't be pushed."""
        unpushed: list[Handed] = []
        now = self._clock.now()
        for batch, known in handed:
            self._run_index.dispatched(batch)
            if not self._workers.push(batch, known):
                unpushed.append((batch, known))
        runs = [run for batch, _ in handed for run in batch.runs]
        if runs:
            self._emit(AssignedRuns([(now - run.ready_at).total_seconds() for run in runs]))
            self._wake_ups.runs_changed([(run.key.run_id, run.job_id) for run in runs])
        return unpushed

    async def _look_into(self, refused: Sequence[Going]) -> bool:
        """Read the definitions of refused runs; return whether some are ready again at once."""
        jobs: set[JobId] = {run.job_id for run, _ in refused}
        self._definition_cache.forget(jobs)
        newest = await self._definition_cache.newest(jobs)
        again: list[LiveRun] = []
        in_doubt: list[LiveRun] = []
        for run, made_from in refused:
            entry = newest.get(run.job_id)
            same = entry is None or entry.definition.generation == made_from.definition.generation
            (in_doubt if same else again).append(run)
        self._run_index.read_again(in_doubt)
        return self._run_index.put_runs(again, self._clock.now()) > 0
