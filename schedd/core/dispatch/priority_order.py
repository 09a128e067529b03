"""The order in which ready runs get a slot: priority first, then age, with ageing.

Waiting lifts a run by one class each `CLASS_STEP`, so a LOW run overtakes HIGH ones that became
ready two steps later, and no sooner. That makes the order one static number a run,

    rank = ready_at − CLASS_STEP × class          (the smallest goes first)

so no clock is needed. What is late (`core/timers/catch_up_limits.py`) goes as if it were of the
class below, the oldest due first.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

from schedd.core.ids import RunId
from schedd.core.runs.model import LiveRun

CLASS_STEP = timedelta(seconds=60)

LEEWAY = CLASS_STEP / 2
"""By so much a run may go after what another member has: a head tells its oldest alone."""


def rank(priority: float, ready_at: datetime) -> float:
    """The place in the order, in seconds since the epoch; smaller goes first."""
    return ready_at.timestamp() - CLASS_STEP.total_seconds() * priority


def last_rank(priority: int, waiting_since: datetime) -> float:
    """The greatest rank of a run that needn't wait for such a head of another member."""
    return rank(priority, waiting_since) + LEEWAY.total_seconds()


def class_of(run: LiveRun) -> int:
    """Its priority's number, less one for a late run."""
    return run.priority - run.late


def rank_of(run: LiveRun) -> float:
    """Its place in the order."""
    return rank(run.priority - run.late, run.ready_at)


class Place(NamedTuple):
    """Where a run stands in the order, reckoned once: each pop looks at one of every line."""

    rank: float
    order: float
    """Of late runs of equal ranks, for they are made many at once: when they were due."""
    number: int
    """The run's id: of equal ranks the smaller goes first."""
    run: RunId
    since: datetime


def place_of(run: LiveRun) -> Place:
    """Where it stands now."""
    order = run.due_at.timestamp() if run.late else 0.0
    return Place(rank_of(run), order, run.key.run_id.int, run.key.run_id, run.ready_at)
