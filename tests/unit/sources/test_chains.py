"""The loop that has joins judged: what it asks for, with what, and whom it lets wait."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from schedd.core.ids import Id, JobId, RunId, ShardId
from schedd.core.jobs.chains import (
    OF_SCHEDULES,
    ChainJoin,
    ChainParents,
    Cycle,
    ParentEnded,
    Wanted,
    When,
)
from schedd.core.jobs.definition import Priority
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import Claim, LiveRun
from schedd.core.runs.records import ChainRefused
from schedd.dispatch.run_index import RunIndex
from schedd.sources.chains import (
    LONGEST_PAUSE,
    LOOK_EVERY,
    MOST_RESULTS,
    MOST_TRIES,
    PAUSE,
    STUCK_FOR,
    WHILE_FED,
    Chains,
    pause_after,
)
from schedd.store.results.chain_joins import ChainStore
from schedkit.errors import TookTooLong, Unavailable
from schedproto.v1 import common_pb2
from support.dispatching import SHELL, Definitions
from support.fake_of import fake_of
from support.owner_context import owner_context
from support.runs import NOW, owning, run

PARENT = JobId(Id.from_int(1))


@fake_of(ChainStore)
class Arrivals:
    """Due joins, in memory. `refuses`: whose joins the database refuses; `slow`: whose take it
    too long, with all that come along. `asked`: how many were judged together.
    """

    def __init__(self, *due: ChainJoin) -> None:
        self.rows = list(due)
        self.refuses: set[JobId] = set()
        self.slow: set[JobId] = set()
        self.asked: list[int] = []
        self.away = False
        self.wanted: list[Wanted] = []
        self.read: list[RunId] = []
        self.later: list[tuple[ChainJoin, timedelta]] = []

    async def due(self, shards: Sequence[ShardId]) -> list[ChainJoin]:
        return [one for one in self.rows if one.shard in shards]

    async def results(self, runs: Collection[RunId]) -> dict[RunId, bytes]:
        self.read += runs
        return {run: common_pb2.Payload(json="7").SerializeToString() for run in runs}

    async def join(self, claim: Claim, wanted: Sequence[Wanted]) -> list[LiveRun]:
        if self.away:
            raise Unavailable("PostgreSQL: it is away")
        self.asked.append(len(wanted))
        if any(one.join.child in self.slow for one in wanted):
            raise TookTooLong("PostgreSQL: canceling statement due to statement timeout")
        mine = [one for one in wanted if one.join.child not in self.refuses]
        self.wanted += mine
        self.rows = [one for one in self.rows if one not in [each.join for each in mine]]
        return [run(len(self.wanted) + n) for n, _ in enumerate(mine)]

    async def put_off(
        self, claim: Claim, joins: Sequence[ChainJoin], wait: timedelta
    ) -> list[LiveRun]:
        self.later += [(one, wait) for one in joins]
        self.rows = [one for one in self.rows if one not in joins]
        return []

    async def fault(
        self, job_id: JobId | None, namespace: str, name: str, after: Collection[str]
    ) -> ChainRefused | None:
        raise AssertionError("no loop asks that")

    async def waiting(self, job_id: JobId, at: object) -> list[ChainJoin]:
        raise AssertionError("no loop asks that")


def join(n: int, *, shard: int = 0) -> ChainJoin:
    ended = ParentEnded("a", RunId(Id.from_int(n)), State.SUCCEEDED)
    cycle = Cycle(NOW, OF_SCHEDULES)
    return ChainJoin(JobId(Id.from_int(100 + n)), ShardId(shard), cycle, {PARENT: ended}, NOW)


def loop(arrivals: Arrivals, *, with_output: bool = False) -> tuple[Chains, Definitions, list[int]]:
    after = ChainParents(("a",), When.SUCCESS, with_output)
    definition_cache = Definitions(replace(SHELL, after=after))
    ownership = owning(0)
    run_index = RunIndex(ownership, lambda _job: Priority.MEDIUM)
    chains = Chains(owner_context(run_index, definition_cache), arrivals)
    ready: list[int] = []
    chains.on_ready(lambda: ready.append(len(run_index.ready)))
    return chains, definition_cache, ready


async def test_a_due_join_is_judged_by_the_present_definition_and_its_runs_are_ready() -> None:
    arrivals = Arrivals(join(1), join(2), join(3, shard=9))
    chains, _, ready = loop(arrivals)
    assert await chains.step() == WHILE_FED
    assert [one.join.child.number for one in arrivals.wanted] == [101, 102]
    assert {one.after.jobs for one in arrivals.wanted} == {("a",)}
    assert {one.payload for one in arrivals.wanted} == {None}
    assert ready == [2]
    assert arrivals.read == []
    assert await chains.step() == LOOK_EVERY


async def test_results_of_parents_are_read_in_parts() -> None:
    arrivals = Arrivals(*(join(n) for n in range(MOST_RESULTS + 5)))
    chains, _, _ = loop(arrivals, with_output=True)
    await chains.step()
    assert len(arrivals.wanted) == MOST_RESULTS
    payload = arrivals.wanted[0].payload
    assert payload is not None
    assert common_pb2.Payload.FromString(payload).json == "7"
    await chains.step()
    assert len(arrivals.wanted) == MOST_RESULTS + 5
    assert arrivals.later == []


async def test_a_join_that_the_database_rejects_is_deferred_and_delays_no_other() -> None:
    bad = join(1)
    arrivals = Arrivals(bad)
    chains, _, _ = loop(arrivals)
    arrivals.refuses = {bad.child}
    for n in range(2, 2 + MOST_TRIES):
        assert arrivals.later == []
        arrivals.rows.append(join(n))
        await chains.step()
    assert len(arrivals.wanted) == MOST_TRIES
    assert arrivals.later == [(bad, STUCK_FOR)]


async def test_a_join_without_a_parent_here_is_deferred() -> None:
    arrivals = Arrivals(join(1))
    chains, definition_cache, _ = loop(arrivals)
    definition_cache.default = SHELL
    await chains.step()
    assert arrivals.wanted == []
    assert [wait for _, wait in arrivals.later] == [STUCK_FOR]


async def test_a_slow_join_is_found_and_deferred_and_all_others_are_judged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slow = join(77)
    arrivals = Arrivals(*(join(n) for n in range(77)), slow, *(join(n) for n in range(78, 200)))
    chains, _, _ = loop(arrivals)
    arrivals.slow = {slow.child}
    steps = 0
    while arrivals.rows:
        assert (steps := steps + 1) < 25, "it is found by halves"
        await chains.step()
    assert len(arrivals.wanted) == 199
    assert arrivals.later == [(slow, PAUSE)], "only the join that takes too long"

    for times in (2, 3):
        arrivals.rows = [slow, join(1_000 + times)]
        await chains.step()
        assert arrivals.rows == [], "who is known to take long is judged alone, after the others"
        assert arrivals.later[-1] == (slow, PAUSE * 2 ** (times - 1))
    warnings = [one for one in caplog.records if "chain evaluation timed out" in one.getMessage()]
    assert len(warnings) == 1

    arrivals.slow, arrivals.rows = set(), [slow]
    await chains.step()
    assert arrivals.wanted[-1].join == slow
    arrivals.slow, arrivals.rows = {slow.child}, [slow]
    await chains.step()
    assert arrivals.later[-1] == (slow, PAUSE), "the backoff begins again"


async def test_one_of_many_slow_joins_is_tried_per_step() -> None:
    arrivals = Arrivals(*(join(n) for n in range(4)))
    chains, _, _ = loop(arrivals)
    arrivals.slow = {one.child for one in arrivals.rows}
    while arrivals.rows:
        await chains.step()
    tried = len(arrivals.asked)
    arrivals.rows = [join(n) for n in range(5)]
    await chains.step()
    assert arrivals.asked[tried:] == [1, 1], "one that is new, one that is known"
    assert arrivals.rows == [], "the others keep no place at the front"


async def test_an_unavailable_database_defers_no_join() -> None:
    arrivals = Arrivals(join(1))
    chains, _, _ = loop(arrivals)
    arrivals.away = True
    for _ in range(MOST_TRIES + 1):
        with pytest.raises(Unavailable):
            await chains.step()
    arrivals.away = False
    await chains.step()
    assert arrivals.later == []
    assert len(arrivals.wanted) == 1


@pytest.mark.parametrize(
    ("times", "pause"), [(1, PAUSE), (2, PAUSE * 2), (7, PAUSE * 64), (8, LONGEST_PAUSE)]
)
def test_pauses_grow_up_to_an_hour(times: int, pause: timedelta) -> None:
    assert pause_after(times) == pause
    assert pause_after(10_000) == LONGEST_PAUSE
