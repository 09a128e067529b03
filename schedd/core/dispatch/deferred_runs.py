"""Runs that wait for their time, and which of them may do so in their rows alone. Pure.

    ready within HORIZON, and more after a scan that took long    read by each scan
    ready later                                                   in memory, as it came
    ready in more than a minute, and nobody asks before           in its row, where many wait

A failure of what thousands of runs call puts all of them into their back-offs at once.
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
