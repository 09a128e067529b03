"""Next instants against two other readings of the same rules, over the zones that catch mistakes.

The walker below goes through the minutes one by one and knows nothing of masks, segments or
searches: slow, plain, and written from SEMANTICS alone. cronsim is the other reading, where the
dialects agree.
"""

import calendar
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from schedd.core import cron
from schedd.core.cron import Dst, Gap, Pass

ZONES = (
    "Europe/Riga",
    "America/New_York",
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "America/Havana",
    "Pacific/Apia",
    "Africa/Casablanca",
    "Europe/Dublin",
    "Asia/Kathmandu",
    "UTC",
)
# Where wildcard jobs of cronsim 2.8 lose a time after a shift of half an hour, or run at one that
# doesn't match when midnight is skipped (it takes the missing 00:00 for a match).
CRONSIM_ERRS = ("Australia/Lord_Howe", "Africa/Cairo", "America/Havana", "Pacific/Apia")
WINDOW = timedelta(days=3)
EXAMPLES = int(os.environ.get("CRON_EXAMPLES", "300"))
MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Field:
    """One field as text, and which values it means."""

    text: str
    values: frozenset[int]
    days: tuple[Callable[[date], bool], ...] = ()

    @property
    def star(self) -> bool:
        return self.text.startswith("*")


@dataclass(frozen=True)
class Expression:
    """Five fields, and the test whether a local minute matches."""

    minute: Field
    hour: Field
    day: Field
    month: Field
    weekday: Field

    @property
    def text(self) -> str:
        fields = (self.minute, self.hour, self.day, self.month, self.weekday)
        return " ".join(field.text for field in fields)

    @property
    def wildcard(self) -> bool:
        return self.minute.star or self.hour.star

    def matches(self, at: datetime) -> bool:
        return (
            at.minute in self.minute.values
            and at.hour in self.hour.values
            and self.matches_day(at.date())
        )

    def matches_day(self, at: date) -> bool:
        if at.month not in self.month.values:
            return False
        by_month = at.day in self.day.values or any(test(at) for test in self.day.days)
        sunday_first = (at.weekday() + 1) % 7
        by_week = sunday_first in self.weekday.values or any(t(at) for t in self.weekday.days)
        if self.day.star or self.weekday.star:
            return by_month and by_week
        return by_month or by_week


# -- The walker --


def walk(
    expression: Expression, zone: str, start: datetime, end: datetime, dst: Dst
) -> set[datetime]:
    """Every instant in (start, end], minute by minute."""
    info = ZoneInfo(zone)
    if expression.wildcard:
        minutes = minutes_between(start + MINUTE, end + MINUTE)
        return {at for at in minutes if expression.matches(at.astimezone(info))}
    margin = timedelta(days=2)
    local = minutes_between(
        (start - margin).replace(tzinfo=None), (end + margin).replace(tzinfo=None)
    )
    found = {
        instant for at in local if expression.matches(at) for instant in instants_of(at, info, dst)
    }
    return {at for at in found if start < at <= end}


def minutes_between(start: datetime, end: datetime) -> Iterator[datetime]:
    while start < end:
        yield start
        start += MINUTE


def instants_of(local: datetime, info: ZoneInfo, dst: Dst) -> set[datetime]:
    """When a fixed local time happens."""
    first = local.replace(tzinfo=info, fold=0).astimezone(UTC)
    second = local.replace(tzinfo=info, fold=1).astimezone(UTC)
    if first == second:
        return {first}
    if first.astimezone(info).replace(tzinfo=None) != local:
        return {end_of_gap(local, info)} if dst.gap is Gap.RUN_AFTER else set()
    return {
        Pass.FIRST: {first},
        Pass.SECOND: {second},
        Pass.BOTH: {first, second},
    }[dst.overlap]


@cache
def end_of_gap(local: datetime, info: ZoneInfo) -> datetime:
    """The first instant whose local time is past one that doesn't exist."""
    at = local.replace(tzinfo=UTC) - timedelta(hours=15)
    while at.astimezone(info).replace(tzinfo=None) < local:
        at += MINUTE
    return at


# -- Strategies --


def listed(low: int, high: int) -> st.SearchStrategy[Field]:
    """Lists of values, ranges and ranges with a step."""
    value = st.integers(low, high)
    single = value.map(lambda v: Field(str(v), frozenset({v})))
    span = st.tuples(value, value).map(sorted)
    ranges = span.map(lambda s: Field(f"{s[0]}-{s[1]}", frozenset(range(s[0], s[1] + 1))))
    step = st.integers(1, high)
    # Not of one value: cronsim reads 5-5/3 as 5/3.
    stepped = st.tuples(span.filter(lambda s: s[0] < s[1]), step).map(
        lambda s: Field(f"{s[0][0]}-{s[0][1]}/{s[1]}", frozenset(range(s[0][0], s[0][1] + 1, s[1])))
    )
    return st.lists(single | ranges | stepped, min_size=1, max_size=3).map(joined)


def terms(low: int, high: int) -> st.SearchStrategy[Field]:
    """As `listed`, or beginning with a star."""
    star = st.just(Field("*", frozenset(range(low, high + 1))))
    each = st.integers(1, high).map(lambda n: Field(f"*/{n}", frozenset(range(low, high + 1, n))))
    return listed(low, high) | star | each


def joined(parts: list[Field]) -> Field:
    return Field(
        ",".join(part.text for part in parts),
        frozenset().union(*(part.values for part in parts)),
        tuple(test for part in parts for test in part.days),
    )


def last_day(at: date) -> bool:
    return at.day == calendar.monthrange(at.year, at.month)[1]


