"""Consecutive times of a schedule in groups: some that run, some that one calendar excludes, …

Between two borders of closed time nothing changes. So a group is found by jumps from border to
border, and counted by the schedule's own arithmetic. No time is examined singly.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from schedd.core.schedule.calendars.exclusion import Closure, Exclusion
from schedd.core.schedule.scheduled_times import Instants, newest
from schedkit.records import dataclass

_TICK: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class TimeGroup:
    """Consecutive times that are alike: `count` of them, `first` to `last`.

    `decider` excludes them; None: they run.
    """

    decider: Closure | None
    first: datetime
    last: datetime
    count: int


def groups(
    every: Instants, exclusion: Exclusion, first: datetime, until: datetime, limit: int
) -> Iterator[TimeGroup]:
    """Yield the groups from `first`, a scheduled time, to the last one that isn't after `until`.

    Ends earlier, after a group, if more than `limit` borders would have to be examined.
    """
    looked = 0
    start: datetime | None = first
    while start is not None and start <= until:
        decider = exclusion.decider(start)
        edge, following = start, None
        while True:
            looked += 1
            if looked > limit:
                until = edge
            border = exclusion.border_after(edge)
            if border is None or border > until:
                following = None
                break
            following = every.next_after(border - _TICK)
            if following is None or following > until:
                following = None
                break
            if exclusion.decider(following) is not decider:
                break
            edge = following
        stop = until if following is None else following - _TICK
        last = newest(every.next_after, start, stop) or start
        more, reached = every.count(start, last, limit)
        yield TimeGroup(decider, start, reached, 1 + more)
        if reached != last:
            return
        start = following
