"""Broadcasts: one run of the job, and a child run for each matching worker
(docs/semantics/broadcasts.md).

Only the parent counts: for overlap, `max_runs`, the job's history, consecutive failures, dead
letters and notifications. No worker holds it, so a worker's result, loss or rejection never ends
it. A child is an ordinary run that only one worker, by name, may take.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from schedd.core.dispatch.placement import Need, able
from schedd.core.ids import JobId, ShardId
from schedd.core.jobs.definition import Definition
from schedd.core.jobs.notifications import Notices
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import Incarnation, LiveRun, RunKey
from schedkit.records import dataclass, replace

WORKER_AWAY: Final = timedelta(minutes=10)
"""How long a child waits for its worker's return if its job has no `start_deadline`."""
NAMED_AT_MOST: Final = 20
"""The most children that the error of a broadcast names."""


@dataclass(frozen=True, slots=True)
class BroadcastChild:
    worker: str
    state: State
    reason: str | None


@dataclass(frozen=True, slots=True)
class End:
    state: State
    reason: Reason | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Closing:
    """A broadcast that may have ended, with the settings of its job for that."""

    key: RunKey
    job_id: JobId
    shard: ShardId
    pause_after: int = 0
    notices: Notices | None = None


@dataclass(frozen=True, slots=True)
class ClosedBroadcasts:
    """The broadcasts that ended, and the affected children of canceled broadcasts."""

    ended: list[LiveRun]
    waited: list[tuple[RunKey, JobId, Reason | None]]
    """Waiting children that were ended, with the reason in their rows."""
    cancelled: list[LiveRun]
    """Running children; their workers must be notified."""


def own(run: LiveRun, definition: Definition) -> Definition:
    """Return the definition that applies to a run: a child counts no failures and no `max_runs`,
    and sends no notifications.
    """
    if run.parent is None:
        return definition
    return replace(definition, notices=None, pause_after_failures=0, max_runs=0)


def targets(need: Need, workers: Iterable[Incarnation]) -> tuple[str, ...]:
    """Return the names of workers that could run it with all their slots free, each name once."""
    plain = replace(need, each=False)
    return tuple(sorted({one.worker for one in workers if able(one, plain)}))


def end_of(children: Sequence[BroadcastChild], cancelled: Reason | None, *, deleted: bool) -> End:
    """Return the end of a broadcast whose children have ended. `cancelled`: why it was canceled."""
    failed = [child for child in children if child.state is not State.SUCCEEDED]
    text = _failed_text(failed, len(children))
    if cancelled is not None:
        return End(State.CANCELLED, cancelled, text)
    if not failed:
        return End(State.SUCCEEDED)
    if deleted and all(child.state is State.CANCELLED for child in failed):
        return End(State.CANCELLED, Reason.DELETED, text)
    return End(State.FAILED, Reason.CHILDREN_FAILED, text)


def _failed_text(failed: Sequence[BroadcastChild], of: int) -> str:
    """Return text such as "2 of 5 didn't succeed: w1 (EXIT_CODE), w2 (MISSED)"."""
    if not failed:
        return ""
    named = [
        f"{child.worker} ({child.reason or child.state})"
        for child in sorted(failed, key=lambda child: child.worker)[:NAMED_AT_MOST]
    ]
    more = ", …" if len(failed) > NAMED_AT_MOST else ""
    return f"{len(failed)} of {of} didn't succeed: {', '.join(named)}{more}"


class Away:
    """The times since when children wait for missing workers, as seen by one owner. A new owner
    starts at zero, so a child may wait longer, never shorter.
    """

    def __init__(self) -> None:
        self._since: dict[Need, datetime] = {}

    def update_waiting(
        self, needs: Iterable[Need], workers: Sequence[Incarnation], now: datetime
    ) -> None:
        """Record which of the needs no present worker meets."""
        away = {need for need in needs if not any(able(one, need) for one in workers)}
        self._since = {need: self._since.get(need, now) for need in away}

    def too_long(self, need: Need, definition: Definition, now: datetime) -> bool:
        """Return whether the child's worker has been missing for as long as the child may wait."""
        since = self._since.get(need)
        return since is not None and now - since >= (definition.start_deadline or WORKER_AWAY)
