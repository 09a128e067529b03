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
"""How far ahead scans read runs that wait for their time, at the least: longer than any pause
between two of them.
"""
FAR: Final = timedelta(seconds=60)
"""As far ahead as any scan reads."""


def horizon(took: float) -> timedelta:
    """How far ahead a scan reads whose last one took so many seconds: past the end of the next."""
    return min(FAR, HORIZON + timedelta(seconds=2 * took))


def may_wait_in_its_row(run: LiveRun, now: datetime) -> bool:
    """Whether it is in a back-off so long that a scan brings it in time, and can't end before: it
    has no deadline of its own, as far as is known, and no parent.
    """
    if run.state is not State.RETRYING or run.ready_at <= now + FAR:
        return False
    return run.parent is None and run.line is not None and not run.line & HURRIED
