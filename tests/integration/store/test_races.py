"""Everything at once: members that take from each other, results, cancels, pauses, deletes.

Each seed is one history over a few jobs; afterwards the rows must tell a story that is possible.
RACES_SECONDS=10 for longer histories.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from schedd.core.ids import JobId
from schedd.core.jobs.definition import Overlap, Priority
from schedd.core.runs.lifecycle import LIVE, State
from schedd.core.runs.model import LiveRun, Loss, OverlapCandidates, RunKey, Trigger, Verdict
from schedd.core.runs.records import JobRecord, TimerEdit, Unstarted
from schedd.core.timers.packed_timer import unpacked
from schedkit.errors import Unavailable
from support.store import MINUTE, START, Member, World, draft, firing, manual_run, ok, report
from support.wait import WAIT_TIMEOUT

pytestmark = pytest.mark.usefixtures("partition")

SECONDS = float(os.environ.get("RACES_SECONDS", "1"))
"""At least; until enough has happened."""
SHARDS = (0, 2)
"""Both shards are of one lane, so that a claim may hold both."""
ALONE = [policy for policy in Overlap if policy is not Overlap.ALLOW]
"""Policies under which one run of a job is admitted at once."""
POLICIES = [*ALONE, Overlap.ALLOW]
"""Of the jobs in each shard; `allow` here means: one at once, and the others wait."""


class Story:
    """Events in one world, until the time has passed."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.jobs: list[JobRecord] = []
        self.policies: dict[JobId, Overlap] = {}
        self.ended: list[RunKey] = []
        """Runs that ended for other runs of their jobs, by the answers that an owner received."""
        self.handed: list[LiveRun] = []
        self.accepted: list[tuple[LiveRun, State]] = []
        self.away: list[Unavailable] = []

    async def run(self) -> None:
        for shard in SHARDS:
            for policy in POLICIES:
                self.jobs.append(await self.world.job(shard=shard))
                self.policies[self.jobs[-1].definition.job_id] = policy
        one, two = self.world.members
        acts: list[Callable[[], Awaitable[None]]] = [
            *(lambda me=me: self.own(me) for me in (one, two)),
            *(lambda me=me: self.take(me) for me in (one, two)),
            *(lambda me=me: self.tell(me) for me in (one, two, one)),
            lambda: self.meddle(two),
        ]
        async with asyncio.TaskGroup() as group:
            for number, act in enumerate(acts):
                group.create_task(self.again(act), name=f"act {number}")

    async def again(self, act: Callable[[], Awaitable[None]]) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        while clock() < began + (SECONDS if self.rich else WAIT_TIMEOUT):
            try:
                await act()
            except Unavailable as error:
                self.away.append(error)
            await asyncio.sleep(self.random.random() / 100)

    @property
    def rich(self) -> bool:
        """Whether enough has happened for the story to prove something."""
        return len(self.handed) > 20 and len(self.accepted) > 10 and len(self.ended) > 2

    async def own(self, me: Member) -> None:
        """Fire and dispatch, as a member that believes to own the shards."""
        if not all(shard in me.epochs for shard in SHARDS):
            return
        if self.random.random() < 0.05:
            me.epochs.clear()  # it has found out
            return
        owner, claim = me.store.owner, me.claim(*SHARDS)
        rows = await owner.due_timers(SHARDS, START + timedelta(days=9), 50)
        timers = unpacked(rows)
        records = {job.definition.job_id: job for job in self.jobs}
        steps = [
            replace(firing(records[t.job_id], at=t.due_at), generation=t.generation)
            for t in timers
            if t.job_id in records and t.due_at
        ]
        await owner.fire(claim, steps[: self.random.randint(1, 6)])
        waiting = await owner.live_runs(SHARDS, [State.PENDING, State.RETRYING])
        rows = await owner.timers([run.job_id for run in waiting])
        generations = {row.job_id: row.generation for row in rows}
        self.random.shuffle(waiting)
        drafts = [
            draft(
                run,
                generation=generations.get(run.job_id, 1),
                overlap=self.policies[run.job_id],
                overlap_limit=1,
            )
            for run in waiting[:20]
        ]
        answer = await owner.assign(claim, drafts, me.tokens(claim))
        self.handed += [each.run for each in answer.assigned]
        crowds = {
            run.job_id: OverlapCandidates(
                run.job_id,
                run.shard,
                generations.get(run.job_id, 1),
                self.policies[run.job_id],
                START,
            )
            for run in waiting
        }
        parted = await owner.part(claim, list(crowds.values()))
        self.ended += [key for key, _ in parted.ended]

    async def take(self, me: Member) -> None:
        """Release what the other has, or take what is free."""
        other = next(each for each in self.world.members if each is not me)
        if me.epochs or self.random.random() < 0.9:
            return
        if other.epochs:
            claim = other.claim(*SHARDS)
            if self.random.random() < 0.5:  # else it keeps its belief
                other.epochs.clear()
            await other.store.membership.release(claim)
        await me.take(*SHARDS)

    async def tell(self, me: Member) -> None:
        """Say something about assignments, old ones too, and some of it twice."""
        if not self.handed:
            return
        some = self.random.choices(self.handed[-30:], k=self.random.randint(1, 8))
        act = self.random.random()
        if act < 0.2:
            await me.store.results.refuse(
                [Unstarted(run.key, run.shard, run.token) for run in some]
            )
        elif act < 0.3 and all(shard in me.epochs for shard in SHARDS):
            await me.store.owner.rescue(me.claim(*SHARDS), [lost(run) for run in some])
        else:
            reports = [self.result(run) for run in some]
            verdicts = await me.store.results.accept(reports)
            self.accepted += [
                (run, each.state)
                for run, each, verdict in zip(some, reports, verdicts, strict=True)
                if verdict is Verdict.ACCEPTED
            ]

    def result(self, run: LiveRun):
        # The digest is that of the state, so a repetition is one and another outcome is not.
        state = self.random.choice([State.SUCCEEDED, State.RETRYING, State.FAILED])
        return report(run, state=state, retry_at=START, digest=state.value.encode())

    async def meddle(self, me: Member) -> None:
        """Act as people do meanwhile."""
        users, job = me.store.users, self.random.choice(self.jobs)
        job_id = job.definition.job_id
        act = self.random.random()
        if act < 0.3:
            at = START + timedelta(seconds=self.random.randint(0, 10**6))
            await users.insert_run(
                job_id,
                manual_run(at),
                Trigger.MANUAL,
                self.random.choice(list(Priority)),
                None,
                None,
                ok("trigger"),
                self.random.choice([None, None, *ALONE]),
            )
        elif act < 0.5 and self.handed:
            await users.cancel_run(self.random.choice(self.handed).key.run_id, ok("cancel"))
        elif act < 0.65:
            await users.pause_job(job_id, "", "ann", ok("pause"))
        elif act < 0.85:
            await users.resume_job(
                job_id, TimerEdit((START + MINUTE, START + MINUTE)), None, ok("resume")
            )
        elif len(self.jobs) > 8:
            await users.delete_job(job_id, ok("delete"))
            self.jobs.remove(job)


