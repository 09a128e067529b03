"""Decide the state that a report moves its run to, from the report and the locked row.

Invariants (docs/protocol-rules.md, P5.1)
- A run that a user canceled ends CANCELLED, whatever its worker reports. A run whose job was
  deleted isn't retried.
- An at-most-once run that was dispatched before the database was restored isn't retried: the lost
  database may have stored the same report, and retried the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from schedd.core.ids import IncarnationId, ShardId, Token
from schedd.core.runs import lifecycle
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import ResultDecision, RunKey
from schedd.core.runs.retry import fingerprint
from schedd.store.cluster import cluster_pauses
from schedd.store.statements import arrays
from schedkit.records import dataclass, replace

DELETED = """
SELECT b.job_id FROM unnest(%(jobs)s::uuid[]) b(job_id)
WHERE NOT EXISTS (SELECT FROM timers t WHERE t.job_id = b.job_id)
"""


@dataclass(frozen=True, slots=True)
class LockedRun:
    """The columns of a locked run that a verdict needs."""

    state: State
    token: Token
    incarnation: IncarnationId | None
    digest: bytes | None
    cancelling: bool
    reason: str | None
    """Why the run is being canceled; None: by a user."""
    job_id: Any
    assigned_at: datetime | None
    child: bool
    """A broadcast's child, which becomes no dead letter."""
    shard: ShardId
    spot: str
    """The row's position in its partition (ctid)."""


def resolve_states(
    connection: Connection,
    reports: Sequence[ResultDecision],
    locked_runs: Mapping[RunKey, LockedRun],
) -> list[ResultDecision]:
    """Return the reports with the final states of their runs. The caller has locked these rows."""
    again = [report for report in reports if report.state in (State.PENDING, State.RETRYING)]
    deleted = _deleted(connection, again, locked_runs)
    doubtful = _doubtful(connection, again, locked_runs)
    return [_resolved(report, locked_runs[report.key], deleted, doubtful) for report in reports]


def _resolved(
    report: ResultDecision, row: LockedRun, deleted: set[object], doubtful: set[RunKey]
) -> ResultDecision:
    if row.cancelling:
        return _cancelled(report, _reason_of(row.reason))
    if row.job_id in deleted and report.state in (State.PENDING, State.RETRYING):
        return _cancelled(report, Reason.DELETED)
    if report.key in doubtful:
        return _as_final_failure(report, row)
    lifecycle.check(State.RUNNING, report.state)
    return report


def _reason_of(text: str | None) -> Reason:
    """Return why a run is cancelled. A word of another version, or written by hand, counts as the
    user's: its result must be accepted all the same.
    """
    return Reason(text) if text and text in Reason.__members__ else Reason.BY_USER


def _cancelled(report: ResultDecision, reason: Reason) -> ResultDecision:
    return replace(
        report,
        state=State.CANCELLED,
        reason=reason,
        retry_at=None,
        counts=True,
        lost=False,
        dead=False,
    )


def _as_final_failure(report: ResultDecision, row: LockedRun) -> ResultDecision:
    """Return the report as a failure without retry: with its reason, or as WORKER_LOST."""
    reason = report.reason if report.counts else Reason.WORKER_LOST
    return replace(
        report,
        state=State.FAILED,
        reason=reason,
        retry_at=None,
        counts=True,
        dead=not row.child,
        fingerprint=fingerprint(reason, report.exit_code, report.error),
    )


def _deleted(
    connection: Connection, again: Sequence[ResultDecision], locked_runs: Mapping[RunKey, LockedRun]
) -> set[object]:
    """Return the deleted jobs of runs that would be retried. Read under the runs' locks."""
    jobs = [locked_runs[report.key].job_id for report in again]
    if not jobs:
        return set()
    return {row[0] for row in connection.exec_driver_sql(DELETED, {"jobs": arrays.ids(jobs)})}


def _doubtful(
    connection: Connection, again: Sequence[ResultDecision], locked_runs: Mapping[RunKey, LockedRun]
) -> set[RunKey]:
    """Return at-most-once runs that would be retried, and may have been retried in a lost database.
    Read under the runs' locks.
    """
    once = [report.key for report in again if report.at_most_once]
    if not once:
        return set()
    [(until,)] = connection.exec_driver_sql(f"SELECT {cluster_pauses.DOUBTFUL}")
    if until is None:
        return set()
    assigned = {key: locked_runs[key].assigned_at for key in once}
    return {key for key, at in assigned.items() if at is not None and at <= until}
