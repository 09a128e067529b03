"""The loop that has joins judged: what it asks for, with what, and whom it lets wait."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from schedd.core.chains import OF_SCHEDULES, After, Cycle, Ended, Join, Wanted, When
from schedd.core.ids import JobId, RunId, ShardId
from schedd.core.lifecycle import State
from schedd.core.model import Claim, LiveRun, Priority
from schedd.core.records import ChainRefused
from schedd.owner.board import Board
from schedd.owner.chains import LOOK_EVERY, MOST_RESULTS, MOST_TRIES, STUCK_FOR, WHILE_FED, Chains
from schedd.owner.transact import Transactor
from schedproto.v1 import common_pb2
from support.dispatching import SHELL, Definitions
from support.runs import NOW, SetClock, owning, run

PARENT = JobId(UUID(int=1))


class Arrivals:
    """What is due, in memory. `refuses`: whose joins the database refuses."""

    def __init__(self, *due: Join) -> None:
        self.rows = list(due)
        self.refuses: set[JobId] = set()
        self.wanted: list[Wanted] = []
        self.read: list[RunId] = []
        self.later: list[tuple[Join, timedelta]] = []

    async def due(self, shards: Sequence[ShardId]) -> list[Join]:
        return [one for one in self.rows if one.shard in shards]

    async def results(self, runs: Collection[RunId]) -> dict[RunId, bytes]:
        self.read += runs
        return {run: common_pb2.Payload(json="7").SerializeToString() for run in runs}

    async def join(self, claim: Claim, wanted: Sequence[Wanted]) -> list[LiveRun]:
        mine = [one for one in wanted if one.join.child not in self.refuses]
        self.wanted += mine
        self.rows = [one for one in self.rows if one not in [each.join for each in mine]]
        return [run(len(self.wanted) + n) for n, _ in enumerate(mine)]

    async def put_off(self, claim: Claim, joins: Sequence[Join], wait: timedelta) -> list[LiveRun]:
        self.later += [(one, wait) for one in joins]
        self.rows = [one for one in self.rows if one not in joins]
        return []

    async def fault(
        self, job_id: JobId | None, namespace: str, name: str, after: Collection[str]
    ) -> ChainRefused | None:
        raise AssertionError("no loop asks that")

    async def waiting(self, job_id: JobId, at: object) -> list[Join]:
        raise AssertionError("no loop asks that")


def join(n: int, *, shard: int = 0) -> Join:
    ended = Ended("a", RunId(UUID(int=n)), State.SUCCEEDED)
    cycle = Cycle(NOW, OF_SCHEDULES)
    return Join(JobId(UUID(int=100 + n)), ShardId(shard), cycle, {PARENT: ended}, NOW)


def loop(arrivals: Arrivals, *, with_output: bool = False) -> tuple[Chains, Definitions, list[int]]:
    after = After(("a",), When.SUCCESS, with_output)
    catalogue = Definitions(replace(SHELL, after=after))
    ownership = owning(0)
    board = Board(ownership, lambda _job: Priority.MEDIUM)
    transactor = Transactor(ownership, lambda: True, lambda _event: None)
    chains = Chains(board, catalogue, arrivals, transactor, SetClock())
    ready: list[int] = []
    chains.on_ready(lambda: ready.append(len(board.ready)))
    return chains, catalogue, ready


async def test_what_is_due_is_judged_by_the_present_definition_and_its_runs_are_ready() -> None:
    arrivals = Arrivals(join(1), join(2), join(3, shard=9))
    chains, _, ready = loop(arrivals)
    assert await chains.step() == WHILE_FED
    assert [one.join.child.int for one in arrivals.wanted] == [101, 102]
    assert {one.after.jobs for one in arrivals.wanted} == {("a",)}
    assert {one.payload for one in arrivals.wanted} == {None}
    assert ready == [2]
    assert arrivals.read == []
    assert await chains.step() == LOOK_EVERY


async def test_what_the_parents_gave_back_is_read_some_at_a_time() -> None:
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


async def test_what_the_database_refuses_is_put_off_and_holds_up_no_other() -> None:
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


async def test_what_runs_after_nobody_here_is_put_off() -> None:
    arrivals = Arrivals(join(1))
    chains, catalogue, _ = loop(arrivals)
    catalogue.default = SHELL
    await chains.step()
    assert arrivals.wanted == []
    assert [wait for _, wait in arrivals.later] == [STUCK_FOR]
