"""Job definitions and their scheduled times, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from schedclient.values.base import Value
from schedclient.values.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class After(Value):
    """The jobs that a job runs after, and their outcome: SUCCESS (also if None), FAILURE or ANY."""

    jobs: tuple[str, ...]
    when: str | None
    with_output: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Value):
    """A definition. `message` has all of it; the fields here are those that most programs need."""

    job_id: str
    namespace: str
    name: str
    generation: int
    etag: str
    labels: Mapping[str, str]
    cron: tuple[str, ...]
    every: timedelta | None
    at: datetime | None
    on_demand: bool
    after: After | None
    time_zone: str | None
    priority: str | None
    pool: str | None
    timeout: timedelta | None
    paused: bool
    pause_note: str | None
    paused_until: datetime | None
    max_runs: int
    runs_created: int
    calendar_versions: Mapping[str, int]
    next_run_at: datetime | None
    created_at: datetime | None
    updated_at: datetime | None
    warnings: tuple[str, ...] = ()
    """Why no running worker can take its runs, in answers to create and update."""

    @property
    def action(self) -> str | None:
        """shell, http, grpc, python or plugin."""
        chosen: str | None = self.message.WhichOneof("action")
        return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant(Value):
    """A future scheduled time of a job, without and with jitter. `excluded_by`: the calendar that
    excludes it, in words.
    """

    scheduled_at: datetime
    due_at: datetime
    excluded_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstantExplanation(Value):
    """Why a job ran, or not, at a scheduled time, and its row; None if there is none."""

    answer: str
    run: Run | None
    backfilled: tuple[Run, ...]
    """Runs that backfills created for this scheduled time, oldest first."""
