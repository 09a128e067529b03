"""Overlap on rows, as chance has it: whatever policies meet in one job, no run starts beside a
run that excludes it, and no run waits for ever.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from schedd.core.dispatch.priority_order import rank_of
from schedd.core.jobs.definition import Overlap, Priority
from schedd.core.runs.model import LiveRun, OverlapCandidates, RunKey, Trigger
from schedd.core.runs.records import JobRecord
from schedd.core.runs.run_records import RunRecord
from support.store import START, Member, World, draft, manual_run, ok, report

pytestmark = pytest.mark.usefixtures("partition")

STEPS = 40
WORDS = [None, None, *Overlap]
"""The policies of a trigger: its job's, more often than any other."""


class Player:
    """An owner, its users and its workers, for one job."""

    def __init__(self, me: Member, job: JobRecord, chance: random.Random) -> None:
        self._me, self._job, self._chance = me, job, chance
        self.policy = chance.choice([*Overlap])
        self._limit = 2 if self.policy is Overlap.ALLOW else 1
        self.runs: dict[RunKey, LiveRun] = {}
        self.admitted: dict[RunKey, LiveRun] = {}

    async def trigger(self) -> None:
        due = START + timedelta(seconds=self._chance.choice([0, 0, 60, 61, 120, 300]))
        made = await self._me.store.users.insert_run(
            self._job.definition.job_id,
            manual_run(due),
            Trigger.MANUAL,
            self._chance.choice([*Priority]),
            None,
            None,
            ok("trigger"),
            self._chance.choice(WORDS),
        )
        assert isinstance(made, RunRecord)
        self.runs[made.run.key] = made.run

    async def ask(self, slots: int) -> None:
        """In the order of the queue: what it has first must be what the rows let go first."""
        waiting = [run for key, run in self.runs.items() if key not in self.admitted]
        waiting.sort(key=lambda run: (rank_of(run), run.key.run_id))
        drafts = [
            draft(run, overlap=self.policy, overlap_limit=self._limit) for run in waiting[:slots]
        ]
        if not drafts:
            return
        answer = await self._me.assign(*drafts)
        for assigned in answer.assigned:
            key = assigned.run.key
            word = self.runs[key].overlap
            if word is None and self.policy is Overlap.ALLOW:
                assert len(self.admitted) < self._limit
            elif (word or self.policy) is not Overlap.ALLOW:
                assert not self.admitted
            self.admitted[key] = assigned.run
        for key in answer.ended:
            del self.runs[key]

    async def part(self) -> None:
        shard = self._job.shard
        crowd = OverlapCandidates(
            self._job.definition.job_id, shard, 1, self.policy, datetime.now(UTC)
        )
        parted = await self._me.store.owner.part(self._me.claim(shard), [crowd])
        for key, _ in parted.ended:
            del self.runs[key]
        assert all(run.key in self.admitted for run in parted.cancelled)

    async def end(self) -> None:
        if self.admitted:
            run = self.admitted.pop(self._chance.choice([*self.admitted]))
            await self._me.store.results.accept([report(run)])
            del self.runs[run.key]


@pytest.mark.parametrize("seed", range(8))
async def test_mixed_policies_of_a_job_exclude_each_other_and_no_run_waits_for_ever(
    world: World, seed: int
) -> None:
    """P3.6, P3.14."""
    chance = random.Random(seed)
    player = Player(await world.member(), await world.job(), chance)
    for _ in range(STEPS):
        match chance.randrange(6):
            case 0 | 1:
                await player.trigger()
            case 2 | 3:
                await player.ask(chance.randrange(1, 5))
            case 4:
                await player.part()
            case _:
                await player.end()
    for _ in range(4 * len(player.runs)):
        await player.ask(1)
        await player.part()
        await player.end()
    assert not player.runs, player.policy
