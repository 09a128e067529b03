"""Resolve the objects of calls, given by id or name, or as the value of an earlier call.

A job, pool or calendar given as a value is looked up in its own namespace, not in the client's.
"""

from __future__ import annotations

from schedclient.values.backfills import Backfill
from schedclient.values.base import Value
from schedclient.values.calendars import Calendar
from schedclient.values.cluster import Member, Worker
from schedclient.values.dead_letters import DeadLetter, Redrive
from schedclient.values.jobs import Job
from schedclient.values.pools import Pool
from schedclient.values.runs import Run


def run_of(given: Run | str) -> str:
    """Return the id of a run. These functions raise TypeError for values of other types."""
    return given.run_id if isinstance(given, Run) else _text(given, "run", "id", Run)


def dead_letter_of(given: DeadLetter | Run | str) -> str:
    """Return the id of the run that failed for good."""
    if isinstance(given, DeadLetter):
        return given.run.run_id
    return given.run_id if isinstance(given, Run) else _text(given, "dead letter", "id", DeadLetter)


def job_of(given: Job | str, namespace: str) -> tuple[str, str]:
    """Return the namespace of a job, and its id or name there."""
    if isinstance(given, Job):
        return given.namespace, given.job_id
    return namespace, _text(given, "job", "id or name", Job)


def pool_of(given: Pool | str, namespace: str) -> tuple[str, str]:
    """Return the namespace of a pool, and its name there."""
    if isinstance(given, Pool):
        return given.namespace, given.name
    return namespace, _text(given, "pool", "name", Pool)


def calendar_of(given: Calendar | str, namespace: str) -> tuple[str, str]:
    """Return the namespace of a calendar, and its name there."""
    if isinstance(given, Calendar):
        return given.namespace, given.name
    return namespace, _text(given, "calendar", "name", Calendar)


def backfill_of(given: Backfill | str) -> str:
    """Return the id of a backfill."""
    if isinstance(given, Backfill):
        return given.backfill_id
    return _text(given, "backfill", "id", Backfill)


def redrive_of(given: Redrive | str) -> str:
    """Return the id of a redrive."""
    return (
        given.redrive_id if isinstance(given, Redrive) else _text(given, "redrive", "id", Redrive)
    )


def worker_of(given: Worker | str) -> str:
    """Return the name of a worker."""
    return given.name if isinstance(given, Worker) else _text(given, "worker", "name", Worker)


def member_of(given: Member | str) -> str:
    """Return the name of a member."""
    return given.name if isinstance(given, Member) else _text(given, "member", "name", Member)


def _text(given: object, noun: str, called: str, value: type[Value]) -> str:
    """Return an id or name given as text. Protobuf's own error would be unclear."""
    if isinstance(given, str):
        return given
    raise TypeError(
        f"expected the {called} of a {noun} (str), or a {value.__name__} that a call returned; "
        f"got {type(given).__name__}"
    )
