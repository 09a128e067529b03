"""Store workers' reports about runs: any member writes them, fenced by the token (P5.2).

    lock the runs' rows in order ─→ compare each report with its row ─→ one statement writes
        RUNNING under this token and sender   → ACCEPTED
        this token, digest and sender stored  → REPEATED   in the row, or among earlier attempts
        anything else                         → STALE      one audit entry; none for a run that
                                                           doesn't exist

`accept_successes` stores no digest. A SUCCEEDED row without one has the digest of a plain success.

Invariants
- State, attempt, retry time, output, result, dead letter and notifications are written in one
  transaction.
- The UPDATE itself compares token and state. Earlier reads only decide what it writes.
- The run's final state is decided under its lock (`result_transition`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection

from schedd.core.ids import RunId, Token
from schedd.core.jobs.notifications import NotifiableEvent
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import AuditRecord, ResultDecision, RunKey, Verdict
from schedd.store.audit import write_once
from schedd.store.cluster.fence import BY_INDEX
from schedd.store.notify import outbox
from schedd.store.results import failure_counts
from schedd.store.results.result_transition import LockedRun, resolve_states
from schedd.store.statements import arrays
from schedd.store.statements.keys import PLACE, SPOT, found_in, key_arguments, table_of
from schedkit.outcome_digest import outcome_digest
from schedkit.records import replace

LOCK = f"""
SELECT b.n, r.*, {BY_INDEX} FROM (
    SELECT * FROM unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[]) WITH ORDINALITY
      b(scheduled_at, run_id, n) ORDER BY scheduled_at, run_id
) b CROSS JOIN LATERAL (
    SELECT r.state, r.token, r.incarnation, r.digest, r.cancelling, r.reason, r.job_id,
        r.assigned_at, r.parent IS NOT NULL AS child, r.shard, {SPOT},
        {PLACE}
    FROM runs r
    WHERE r.scheduled_at = b.scheduled_at AND r.run_id = b.run_id
      AND r.scheduled_at >= %(first)s AND r.scheduled_at < %(last)s
    FOR NO KEY UPDATE
) r
"""

ACCEPT = """
WITH b AS MATERIALIZED (
    SELECT *, 'RUNNING' AS running
    FROM unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[], %(tokens)s::bigint[],
        %(senders)s::uuid[], %(states)s::text[], %(reasons)s::text[], %(errors)s::text[],
        %(exit_codes)s::int[], %(started)s::timestamptz[], %(finished)s::timestamptz[],
        %(digests)s::bytea[], %(retries)s::timestamptz[], %(free)s::int[],
        %(lost)s::int[], %(spots)s::tid[]) WITH ORDINALITY
      AS b(scheduled_at, run_id, token, sender, state, reason, error, exit_code, started_at,
        finished_at, digest, retry_at, free, lost, spot, n)
), accepted AS (
    UPDATE {runs} r SET state = b.state, reason = b.reason, error = b.error,
        exit_code = b.exit_code,
        started_at = COALESCE(b.started_at, r.started_at),
        finished_at = COALESCE(b.finished_at, statement_timestamp()), digest = b.digest,
        ready_at = COALESCE(b.retry_at, r.ready_at), attempt = r.attempt - b.free,
        losses = r.losses + b.lost
    FROM b
    WHERE {found} AND r.token = b.token AND r.incarnation = b.sender AND r.state = b.running
    RETURNING b.n, r.shard, r.job_id, r.run_id, r.state
), gone AS (
    DELETE FROM live l USING accepted a
    WHERE a.state NOT IN ('PENDING', 'RETRYING')
      AND l.shard = a.shard AND l.job_id = a.job_id AND l.run_id = a.run_id
)
SELECT n FROM accepted
"""

STORED = """
SELECT b.n FROM unnest(%(runs)s::uuid[], %(tokens)s::bigint[], %(digests)s::bytea[],
    %(senders)s::uuid[]) WITH ORDINALITY b(run_id, token, digest, sender, n)
JOIN attempts a ON a.run_id = b.run_id AND a.token = b.token
WHERE a.digest = b.digest AND a.incarnation = b.sender
"""

ASSIGNED = """
SELECT b.n FROM unnest(%(runs)s::uuid[], %(tokens)s::bigint[]) WITH ORDINALITY b(run_id, token, n)
WHERE EXISTS (SELECT FROM attempts a WHERE a.run_id = b.run_id AND a.token = b.token)
   OR EXISTS (SELECT FROM lost_assignments l WHERE l.run_id = b.run_id AND l.token = b.token)
"""

OUTPUTS = """
INSERT INTO outputs (run_id, token, scheduled_at, pieces, stored)
SELECT * FROM unnest(%(runs)s::uuid[], %(tokens)s::bigint[], %(scheduled)s::timestamptz[],
    %(values)s::bytea[], %(stored)s::bool[]) ON CONFLICT DO NOTHING
