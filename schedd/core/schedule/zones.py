"""Time zones as spans of constant offset: the pinned tzdata, cut into cached segments.

The conversion from local time to UTC needs three facts about a moment. They are the span around it
with a constant offset, and the offsets just before and after that span.

Invariants
- The rules come only from the package `tzdata`, never from the system's files. Two members with the
  same package compute the same times.
- The segments of a zone cover the time line without gaps or overlaps. They are cut at every change
  of offset. They are also cut at the borders of blocks of about 24 days, so that each block can be
  computed and cached alone. There `before` or `after` equal `offset`.
- The border of a block is a change of offset, or more than `NEAR` away from any change. So a
  repeated hour at the end of a segment lies wholly in that segment, and wholly at the start of the
  next.
- Probes every 5 days find every change: the two closest ones in tzdata since 1945 are 6.9 days
  apart. A unit test compares the segments with the transitions of the compiled files.
"""

import difflib
import re
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache, lru_cache
from importlib import import_module
from typing import Final

from schedkit.records import dataclass

zoneinfo.reset_tzpath(())
zoneinfo.ZoneInfo.clear_cache()

_BLOCK_BITS: Final = 21
_PROBE: Final = 5 * 86400
NEAR: Final = 2 * 86400
"""Two days, in seconds: no clock is ever set by more."""
_FOREVER: Final = 1 << 40

FIRST: Final = -(1 << 33)
LAST: Final = 253_000_000_000
"""End of zone rules, in seconds since 1970. FIRST to LAST are the years 1697 to 9987."""


class UnknownZone(ValueError):
    """tzdata has no zone of that name. `hint` says what to write instead. `suggestion`: the zone
    that is likely meant, or None. Its offset never differs from an offset that the name states.
    """

    def __init__(self, name: str, suggestion: str | None, hint: str) -> None:
        super().__init__(f"unknown time zone {name!r}")
        self.name = name
        self.suggestion = suggestion
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Segment:
    """A span of time with one offset. All numbers are whole seconds; times count since 1970 UTC.

    `start` is inclusive, `end` exclusive. `before` and `after` are the offsets just outside.
    `before < offset`: local time jumped forward at `start` (a gap). `before > offset`: local time
    went back (an overlap).
    """

    start: int
    end: int
    before: int
    offset: int
    after: int


_NO_TIME: Final = Segment(0, 0, 0, 0, 0)


