"""Runs that become ready later, and which of them may stay in their rows only. Pure.

    ready within HORIZON, or longer after a slow scan             read by each scan
    ready later                                                   in memory
    ready in more than a minute, and not requested earlier        only in its row, if many wait

If a service that thousands of runs call fails, all of them go into backoff at once.
"""

from datetime import datetime, timedelta
from typing import Final

from schedd.core.dispatch.ready_bucket_ids import HURRIED
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import LiveRun

HORIZON: Final = timedelta(seconds=15)
"""How far ahead a scan reads waiting runs at least: longer than any pause between two scans."""
FAR: Final = timedelta(seconds=60)
"""How far ahead a scan reads at most."""


def horizon(took: float) -> timedelta:
    """Return how far ahead to scan if the last scan took `took` seconds: past the end of the
    next scan.
    """
    return min(FAR, HORIZON + timedelta(seconds=2 * took))


def may_wait_in_its_row(run: LiveRun, now: datetime) -> bool:
    """Return whether the run's backoff is so long that a later scan reads the run in time.

    The run must not end sooner: it has no known deadline of its own, and no parent.
    """
    if run.state is not State.RETRYING or run.ready_at <= now + FAR:
        return False
    return run.parent is None and run.line is not None and not run.line & HURRIED