def nearest_weekday(day: int) -> Callable[[date], bool]:
    def test(at: date) -> bool:
        length = calendar.monthrange(at.year, at.month)[1]
        wanted = min(day, length)
        choices = [d for d in range(1, length + 1) if date(at.year, at.month, d).weekday() < 5]
        return at.day == min(choices, key=lambda d: abs(d - wanted))

    return test


def nth_weekday(weekday: int, week: int) -> Callable[[date], bool]:
    return lambda at: (at.weekday() + 1) % 7 == weekday and (at.day + 6) // 7 == week


def last_weekday(weekday: int) -> Callable[[date], bool]:
    def test(at: date) -> bool:
        same = (at.weekday() + 1) % 7 == weekday
        return same and (at + timedelta(days=7)).month != at.month

    return test


none: frozenset[int] = frozenset()
special_days = (
    st.just(Field("L", none, (last_day,)))
    | st.just(Field("LW", none, (nearest_weekday(31),)))
    | st.integers(1, 31).map(lambda d: Field(f"{d}W", none, (nearest_weekday(d),)))
)
special_weekdays = st.tuples(st.integers(0, 6), st.integers(1, 5)).map(
    lambda s: Field(f"{s[0]}#{s[1]}", none, (nth_weekday(*s),))
) | st.integers(0, 6).map(lambda d: Field(f"{d}L", none, (last_weekday(d),)))


def with_special(
    plain: st.SearchStrategy[Field], special: st.SearchStrategy[Field]
) -> st.SearchStrategy[Field]:
    mixed = st.tuples(plain.filter(lambda f: not f.star), special).map(list).map(joined)
    return st.one_of(plain, plain, special, mixed)


everything = st.just(Field("*", frozenset(range(32))))
expressions = st.builds(
    Expression,
    minute=terms(0, 59),
    hour=terms(0, 23),
    day=everything | with_special(terms(1, 31), special_days),
    month=everything | terms(1, 12),
    weekday=everything | with_special(terms(0, 6), special_weekdays),
)
# Times in the small hours, where clocks change: few random expressions would ever look there.
night_expressions = st.builds(
    Expression,
    minute=terms(0, 59),
    hour=listed(0, 4),
    day=everything,
    month=everything,
    weekday=everything,
)
policies = st.builds(Dst, st.sampled_from(Gap), st.sampled_from(Pass))


@cache
def changes(zone: str) -> tuple[datetime, ...]:
    """Days of 2010 to 2035 in which the clocks of a zone change."""
    info, at, found = ZoneInfo(zone), datetime(2010, 1, 1, tzinfo=UTC), []
    while at.year < 2036:
        later = at + timedelta(days=1)
        if at.astimezone(info).utcoffset() != later.astimezone(info).utcoffset():
            found.append(at)
        at = later
    return tuple(found)


@st.composite
def windows(draw: st.DrawFn) -> tuple[str, datetime]:
    """A zone and the start of a window in it, half of them around a change of its clocks."""
    zone = draw(st.sampled_from(ZONES))
    if changes(zone) and draw(st.booleans()):
        back = draw(st.integers(0, 2 * 24 * 60))
        return zone, draw(st.sampled_from(changes(zone))) - back * MINUTE
    day = draw(st.dates(date(2010, 1, 1), date(2035, 12, 28)))
    minutes = draw(st.integers(0, 24 * 60 - 1))
    return zone, datetime(day.year, day.month, day.day, tzinfo=UTC) + minutes * MINUTE


def parsed(text: str, zone: str) -> cron.CronExpression | None:
    try:
        return cron.parse(text, zone=zone, seed="")
    except cron.CronError as refusal:
        if "never matches" not in refusal.problem:
            raise
        return None


def instants(
    expression: cron.CronExpression, start: datetime, end: datetime, dst: Dst = cron.DEBIAN
) -> list[datetime]:
    found, at = [], expression.next_after(start, dst)
    while at is not None and at <= end:
        found.append(at)
        at = expression.next_after(at, dst)
    return found


# -- Properties --


@settings(max_examples=EXAMPLES, deadline=None, print_blob=True)
@given(expressions | night_expressions, windows(), policies, st.data())
def test_next_instants_are_those_of_the_rules(
    expression: Expression, window: tuple[str, datetime], dst: Dst, data: st.DataObject
) -> None:
    zone, start = window
    end = start + WINDOW
    compiled = parsed(expression.text, zone)
    if compiled is None:
        assert not walk(expression, zone, start, end, dst)
        return
    found = instants(compiled, start, end, dst)
    assert found == sorted(walk(expression, zone, start, end, dst))
    assert all(a < b for a, b in pairwise(found))
    assert all(at.tzinfo is UTC for at in found)

    inside = start + data.draw(st.integers(0, 3 * 86400 - 1)) * timedelta(seconds=1)
    later = [at for at in found if at > inside]
    assert instants(compiled, inside, end, dst) == later, "independent of where the search starts"

    low, high = ((at - cron.EPOCH) // timedelta(seconds=1) for at in (inside, end))
    assert compiled.count(low, high, dst) == len(later), "counting agrees with walking"


@settings(max_examples=EXAMPLES, deadline=None, print_blob=True)
@given(expressions | night_expressions, windows())
def test_next_instants_are_those_of_cronsim_where_the_dialects_agree(
    expression: Expression, window: tuple[str, datetime]
) -> None:
    zone, start = window
    end = start + WINDOW
    compiled = parsed(expression.text, zone)
    if compiled is None or "W" in expression.day.text.replace("LW", ""):
        return
    if expression.wildcard and zone in CRONSIM_ERRS:
        return
    theirs = []
    for at in CronSim(expression.text, start.astimezone(ZoneInfo(zone))):
        if at.astimezone(UTC) > end:
            break
        theirs.append(at.astimezone(UTC))
    assert instants(compiled, start, end) == theirs