def lost(run: LiveRun) -> Loss:
    assert run.incarnation is not None
    return Loss(run.key, run.shard, run.token, run.incarnation, State.RETRYING, None)


@pytest.mark.parametrize("seed", range(4))
async def test_rows_are_consistent_after_concurrent_calls(world: World, seed: int) -> None:
    """P1.6: users, owners and workers at once, and not one deadlock."""
    one = await world.member(take=False)
    await one.take(*SHARDS)
    await world.member(take=False)
    story = Story(world, seed)
    await story.run()

    assert story.rich, "nothing much happened"
    assert story.away == []
    rows = {row["run_id"]: row for row in await every(world, "SELECT * FROM runs")}
    live = {row["run_id"] for row in await every(world, "SELECT run_id FROM live")}

    assert live == {run_id for run_id, row in rows.items() if State(row["state"]) in LIVE}
    assert all(row["attempt"] >= 0 for row in rows.values())
    tokens = [(run.shard, run.token) for run in story.handed]  # epochs are each shard's own
    assert len(set(tokens)) == len(tokens), "a token was given twice"
    for run, state in story.accepted:
        row = rows[run.key.run_id]
        if row["token"] == run.token and state is not State.RETRYING:
            assert row["state"] in {state, State.CANCELLED}
        assert row["token"] >= run.token
    final = [run.key.run_id for run, state in story.accepted if state is not State.RETRYING]
    assert len(set(final)) == len(final), "two final results of one run"
    busiest = await world.sql(
        "SELECT max(n) FROM (SELECT count(*) n FROM runs WHERE token > 0"
        " AND state IN ('PENDING', 'RUNNING', 'RETRYING') GROUP BY job_id) admitted"
    )
    assert busiest[0][0] in {None, 1}, "two admitted runs of a job at once"
    for key in story.ended:
        row = rows[key.run_id]
        assert (row["state"], row["reason"]) in {
            ("SKIPPED", "BUFFER_FULL"),
            ("CANCELLED", "BY_OVERLAP"),
        }
    waiting = await world.sql(
        "SELECT count(*) FROM runs r JOIN jobs j USING (job_id)"
        " WHERE j.deleted_at IS NOT NULL AND r.state IN ('PENDING', 'RETRYING')"
    )
    assert waiting == [(0,)], "a deleted job has waiting runs"
    deadlocks = await world.sql(
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    )
    assert deadlocks == [(0,)]
    await one.store.membership.read_shards()


async def every(world: World, statement: str):
    def body(connection):
        return [dict(row) for row in connection.exec_driver_sql(statement).mappings()]

    return await world.store.database.call(body)
