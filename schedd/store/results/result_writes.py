"""Writes of workers' results, which any member may make: the token alone protects the runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection

from schedd.core.dispatch.successes import Success, Successes
from schedd.core.ids import Token
from schedd.core.runs.model import LiveRun, ResultDecision, RunKey, Verdict
from schedd.core.runs.records import Unstarted
from schedd.store.cluster import membership
from schedd.store.connection.database import Database, in_transaction
from schedd.store.reconcile import rescue
from schedd.store.results import accept, accept_successes
from schedd.store.statements import arrays
from schedd.store.statements.bisect import halved
from schedd.store.statements.keys import key_arguments, lock_runs
from schedd.store.statements.operations import operations
from schedd.store.statements.rows import RUN_COLUMNS, decoded, live_run, run_id_of
from schedkit import failpoints
from schedkit.records import dataclass, replace

REPORTED = f"""
SELECT {RUN_COLUMNS} FROM unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[])
  b(scheduled_at, run_id)
CROSS JOIN LATERAL (
    SELECT * FROM runs r WHERE r.scheduled_at = b.scheduled_at AND r.run_id = b.run_id
      AND r.scheduled_at >= %(first)s AND r.scheduled_at < %(last)s OFFSET 0
) r
"""

STARTED = """
WITH b AS MATERIALIZED (
    SELECT *, 'RUNNING' AS running
    FROM unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[], %(tokens)s::bigint[],
        %(started)s::timestamptz[]) b(scheduled_at, run_id, token, started_at)
)
UPDATE runs r SET started_at = b.started_at FROM b
WHERE r.scheduled_at = b.scheduled_at AND r.run_id = b.run_id
  AND r.token = b.token AND r.state = b.running AND r.started_at IS NULL
"""

BEFORE_ACCEPT = failpoints.blocking("accept.before_commit")


def read_reported(connection: Connection, keys: Sequence[RunKey]) -> dict[RunKey, LiveRun]:
    """Return the present runs, without unreadable rows: those runs end as reported."""
    found = connection.exec_driver_sql(REPORTED, key_arguments(keys))
    return {run.key: run for run in decoded("runs", found, live_run, run_id_of)}


def write_starts(connection: Connection, starts: Sequence[tuple[RunKey, Token, datetime]]) -> None:
    keys = key_arguments([key for key, _, _ in starts])
    lock_runs(connection, keys)
    connection.exec_driver_sql(
        STARTED,
        keys
        | {
            "tokens": arrays.numbers(token for _, token, _ in starts),
            "started": arrays.instants(at for _, _, at in starts),
        },
    )


@operations("results")
@dataclass(frozen=True, slots=True)
class ResultWrites:
    database: Database

    async def reported_runs(self, keys: Sequence[RunKey]) -> dict[RunKey, LiveRun]:
        if not keys:
            return {}
        return await self.database.call(read_reported, keys)

    async def accept(self, reports: Sequence[ResultDecision]) -> list[Verdict | None]:
        """Return a verdict for each, in order. None: this report can't be stored. If PostgreSQL
        rejects a report, it is stored without the texts of the worker.
        """

        def body(connection: Connection, batch: Sequence[ResultDecision]) -> list[Verdict]:
            verdicts = accept.accept(connection, batch)
            BEFORE_ACCEPT()
            return verdicts

        async def write(batch: Sequence[ResultDecision]) -> list[Verdict]:
            return await self.database.call(body, batch)

        answers, broken = await halved(reports, write)
        verdicts = {
            id(report): verdict
            for batch, given in answers
            for report, verdict in zip(batch, given, strict=True)
        }
        for report in broken:
            found, _ = await halved([_bare(report)], write)
            for _, [verdict] in found:
                verdicts[id(report)] = verdict
        return [verdicts.get(id(report)) for report in reports]

    async def accept_successes(self, successes: Successes) -> list[Success]:
        """Store plain successes, 2,000 at most. Return those that weren't stored: their rows aren't
        as expected, or PostgreSQL rejects their values. `accept` decides these.
        """

        def body(connection: Connection, batch: Successes) -> list[Success]:
            others = accept_successes.accept_successes(connection, batch)
            BEFORE_ACCEPT()
            return others

        async def write(batch: Sequence[Success]) -> list[Success]:
            assert isinstance(batch, Successes), "a part of a batch is a batch"
            return await self.database.call(body, batch)

        answers, broken = await halved(successes, write)
        return [*broken, *(one for _, others in answers for one in others)]

    async def refuse(self, unstarted: Sequence[Unstarted]) -> list[RunKey]:
        """Return runs whose worker rejected them to their earlier state, guarded by the token."""

        async def write(batch: Sequence[Unstarted]) -> list[LiveRun]:
            return await self.database.call(rescue.give_back, batch, None)

        answers, _ = await halved(unstarted, write)
        return [run.key for _, back in answers for run in back]

    outdo = in_transaction(membership.outdo)

    async def started(self, starts: Sequence[tuple[RunKey, Token, datetime]]) -> None:
        """Record start times of assignments whose token is still current."""

        async def write(batch: Sequence[tuple[RunKey, Token, datetime]]) -> None:
            await self.database.call(write_starts, batch)

        await halved(starts, write)


def _bare(report: ResultDecision) -> ResultDecision:
    """Return the report without the texts and values that the worker wrote."""
    return replace(
        report,
        error="the worker's error text and output can't be stored",
        exit_code=None,
        result=None,
        output=None,
    )