class Zone:
    """A time zone. Get it from `zone(name)`.

    Thread-safe: two threads that cut the same block at once get the same result.
    """

    __slots__ = ("_blocks", "info", "latest", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.info = zoneinfo.ZoneInfo(name)
        self.latest: Segment = _NO_TIME
        """The segment of the latest answer, which mostly serves the next one too."""
        self._blocks: dict[int, tuple[Segment, ...]] = {}

    def segment(self, second: int) -> Segment:
        """Return the segment that holds this time (seconds since 1970 UTC)."""
        number = second >> _BLOCK_BITS
        block = self._blocks.get(number) or self._cut(number)
        if second < block[0].start:
            block = self._blocks.get(number - 1) or self._cut(number - 1)
        elif second >= block[-1].end:
            block = self._blocks.get(number + 1) or self._cut(number + 1)
        for segment in block:
            if second < segment.end:
                self.latest = segment
                return segment
        raise AssertionError("unreachable: the segments of a block cover each of its seconds")

    def segments(self, after: int, until: int) -> Iterator[Segment]:
        """Yield the segments that reach into (after, until], in order."""
        segment = self.segment(after + 1)
        yield segment
        while segment.end <= until:
            segment = self.segment(segment.end)
            yield segment

    def offset(self, second: int) -> int:
        """Return the seconds by which local time is ahead of UTC at this time."""
        # Read from the zone itself, since blocks are built from these offsets.
        if not FIRST <= second <= LAST:
            second = FIRST if second < FIRST else LAST
        delta = datetime.fromtimestamp(second, self.info).utcoffset()
        assert delta is not None
        return delta.days * 86400 + delta.seconds

    def passes(self, local: int) -> tuple[int, ...]:
        """Return when the zone's clocks show this local time, in seconds since 1970 UTC: never if
        the clocks skip it, twice if they are set back over it.
        """
        segment = self.segment(local)
        if segment.start + NEAR <= local - segment.offset < segment.end - NEAR:
            return (local - segment.offset,)
        return tuple(
            local - segment.offset
            for segment in self.segments(local - NEAR, local + NEAR)
            if segment.start <= local - segment.offset < segment.end
        )

    def instants(self, local: datetime) -> list[datetime]:
        """Return the `passes` of a local time, to the microsecond."""
        shown = int(local.replace(tzinfo=UTC, microsecond=0).timestamp())
        found = (datetime.fromtimestamp(each, UTC) for each in self.passes(shown))
        return [each.replace(microsecond=local.microsecond) for each in found]

    def _cut(self, number: int) -> tuple[Segment, ...]:
        start, before, offset = self._border(number)
        end, last, beyond = self._border(number + 1)
        segments: list[Segment] = []
        low = start
        while low < end:
            high = min(low + _PROBE, end)
            after = last if high == end else self.offset(high)
            if after != offset:
                # At `end`, compare `last`, the offset up to there.
                change = self._change(low, high, offset)
                after = self.offset(change)
                segments.append(Segment(start, change, before, offset, after))
                start, before, offset, high = change, offset, after, change
            low = high
        segments.append(Segment(start, end, before, offset, beyond))
        found = self._blocks[number] = tuple(segments)
        return found

    def _border(self, number: int) -> tuple[int, int, int]:
        """Return where block `number` begins, at a change of offset that is near, and the offsets
        before it and from there on.
        """
        border = number << _BLOCK_BITS
        before, offset = self.offset(border - NEAR), self.offset(border + NEAR)
        if before != offset:
            border = self._change(border - NEAR, border + NEAR, before)
        return border, before, offset

    def _change(self, low: int, high: int, offset: int) -> int:
        """Return the first second after `low` whose offset isn't `offset`, the offset at `low`."""
        while high - low > 1:
            middle = (low + high) // 2
            if self.offset(middle) == offset:
                low = middle
            else:
                high = middle
        return high


class _FixedUtc(Zone):
    """UTC: one segment for all time."""

    __slots__ = ()

    def segment(self, second: int) -> Segment:
        del second
        return _ALL_TIME


_ALL_TIME: Final = Segment(-_FOREVER, _FOREVER, 0, 0, 0)


@lru_cache(maxsize=1024)
def zone(name: str) -> Zone:
    """Return the zone of an IANA name, spelled exactly. Raises UnknownZone with a suggestion."""
    if name not in _names():
        raise _unknown(name)
    return _FixedUtc(name) if name in _UTC_NAMES else Zone(name)


def tzdata_version() -> str:
    """Return the version of the time zone rules in use, such as "2026f"."""
    return str(import_module("tzdata").IANA_VERSION)


_UTC_NAMES: Final = frozenset({"UTC", "Etc/UTC", "Etc/UCT", "UCT", "Zulu", "Etc/Zulu", "Universal"})


@cache
def _names() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())


# -- What to write instead of a name that isn't a zone, or isn't the zone that it seems to be --

