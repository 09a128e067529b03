"""Many who look at runs at the same time cost one statement."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from schedd.core.ids import Id, RunId
from schedd.core.runs.run_records import RunRecord
from schedd.store.statements.batched_reads import MOST, BatchedReads
from schedkit.errors import Unavailable


def run(number: int) -> RunId:
    return RunId(Id.from_int(number))


class Table:
    """Runs 1 to 999, and the statements that were asked of them."""

    def __init__(self) -> None:
        self.asked: list[list[RunId]] = []
        self.away = False
        self.begun = asyncio.Event()

    async def fetch(self, run_ids: Sequence[RunId]) -> list[RunRecord]:
        self.asked.append([*run_ids])
        self.begun.set()
        await asyncio.sleep(0.01)
        if self.away:
            raise Unavailable("gone")
        return [_record(each) for each in run_ids if each.number < 1000]


def _record(run_id: RunId) -> RunRecord:
    record: Any = SimpleNamespace(run=SimpleNamespace(key=SimpleNamespace(run_id=run_id)))
    return cast("RunRecord", record)


def ids(records: Sequence[RunRecord]) -> list[RunId]:
    return [record.run.key.run_id for record in records]


async def test_a_thousand_at_once_are_answered_by_a_few_statements() -> None:
    table = Table()
    gathered = BatchedReads(table.fetch)
    looks = (gathered.runs([run(number)]) for number in range(1, 1000))
    answers = await asyncio.gather(*looks)
    assert [ids(answer) for answer in answers] == [[run(number)] for number in range(1, 1000)]
    assert len(table.asked) <= 3


async def test_more_runs_than_fit_into_one_statement_are_read_by_several() -> None:
    table = Table()
    wanted = [run(number) for number in range(1, MOST + 2)]
    assert len(await BatchedReads(table.fetch).runs(wanted)) == 999
    assert [len(asked) for asked in table.asked] == [MOST, 1]


async def test_missing_runs_are_omitted() -> None:
    gathered = BatchedReads(Table().fetch)
    assert ids(await gathered.runs([run(5), run(5000), run(6)])) == [run(5), run(6)]


async def test_an_unchanged_run_is_the_same_record_object() -> None:
    gathered = BatchedReads(Table().fetch)
    [before] = await gathered.runs([run(5)])
    [after] = await gathered.runs([run(5)])
    assert after is before


async def test_a_caller_during_a_statement_is_answered_by_a_later_one() -> None:
    """The caller gets the state after its request."""
    table = Table()
    gathered = BatchedReads(table.fetch)
    first = asyncio.create_task(gathered.runs([run(1)]), name="first")
    async with asyncio.timeout(10):
        await table.begun.wait()
    await gathered.runs([run(1)])
    assert len(table.asked) == 2
    await first


async def test_an_unavailable_database_is_reported_to_all_callers() -> None:
    table = Table()
    table.away = True
    gathered = BatchedReads(table.fetch)
    looks = [gathered.runs([run(number)]) for number in range(1, 10)]
    answers = await asyncio.gather(*looks, return_exceptions=True)
    assert all(isinstance(answer, Unavailable) for answer in answers)
    table.away = False
    assert ids(await gathered.runs([run(1)])) == [run(1)]
