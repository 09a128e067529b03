"""The instants of a schedule in turns: so many that run, so many that one calendar excludes, …

One idea: between two borders of closed time nothing changes, so a group is found by leaping from
border to border, and counted by the schedule's own arithmetic; nothing is looked at one by one.
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
    """Instants in a row that are alike: `count` of them, `first` to `last`.

    `decider` excludes them; None: they run.
    """

    decider: Closure | None
    first: datetime
    last: datetime
    count: int


def groups(
    every: Instants, exclusion: Exclusion, first: datetime, until: datetime, limit: int
) -> Iterator[TimeGroup]:
    """The groups from `first`, an instant, to the last one that isn't after `until`.

    Ends early, behind some group, where more than `limit` borders must be looked at.
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