ABBREVIATIONS: Final = {
    "ACST": ("Australia/Darwin", "Australia/Adelaide"),
    "ACDT": ("Australia/Adelaide",),
    "ADT": ("America/Halifax",),
    "AEDT": ("Australia/Sydney",),
    "AEST": ("Australia/Brisbane", "Australia/Sydney"),
    "AKDT": ("America/Anchorage",),
    "AKST": ("America/Anchorage",),
    "AST": ("America/Puerto_Rico", "America/Halifax"),
    "AWST": ("Australia/Perth",),
    "BST": ("Europe/London",),
    "CDT": ("America/Chicago",),
    "CEST": ("Europe/Berlin",),
    "CET": ("Europe/Berlin",),
    "CST": ("America/Chicago", "Asia/Shanghai"),
    "CST6CDT": ("America/Chicago",),
    "EDT": ("America/New_York",),
    "EEST": ("Europe/Riga",),
    "EET": ("Europe/Riga",),
    "EST": ("America/New_York", "America/Panama"),
    "EST5EDT": ("America/New_York",),
    "HKT": ("Asia/Hong_Kong",),
    "HST": ("Pacific/Honolulu",),
    "IST": ("Asia/Kolkata", "Europe/Dublin", "Asia/Jerusalem"),
    "JST": ("Asia/Tokyo",),
    "KST": ("Asia/Seoul",),
    "MDT": ("America/Denver",),
    "MET": ("Europe/Berlin",),
    "MSK": ("Europe/Moscow",),
    "MST": ("America/Phoenix", "America/Denver"),
    "MST7MDT": ("America/Denver",),
    "NZDT": ("Pacific/Auckland",),
    "NZST": ("Pacific/Auckland",),
    "PDT": ("America/Los_Angeles",),
    "PKT": ("Asia/Karachi",),
    "PST": ("America/Los_Angeles",),
    "PST8PDT": ("America/Los_Angeles",),
    "SAST": ("Africa/Johannesburg",),
    "WEST": ("Europe/Lisbon",),
    "WET": ("Europe/Lisbon",),
    "WIB": ("Asia/Jakarta",),
}
"""Abbreviations, and the places that use them. A test checks each with tzdata."""

_FIXED: Final = (
    *("Asia/Kolkata", "Asia/Kathmandu", "Asia/Tehran", "Asia/Kabul", "Asia/Yangon"),
    *("Australia/Darwin", "Australia/Eucla", "Pacific/Marquesas", "Asia/Colombo"),
)
"""Places with a constant offset that isn't whole hours."""

_OFFSET: Final = re.compile(
    r"(?:etc/)?(?:(?:gmt|utc?|z)\s*)?([+\-\u2212])\s*(\d{1,2})(?::?(\d{2}))?", re.ASCII
)
TWO_YEARS: Final = (1_798_761_600, 1_861_920_000)
"""2027 and 2028, the years over which the offsets of zones are compared."""


def _unknown(name: str) -> UnknownZone:
    suggestion, hint = None, "an IANA name, for example Europe/Berlin"
    offset = _OFFSET.fullmatch(name.strip().casefold())
    if offset is not None:
        suggestion, hint = _of_offset(offset)
    elif places := ABBREVIATIONS.get(_stem(name)):
        hint = f"an abbreviation isn't a zone: write {' or '.join(places)}"
        suggestion = places[0] if len(places) == 1 else None
    elif suggestion := _closest(name):
        hint = f"did you mean {suggestion}?"
    return UnknownZone(name, suggestion, hint)


def _stem(name: str) -> str:
    """Return the winter abbreviation of a POSIX zone such as `CET-1CEST,M3.5.0,M10.5.0/3`."""
    posix = re.match(r"([A-Z]{3,4})[+-]?\d{1,2}(?:[A-Z]{3,4}|$)", name.strip().upper(), re.ASCII)
    return posix[1] if posix else name.strip().upper()


