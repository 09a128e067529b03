"""Traffic while rows are locked (P1.5): keys and verdicts, not what is in the rows.

A process that stops while it reads a large result keeps its locks, and no timeout ends it: to the
server it isn't idle, it writes.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy import Connection, event

from schedd.core.jobs.definition import Priority
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import SMALL_PAYLOAD, Loss, Trigger, Verdict
from schedd.core.runs.records import Unstarted
from schedd.store.cluster.fence import LOCK_SHARDS
from schedd.store.connection.database import Database
from schedd.store.dispatch import assign as assigning
from schedd.store.dispatch.assign import PAYLOADS_UNDER_LOCKS
from schedd.store.reconcile.rescue import GIVE_BACK, RESCUE
from schedd.store.results import accept as accepting
from schedd.store.results.accept import STORED
from schedd.store.statements.keys import RUNS
from support.store import START, World, draft, firing, incarnation, manual_run, ok, report

BIG = b"x" * 300_000
LITTLE = 1_000
"""Bytes that a statement may give for each run of its batch."""

_LOCKS = re.compile(r"\b(FOR (NO KEY )?UPDATE|FOR SHARE|UPDATE|INSERT|DELETE)\b")


@pytest.mark.parametrize("size", [10, SMALL_PAYLOAD])
async def test_a_batch_reads_few_payloads_under_locks(world: World, size: int) -> None:
    """P1.5: the sum is limited, whatever the number of runs."""
    world.make_partitions([START.date()])
    me = await world.member()
    read = read_under_locks(me.store.database)
    runs = []
    for _ in range(40):
        runs += (await me.fire(firing(await world.job(shard=6)))).runs
    payload = b"x" * size
    await world.sql("UPDATE runs SET payload = %s", payload)
    read.clear()

    handed = await me.assign(*map(draft, runs))

    assert [each.payload for each in handed.assigned] == [payload] * 40
    [statement] = [each for each in read if "string_agg" in each]
    assert read[statement] <= PAYLOADS_UNDER_LOCKS + LITTLE


async def test_a_transaction_with_locks_reads_little_however_large_the_runs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1.5: payloads, outputs and results are written under locks, and read without any."""
    monkeypatch.setattr("schedd.store.connection.prepared.MOST_ROWS", 0)  # statements by their text
    me = await world.member()
    read = read_under_locks(me.store.database)
    lost = await me.store.workers.register(incarnation())
    runs = []
    for _ in range(3):
        job_id = (await world.job()).definition.job_id
        made = await me.store.users.insert_run(
            job_id, manual_run(), Trigger.MANUAL, Priority.MEDIUM, BIG, None, ok("trigger")
        )
        assert made is not None
        runs.append(made.run)
    read.clear()

    handed = await me.store.owner.assign(
        me.claim(0), [draft(run) for run in runs], me.tokens(me.claim(0))
    )
    assert [each.payload for each in handed.assigned] == [BIG] * 3, "it is read after the COMMIT"
    first = [each.run for each in handed.assigned]
    unstarted = [Unstarted(run.key, run.shard, run.token) for run in first]
    again = await me.store.owner.give_back(me.claim(0), unstarted)
    second = await me.assigned(*map(draft, again))
    failed = [
        report(run, state=State.RETRYING, retry_at=START, error="e" * 4_000, output=BIG, result=BIG)
        for run in second
    ]
    assert await me.store.results.accept(failed) == [Verdict.ACCEPTED] * 3
    assert await me.store.results.accept(failed) == [Verdict.REPEATED] * 3
    waiting = await me.store.owner.live_runs([runs[0].shard], [State.RETRYING])
    third = await me.assigned(*(draft(run, incarnation=lost.id) for run in waiting))
    losses = [
        Loss(run.key, run.shard, run.token, lost.id, State.RETRYING, Reason.WORKER_LOST)
        for run in third
    ]
    assert len(await me.store.owner.rescue(me.claim(0), losses)) == 3
    assert await me.store.results.accept(failed) == [Verdict.REPEATED] * 3

    assign = {assigning.statement(RUNS, others, lined_up=False) for others in (None, RUNS)}
    accept = accepting.statement(RUNS)
    assert {LOCK_SHARDS.text, *assign, GIVE_BACK, RESCUE, accept, STORED} <= set(read)
    assert max(read.values()) < LITTLE * len(runs), max(read, key=lambda each: read[each])


def read_under_locks(database: Database) -> dict[str, int]:
    """Bytes of the largest result that each statement gave while its transaction held locks."""
    read: dict[str, int] = {}

    def executed(connection: Connection, cursor: Any, statement: str, *_: object) -> None:
        holds = connection.info["locks"] = connection.info.get("locks") or bool(
            _LOCKS.search(statement)
        )
        if holds and cursor.description and cursor.rowcount:
            size = sum(bytes_of(value) for row in cursor.fetchall() for value in row)
            cursor.scroll(0, mode="absolute")
            read[statement] = max(size, read.get(statement, 0))

    def ended(connection: Connection) -> None:
        connection.info["locks"] = False

    event.listen(database._engine, "after_cursor_execute", executed)
    event.listen(database._engine, "commit", ended)
    event.listen(database._engine, "rollback", ended)
    return read


def bytes_of(value: object) -> int:
    """About as many as it took on the line."""
    return value.nbytes if isinstance(value, memoryview) else len(str(value))