"""

RESULTS = """
INSERT INTO results (run_id, token, scheduled_at, payload, stored)
SELECT * FROM unnest(%(runs)s::uuid[], %(tokens)s::bigint[], %(scheduled)s::timestamptz[],
    %(values)s::bytea[], %(stored)s::bool[])
ON CONFLICT (run_id) DO UPDATE SET token = EXCLUDED.token, payload = EXCLUDED.payload,
    stored = EXCLUDED.stored
"""

READ = """
SELECT run_id, payload FROM results WHERE run_id = ANY (%(runs)s::uuid[])
"""

DEAD = """
INSERT INTO dead_letters (run_id, scheduled_at, job_id, fingerprint)
SELECT * FROM unnest(%(runs)s::uuid[], %(scheduled)s::timestamptz[], %(jobs)s::uuid[],
    %(fingerprints)s::text[]) ON CONFLICT DO NOTHING
"""


def accept(connection: Connection, reports: Sequence[ResultDecision]) -> list[Verdict]:
    """Return a verdict for each report, in order. Accepted ones are written, stale ones audited."""
    keys = key_arguments([report.key for report in reports])
    rows = connection.exec_driver_sql(LOCK, keys).all()
    table = table_of(keys, {row.place for row in rows})
    locked_runs = {
        reports[n - 1].key: LockedRun(State(state), token, incarnation, _bytes(digest), *others)
        for n, state, token, incarnation, digest, *others, _, _ in rows
    }
    verdicts: list[Verdict | None] = [None] * len(reports)
    fresh: dict[RunKey, int] = {}
    for index, report in enumerate(reports):
        row = locked_runs.get(report.key)
        if report.key in fresh:
            verdicts[index] = _again(report, reports[fresh[report.key]])
        elif row is not None and _runs_under(row, report):
            fresh[report.key] = index
        elif row is not None and _stored_in(row, report):
            verdicts[index] = Verdict.REPEATED
    if fresh:
        written = _write(
            connection, [reports[index] for index in fresh.values()], locked_runs, table
        )
        for index in fresh.values():
            verdicts[index] = written.get(reports[index].key)
    doubtful = [index for index, verdict in enumerate(verdicts) if verdict is None]
    if doubtful:
        stored = _among_attempts(connection, [reports[index] for index in doubtful])
        for place, index in enumerate(doubtful):
            verdicts[index] = Verdict.REPEATED if place in stored else Verdict.STALE
    final = [verdict or Verdict.STALE for verdict in verdicts]
    stale = [report for report, each in zip(reports, final, strict=True) if each is Verdict.STALE]
    # Anyone can invent runs that don't exist: they are only counted (`worker_audit`). The same for
    # tokens: only those that were assigned are audited (`ResultDecision.audited`).
    stale = [report for report in stale if report.key in locked_runs]
    unsure = [report for report in stale if not report.audited]
    assigned = _assigned(connection, unsure, locked_runs) if unsure else set()
    write_once(
        connection,
        [_refusal(each) for each in stale if each.audited or (each.key, each.token) in assigned],
    )
    return final


def _assigned(
    connection: Connection,
    reports: Sequence[ResultDecision],
    locked_runs: Mapping[RunKey, LockedRun],
) -> set[tuple[RunKey, Token]]:
    """Return the keys and tokens that were assigned to a worker: real fencing rejections."""
    arguments = {
        "runs": arrays.ids(report.key.run_id for report in reports),
        "tokens": arrays.numbers(report.token for report in reports),
    }
    known = {row[0] - 1 for row in connection.exec_driver_sql(ASSIGNED, arguments)}
    return {
        (report.key, report.token)
        for place, report in enumerate(reports)
        if place in known or locked_runs[report.key].token == report.token
    }


def results_of(connection: Connection, runs: Collection[RunId]) -> dict[RunId, bytes]:
    """Return the results of these runs, without runs that have none."""
    rows = connection.exec_driver_sql(READ, {"runs": arrays.ids(runs)})
    return {RunId(run_id): bytes(payload) for run_id, payload in rows}


def _runs_under(row: LockedRun, report: ResultDecision) -> bool:
    return (
        row.state is State.RUNNING
        and row.token == report.token
        and row.incarnation == report.sender
    )


def _stored_in(row: LockedRun, report: ResultDecision) -> bool:
    if row.token != report.token or row.incarnation != report.sender:
        return False
    if row.digest is None and row.state is State.SUCCEEDED:  # by `accept_successes`
        return report.digest == outcome_digest(str(report.key.run_id), report.token)
    return row.digest == report.digest


def _again(report: ResultDecision, first: ResultDecision) -> Verdict:
    same = (report.token, report.digest, report.sender) == (first.token, first.digest, first.sender)
    return Verdict.REPEATED if same else Verdict.STALE


def _write(
    connection: Connection,
    reports: Sequence[ResultDecision],
    locked_runs: dict[RunKey, LockedRun],
    table: str,
) -> dict[RunKey, Verdict]:
    """Write the reports. Returns the verdict of each written one. `table`: the runs' partition."""
    final = resolve_states(connection, reports, locked_runs)
    spots = arrays.spots(locked_runs[report.key].spot for report in final)
    rows = connection.exec_driver_sql(statement(table), _arguments(final) | {"spots": spots})
    accepted = {final[n - 1].key for (n,) in rows}
    written = [report for report in final if report.key in accepted]
    outputs = [report for report in written if report.output is not None]
    results = [report for report in written if report.result is not None]
    dead = [report for report in written if report.dead and report.state is State.FAILED]
    if outputs:
        values = arrays.blobs(report.output for report in outputs)
        connection.exec_driver_sql(OUTPUTS, _keys(outputs) | _stored(outputs) | {"values": values})
    if results:
        values = arrays.blobs(report.result for report in results)
        connection.exec_driver_sql(RESULTS, _keys(results) | _stored(results) | {"values": values})
    if dead:
        columns = {
            "jobs": arrays.ids(locked_runs[report.key].job_id for report in dead),
            "fingerprints": arrays.texts(report.fingerprint for report in dead),
        }
        connection.exec_driver_sql(DEAD, _keys(dead) | columns)
    failure_counts.count(
        connection,
        (
            (of.job_id, of.shard, well, report.pause_after)
            for report in written
            if report.pause_after
            and (of := locked_runs[report.key])
            and ((well := report.state is State.SUCCEEDED) or report.state is State.FAILED)
        ),
    )
    noticed = [report for report in written if report.notices is not None]
    if noticed:
        outbox.write_notifications(connection, _happened(connection, noticed, locked_runs))
    return {
        said.key: Verdict.CANCELLED if _was_cancelled(said, stored) else Verdict.ACCEPTED
        for said, stored in zip(reports, final, strict=True)
        if said.key in accepted
    }