def _of_offset(found: re.Match[str]) -> tuple[str | None, str]:
    """Return zone and hint for a fixed offset in common notation: GMT+2 is ahead of UTC."""
    hours, minutes = int(found[2]), int(found[3] or 0)
    ahead = (hours * 3600 + minutes * 60) * (1 if found[1] == "+" else -1)
    said = f"UTC{found[1].replace('-', MINUS)}{hours}" + (f":{minutes:02}" if minutes else "")
    if minutes:
        choices = [place for place in _FIXED if constant_offset(place) == ahead]
    else:
        choices = [f"Etc/GMT{-ahead // 3600:+d}"] if ahead else ["UTC"]
    choices = [place for place in choices if place in _names() and constant_offset(place) == ahead]
    if not choices:
        return None, f"no zone is always {said}; name a city, for example Europe/Berlin"
    reversed_name = f"Etc/GMT{found[1].replace(MINUS, '-')}{hours}"
    hint = ""
    if not minutes and ahead and reversed_name in _names():
        hint = f"{reversed_name} means {offset_text(constant_offset(reversed_name) or 0)}; "
    return choices[0], f"{hint}for {said} write {choices[0]}, or a city with its clock changes"


MINUS: Final = "\u2212"


def offset_text(seconds: int) -> str:
    """Return an offset as text: `UTC+2`, `UTC−5:30`."""
    hours, minutes = divmod(abs(seconds) // 60, 60)
    sign = MINUS if seconds < 0 else "+"
    return f"UTC{sign}{hours}" + (f":{minutes:02}" if minutes else "")


def offsets_of(name: str) -> tuple[tuple[int, int], ...]:
    """Return the offsets of a zone in two years, each with the time from which it applies."""
    first, last = TWO_YEARS
    found: list[tuple[int, int]] = []
    for segment in zone(name).segments(first, last):
        if not found or found[-1][1] != segment.offset:
            found.append((max(segment.start, first), segment.offset))
    return tuple(found)


def constant_offset(name: str) -> int | None:
    """Return the offset of a zone if it doesn't change in two years; None: it does."""
    found = offsets_of(name)
    return found[0][1] if len(found) == 1 else None


def doubts(name: str) -> tuple[str, str] | None:
    """Return why an existing zone (`EST`, `Etc/GMT+2`) is surprising, and what to write instead."""
    if found := re.fullmatch(r"Etc/GMT([+-])(\d+)", name):
        offset = constant_offset(name)
        if offset:
            other = f"Etc/GMT{'-' if found[1] == '+' else '+'}{found[2]}"
            problem = f"{name} means {offset_text(offset)}: in Etc/ the signs are reversed"
            if other not in _names() or constant_offset(other) != -offset:
                return problem, "name a city"
            return problem, f"for {offset_text(-offset)} write {other}; or name a city"
    places = ABBREVIATIONS.get(name)
    if not places:
        return None
    hints = []
    for place in places:
        if offsets_of(place) == offsets_of(name):
            hints.append(place)
        else:
            hints.append(f"{place} (other offsets: {_span(place)}; {name} is {_span(name)})")
    problem = f"{name} is an abbreviation, not a place"
    return problem, f"write the place that is meant: {', or '.join(hints)}"


def _span(name: str) -> str:
    """Return the offsets of a zone within two years, in words."""
    offsets = sorted({offset for _, offset in offsets_of(name)})
    if len(offsets) == 1:
        return f"{offset_text(offsets[0])} all year"
    return " and ".join(offset_text(offset) for offset in offsets)


def _closest(name: str) -> str | None:
    """Return the likeliest zone: equal except for case, the same city, or a near spelling, but not
    of a name that may state an offset.
    """
    folded = {known.casefold(): known for known in sorted(_names())}
    wanted = name.strip().replace(" ", "_").casefold()
    if wanted in folded:
        return folded[wanted]
    if any(letter.isdigit() for letter in wanted) or ("/" not in wanted and len(wanted) < 6):
        return None
    cities = {
        known.rsplit("/", 1)[-1]: known
        for known in sorted(folded, reverse=True)
        if not known.startswith("etc/") and "/" in known
    }
    for choices in (cities, folded):
        key = wanted.rsplit("/", 1)[-1] if choices is cities else wanted
        for close in difflib.get_close_matches(key, choices, n=1, cutoff=0.75):
            return folded[cities[close]] if choices is cities else folded[close]
    return None
