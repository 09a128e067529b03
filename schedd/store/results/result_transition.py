"""Where a report's run really goes: what was decided from it, and what its row says under its lock.

Invariants (PROTOCOL 5)
- A run that somebody cancelled ends CANCELLED whatever its worker says; one whose job was deleted
  is not retried.
- Nor is one that runs at most once and was handed out before the database went back: the same
  report may have been stored in what was lost, and the run begun again there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from schedd.core.ids import IncarnationId, ShardId, Token
from schedd.core.runs import lifecycle
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import Report, RunKey
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
    """A run's row as its lock found it, as far as a verdict needs."""

    state: State
    token: Token
    incarnation: IncarnationId | None
    digest: bytes | None
    cancelling: bool
    reason: str | None
    """Of a run that is being cancelled: on whose behalf, if not a person's."""
    job_id: Any
    assigned_at: datetime | None
    child: bool
    """Of a broadcast: it becomes no dead letter."""
    shard: ShardId
    spot: str
    """Where the row is, in its table."""


def settle(
    connection: Connection, reports: Sequence[Report], standing: Mapping[RunKey, LockedRun]
) -> list[Report]:
    """The reports with the states that their runs go to. Called under the locks of these rows."""
    again = [report for report in reports if report.state in (State.PENDING, State.RETRYING)]
    deleted = _deleted(connection, again, standing)
    doubtful = _doubtful(connection, again, standing)
    return [_settled(report, standing[report.key], deleted, doubtful) for report in reports]


def _settled(report: Report, row: LockedRun, deleted: set[object], doubtful: set[RunKey]) -> Report:
    if row.cancelling:
        return _cancelled(report, _reason_of(row.reason))
    if row.job_id in deleted and report.state in (State.PENDING, State.RETRYING):
        return _cancelled(report, Reason.DELETED)
    if report.key in doubtful:
        return _ended(report, row)
    lifecycle.check(State.RUNNING, report.state)
    return report


def _reason_of(text: str | None) -> Reason:
    """Return why a run is cancelled. A word of another version, or written by hand, counts as the
    user's: its result must be accepted all the same.
    """
    return Reason(text) if text and text in Reason.__members__ else Reason.BY_USER


def _cancelled(report: Report, reason: Reason) -> Report:
    return replace(
        report,
        state=State.CANCELLED,
        reason=reason,
        retry_at=None,
        counts=True,
        lost=False,
        dead=False,
    )


def _ended(report: Report, row: LockedRun) -> Report:
    """It would wait again, and may not: as its attempt failed, or else as if that was lost."""
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
    connection: Connection, again: Sequence[Report], standing: Mapping[RunKey, LockedRun]
) -> set[object]:
    """Jobs, of those whose runs would wait again, that are no more. Read under the runs' locks."""
    jobs = [standing[report.key].job_id for report in again]
    if not jobs:
        return set()
    return {row[0] for row in connection.exec_driver_sql(DELETED, {"jobs": arrays.ids(jobs)})}


def _doubtful(
    connection: Connection, again: Sequence[Report], standing: Mapping[RunKey, LockedRun]
) -> set[RunKey]:
    """What runs at most once, of those that would wait again, and may have been begun again in a
    database that was lost. Read under the runs' locks.
    """
    once = [report.key for report in again if report.at_most_once]
    if not once:
        return set()
    [(until,)] = connection.exec_driver_sql(f"SELECT {cluster_pauses.DOUBTFUL}")
    if until is None:
        return set()
    handed = {key: standing[key].assigned_at for key in once}
    return {key for key, at in handed.items() if at is not None and at <= until}
