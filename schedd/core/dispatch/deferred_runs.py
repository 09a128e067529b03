"""Runs that become ready later, and which of them may stay in their rows only. Pure.

    ready within HORIZON, or longer after a slow full scan        read by each full scan
    ready later                                                   in memory
    ready later than FAR, and not requested earlier               only in its row, if many wait

If a service that thousands of runs call fails, all of them go into backoff at once.
"""

from datetime import datetime, timedelta
from typing import Final

from schedd.core.dispatch.ready_bucket_ids import HURRIED
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import LiveRun

HORIZON: Final = timedelta(seconds=75)
"""How far ahead waiting runs are read at least: longer than any pause between two full scans."""
FAR: Final = timedelta(seconds=120)
"""How far ahead waiting runs are read at most."""


def horizon(took: float) -> timedelta:
    """Return how far ahead to read if the last full scan took `took` seconds: past the end of the
    next one.
    """
    return min(FAR, HORIZON + timedelta(seconds=2 * took))


def may_wait_in_its_row(run: LiveRun, now: datetime) -> bool:
    """Return whether the run's backoff is so long that a later scan reads the run in time.

    The run must not end sooner: it has no known deadline of its own, and no parent.
    """
    if run.state is not State.RETRYING or run.ready_at <= now + FAR:
        return False
    return run.parent is None and run.line is not None and not run.line & HURRIED
