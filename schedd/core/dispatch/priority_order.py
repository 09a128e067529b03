"""Order in which ready runs get a slot: priority first, then age, with aging.

A waiting run rises by one class each `CLASS_STEP`. So a LOW run overtakes HIGH runs that became
ready more than two steps later. The order is one constant number for each run,

    rank = ready_at − CLASS_STEP × class          (the smallest goes first)

so no clock is needed. A late run (`core/timers/catch_up_limits.py`) counts as a run of the class
below, the oldest due first.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from math import inf
from typing import Any, NamedTuple

from schedd.core.ids import RunId
from schedd.core.runs.model import LiveRun, RunKey

CLASS_STEP = timedelta(seconds=60)

LEEWAY = CLASS_STEP / 2
"""By how much a run may follow another member's head. A head gives only its oldest run's age."""


def rank(priority: float, ready_at: datetime) -> float:
    """Return the place in the order, in seconds since the epoch; smaller goes first."""
    return ready_at.timestamp() - CLASS_STEP.total_seconds() * priority


def last_rank(priority: int, waiting_since: datetime) -> float:
    """Return the greatest rank that needn't wait for another member's head of this priority and
    age.
    """
    return rank(priority, waiting_since) + LEEWAY.total_seconds()


def class_of(run: LiveRun) -> int:
    """Return the number of the run's priority, less one for a late run."""
    return run.priority - run.late


def rank_of(run: LiveRun) -> float:
    return rank(run.priority - run.late, run.ready_at)


class Place(NamedTuple):
    """A run's place in the order, computed once: each pop compares one of every bucket."""

    rank: float
    order: float
    """Due time, which orders late runs of equal ranks: many of them are created at once."""
    run: RunId
    """Of equal ranks, the smaller id goes first."""
    since: datetime


def places_of(runs: Iterable[LiveRun], priority: int, *, late: bool) -> list[Place]:
    """Return the places of runs of one priority, all of which are late or none."""
    above = CLASS_STEP.total_seconds() * (priority - late)
    new: Any = tuple.__new__  # a call of `Place` for each would double the time
    return [
        new(
            Place,
            (
                run.ready_at.timestamp() - above,
                run.due_at.timestamp() if late else 0.0,
                run.key.run_id,
                run.ready_at,
            ),
        )
        for run in runs
    ]


def place_at(key: RunKey, priority: int, *, late: bool) -> Place:
    """Return the first place of this priority that a run with this key or a greater one may have.
    A key has the scheduled time, before which no run is ready.
    """
    at = rank(priority - late, key.scheduled_at)
    return Place(at, -inf if late else 0.0, key.run_id, key.scheduled_at)
