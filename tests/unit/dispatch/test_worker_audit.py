"""A worker's rejected messages: one row of the audit log a minute, however many there are."""

from __future__ import annotations

import json

import pytest

from schedd.core.runs.model import AuditRecord
from schedd.dispatch.workers.worker_audit import EVERY, MOST_KEPT, WorkerAudit
from schedkit.errors import Unavailable


class Log:
    def __init__(self) -> None:
        self.rows: list[AuditRecord] = []
        self.away = False

    async def audit(self, entry: AuditRecord) -> None:
        if self.away:
            raise Unavailable("PostgreSQL: away")
        self.rows.append(entry)

    @property
    def counts(self) -> list[int]:
        return [json.loads(row.after)["count"] for row in self.rows]


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_twenty_thousand_in_a_minute_are_two_rows() -> None:
    log, time = Log(), Time()
    audit = WorkerAudit(log, time)
    audit.note("w", "h", "result", "the run doesn't exist")
    await audit.step()
    for _ in range(20_000):
        audit.note("w", "h", "result", "the run doesn't exist")
        await audit.step() if _ % 5_000 == 0 else None
    assert log.counts == [1]
    time.now += EVERY
    await audit.step()
    assert log.counts == [1, 20_000]
    assert log.rows[0].object == "worker/w"


async def test_a_record_that_cant_be_written_now_is_written_later() -> None:
    log, time = Log(), Time()
    audit = WorkerAudit(log, time)
    audit.note("w", "h", "result", "out of bounds")
    log.away = True
    with pytest.raises(Unavailable):
        await audit.step()
    log.away = False
    await audit.step()
    assert log.counts == [1]


async def test_memory_is_bounded_by_workers() -> None:
    audit = WorkerAudit(Log(), Time())
    for number in range(MOST_KEPT + 10):
        audit.note(f"w{number}", "h", "result", "x")
    assert len(audit._kept) == MOST_KEPT