def _was_cancelled(said: ResultDecision, stored: ResultDecision) -> bool:
    return stored.state is State.CANCELLED and said.state is not State.CANCELLED


@lru_cache(maxsize=8)
def statement(table: str) -> str:
    return ACCEPT.format(runs=table, found=found_in(table, "b"))


def _happened(
    connection: Connection,
    noticed: Sequence[ResultDecision],
    locked_runs: Mapping[RunKey, LockedRun],
) -> Iterable[NotifiableEvent]:
    """Return the events to notify: ends, and late starts that weren't reported before."""
    late = outbox.first_time_late(connection, [one.key for one in noticed if one.late])
    for report in noticed:
        assert report.notices is not None, "only reports with notices were chosen"
        key = report.key
        of = locked_runs[key]
        happened = NotifiableEvent(
            key.scheduled_at, key.run_id, of.job_id, of.shard, report.notices, report.state
        )
        if key.run_id in late:
            yield replace(happened, state=None)
        if report.state in (State.SUCCEEDED, State.FAILED):
            yield replace(happened, dead=report.dead)


def _among_attempts(connection: Connection, reports: Sequence[ResultDecision]) -> set[int]:
    arguments = {
        "runs": arrays.ids(report.key.run_id for report in reports),
        "tokens": arrays.numbers(report.token for report in reports),
        "digests": arrays.blobs(report.digest for report in reports),
        "senders": arrays.ids(report.sender for report in reports),
    }
    return {row[0] - 1 for row in connection.exec_driver_sql(STORED, arguments)}


def _arguments(reports: Sequence[ResultDecision]) -> dict[str, object]:
    return key_arguments([report.key for report in reports]) | {
        "tokens": arrays.numbers(report.token for report in reports),
        "senders": arrays.ids(report.sender for report in reports),
        "states": arrays.texts(report.state.value for report in reports),
        "reasons": arrays.texts(report.reason and report.reason.value for report in reports),
        "errors": arrays.texts(report.error for report in reports),
        "exit_codes": arrays.numbers(report.exit_code for report in reports),
        "started": arrays.instants(report.started_at for report in reports),
        "finished": arrays.instants(report.finished_at for report in reports),
        "digests": arrays.blobs(report.digest for report in reports),
        "retries": arrays.instants(report.retry_at for report in reports),
        "free": arrays.numbers(0 if report.counts else 1 for report in reports),
        "lost": arrays.numbers(1 if report.lost else 0 for report in reports),
    }


def _keys(reports: Sequence[ResultDecision]) -> dict[str, object]:
    return key_arguments([report.key for report in reports]) | {
        "tokens": arrays.numbers(report.token for report in reports)
    }


def _stored(reports: Sequence[ResultDecision]) -> dict[str, object]:
    return {"stored": arrays.flags(report.stored for report in reports)}


def _refusal(report: ResultDecision) -> AuditRecord:
    return AuditRecord(
        actor=f"worker/{report.worker}",
        action="result",
        object=f"run/{report.key.run_id}",
        outcome="refused",
        reason=Verdict.STALE.value,
        run_id=report.key.run_id,
        token=report.token,
        worker=report.worker,
        source=str(report.sender),
    )


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
