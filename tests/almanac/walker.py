"""The walk through real time: minute by minute, asking the zone what its clocks show.

    real    00:58  00:59  01:00  01:01         real    00:59  01:00 … 01:59  02:00
    clock   01:58  01:59  03:00  03:01         clock   02:59  02:00 … 02:59  03:00
                        ╰ skipped: 02:00–02:59               ╰ shown once more

One idea: what the clock shows is written down minute after minute, and all that the rules say of
gaps and repeated hours can be read off that list: a minute that no clock showed, one that it showed
twice. Minutes of real time are numbered since 1970 UTC, those of clocks since 1970 on the clock.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

from almanac.meaning import Meaning
from schedd.core.schedule.cron import DstGap, DstOverlap, DstPolicy

_DAY = 24 * 60
_MARGIN = 180
"""Minutes walked before and after a window, so that both passes of a repeated hour are seen."""
_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Walk:
    """The clocks of a zone around a window (start, end], in seconds since 1970 UTC.

    `shown`: each minute of the clock → the minutes of real time at which it was shown.
    `gaps`: the minute of real time after each jump ahead, with the minutes that no clock showed.
    """

    zone: str
    start: int
    end: int
    shown: dict[int, list[int]] = field(default_factory=dict)
    gaps: list[tuple[int, range]] = field(default_factory=list)
    changes: list[int] = field(default_factory=list)

    @property
    def days(self) -> range:
        """The days of the clock, since 1970."""
        skipped = [minute for _, minutes in self.gaps for minute in (minutes[0], minutes[-1])]
        clock = (*skipped, min(self.shown), max(self.shown))
        return range(min(clock) // _DAY, max(clock) // _DAY + 1)


def walk(zone: str, start: int, end: int) -> Walk:
    """Walk through the minutes around (start, end] and write down what the clock shows."""
    info, walked = ZoneInfo(zone), Walk(zone, start, end)
    shown, before, now = walked.shown, None, datetime.fromtimestamp
    for real in range(start // 60 - _MARGIN, end // 60 + _MARGIN + 1):
        ahead = now(real * 60, info).utcoffset()
        if ahead != before:
            assert ahead is not None
            assert not ahead % _MINUTE, "clocks are ahead by whole minutes"
            if before is not None:
                _changed(walked, real, before // _MINUTE, ahead // _MINUTE)
            before, minutes = ahead, ahead // _MINUTE
        if (clock := real + minutes) in shown:
            shown[clock].append(real)
        else:
            shown[clock] = [real]
    return walked


def _changed(walked: Walk, real: int, before: int, ahead: int) -> None:
    """The clock was changed within the minute before `real`: exactly at its end, or this errs."""
    info = ZoneInfo(walked.zone)
    last = datetime.fromtimestamp(real * 60 - 1, info).utcoffset()
    assert last == before * _MINUTE, "clocks change at whole minutes"
    assert before - ahead < _MARGIN, "both passes are within the margin"
    walked.changes.append(real * 60)
    if ahead > before:
        walked.gaps.append((real, range(real + before, real + ahead)))


def instants(meaning: Meaning, walked: Walk, dst: DstPolicy) -> list[int]:
    """Every instant of the expression in the window, growing, in seconds since 1970 UTC."""
    if meaning.every:
        first = walked.start + meaning.every - walked.start % meaning.every
        return list(range(first, walked.end + 1, meaning.every))
    times = [hour * 60 + minute for hour in meaning.hour.values for minute in meaning.minute.values]
    matching = {
        day * _DAY + time
        for day in walked.days
        if meaning.matches_day(_date(day))
        for time in times
    }
    found: set[int] = set()
    for clock in matching & walked.shown.keys():
        passes = walked.shown[clock]
        if not meaning.wildcard and dst.overlap is DstOverlap.FIRST:
            passes = passes[:1]
        elif not meaning.wildcard and dst.overlap is DstOverlap.SECOND:
            passes = passes[-1:]
        found.update(real * 60 + second for real in passes for second in meaning.second.values)
    if not meaning.wildcard and dst.gap is DstGap.RUN_AFTER:
        found.update(real * 60 for real, skipped in walked.gaps if matching.intersection(skipped))
    return sorted(at for at in found if walked.start < at <= walked.end)


def after(found: list[int], second: int) -> tuple[int | None, int]:
    """The first of these after `second`, and how many there are after it."""
    place = bisect_right(found, second)
    return (found[place] if place < len(found) else None), len(found) - place


@cache
def _date(day: int) -> date:
    return date(1970, 1, 1) + timedelta(days=day)


@cache
def changes(zone: str) -> tuple[int, ...]:
    """The days of 2010 to 2035 in which the clocks of a zone change, as instants they begin."""
    info, found = ZoneInfo(zone), []
    first, last = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (2010, 2036))
    before = datetime.fromtimestamp(first, info).utcoffset()
    for day in range(first, last, 86400):
        ahead = datetime.fromtimestamp(day + 86400, info).utcoffset()
        if ahead != before:
            found.append(day)
        before = ahead
    return tuple(found)
