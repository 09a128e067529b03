"""Random expressions of Quartz, AWS and cron, each drawn together with what it means there.

What lint offers to write instead of them is judged by these meanings and by a walk through real
time: `judged` raises Wrong for a rewrite whose fire times are others and that doesn't say so.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from random import Random
from zoneinfo import ZoneInfo

from almanac import drawing, walker
from almanac.drawing import DAY, HOUR, MINUTE, MONTH, SECOND
from almanac.meaning import (
    Field,
    Meaning,
    before_last,
    last_day,
    last_such_weekday,
    last_weekday_of_month,
    nearest_weekday,
    nth_weekday,
)
from almanac.trials import Wrong
from schedd.core.schedule import cron
from schedd.core.schedule.cron import CronExpression, Rewrite
from schedd.core.schedule.timetable.lint import LintFinding, lint

ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "UTC")
NOW = datetime(2026, 11, 28, tzinfo=UTC)
_FIRST, _LAST = date(2026, 12, 1), date(2028, 12, 1)
_NAMES = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_EPOCH = date(1970, 1, 1)


@dataclass(frozen=True)
class Drawn:
    """An expression of a dialect: its text, its meaning, and its years (empty: all)."""

    dialect: str
    text: str
    meaning: Meaning
    years: frozenset[int] = frozenset()

    def runs_on(self, at: date) -> bool:
        return (not self.years or at.year in self.years) and self.meaning.matches_day(at)


@dataclass
class Tally:
    """Counts of tried expressions."""

    expressions: int = 0
    findings: int = 0
    rewrites: int = 0
    with_difference: int = 0
    dialects: dict[str, int] = field(default_factory=dict)

    def summary(self) -> str:
        each = ", ".join(f"{count:,} {name}" for name, count in sorted(self.dialects.items()))
        return (
            f"{self.expressions:,} expressions, {self.findings:,} findings, {self.rewrites:,} "
            f"rewrites with the fire times of the dialect ({each}), {self.with_difference:,} with "
            f"the difference in words"
        )


def tried(seed: int, numbers: range) -> Tally:
    """Draw and judge the expressions of these numbers. Raises Wrong for the first that differs."""
    tally = Tally()
    for number in numbers:
        random = Random(f"{seed}/{number}")
        drawn, zone = _DRAWS[number % 3](random), random.choice(ZONES)
        tally.expressions += 1
        for finding in lint(drawn.text, zone, after=NOW, seed="default/job"):
            tally.findings += 1
            for rewrite in finding.rewrites:
                _judge(drawn, finding, rewrite, zone, f"number {number} of seed {seed}")
                if rewrite.difference:
                    tally.with_difference += 1
                else:
                    tally.rewrites += 1
                    tally.dialects[drawn.dialect] = tally.dialects.get(drawn.dialect, 0) + 1
    return tally


def _judge(drawn: Drawn, finding: LintFinding, rewrite: Rewrite, zone: str, name: str) -> None:
    """Compare what a rewrite does with what was meant."""
    found = cron.parse(rewrite.text, zone=zone, seed="default/job")
    about = f"{name}: {drawn.text!r} ({drawn.dialect}) in {zone} → {rewrite} [{finding.rule}]"
    if not _offered(finding, rewrite):
        raise Wrong(f"{about}: the hint doesn't show the rewrite as it was verified")
    meant = _meant(drawn, finding)
    if meant is None:
        before = cron.parse(drawn.text, zone=zone, seed="default/job")
        _judge_difference(before, found, rewrite, about)
        return
    if rewrite.difference:
        raise Wrong(f"{about}: a rewrite of a foreign expression has the same fire times")
    _judge_times(meant, found, about)
    _judge_days(meant, found, rewrite, about)
    for walked in _walks(found.zone):
        expected = walker.instants(meant.meaning, walked, cron.DEBIAN)
        if list(found.seconds(walked.start, walked.end)) != expected and not meant.years:
            raise Wrong(f"{about}: other fire times around {walked.start}")


def _offered(finding: LintFinding, rewrite: Rewrite) -> bool:
    return all(part in finding.hint for part in (rewrite.text, rewrite.start, rewrite.difference))


def _meant(drawn: Drawn, finding: LintFinding) -> Drawn | None:
    """Return what the rewrite of a finding must keep; None: the meaning of the text here."""
    if finding.rule == "either-day":
        both = replace(drawn.meaning, day=replace(drawn.meaning.day, text="*"))
        return replace(drawn, meaning=both)
    foreign = ("quartz-weekday", "year-last", "seconds-first")
    return drawn if finding.level == "ERROR" or finding.rule in foreign else None


def _judge_times(meant: Drawn, found: CronExpression, about: str) -> None:
    masks, meaning = found.masks, meant.meaning
    if masks is None:
        raise Wrong(f"{about}: an interval for a calendar expression")
    fields = ((masks.second, meaning.second), (masks.minute, meaning.minute))
    for mask, wanted in (*fields, (masks.hour, meaning.hour)):
        if mask != sum(1 << value for value in wanted.values):
            raise Wrong(f"{about}: other times of the day")


def _judge_days(meant: Drawn, found: CronExpression, rewrite: Rewrite, about: str) -> None:
    masks, at = found.masks, _FIRST
    assert masks is not None
    last = date(max(meant.years), 12, 31) + timedelta(days=60) if meant.years else _LAST
    first, stop = rewrite.start[:10] or "0000", rewrite.end[:10] or "9999"
    while at < max(last, _LAST):
        runs = masks.matches_day((at - _EPOCH).days) and first <= at.isoformat() <= stop
        if runs != meant.runs_on(at):
            raise Wrong(f"{about}: {at} differs")
        at += timedelta(days=1)


def _judge_difference(
    before: CronExpression, after: CronExpression, rewrite: Rewrite, about: str
) -> None:
    """A rewrite with other fire times says so, and one that says so has others."""
    spans = [(walked.start, walked.end) for walked in _walks(before.zone)]
    same = all([*before.seconds(*span)] == [*after.seconds(*span)] for span in spans)
    if not same and not rewrite.difference:
        raise Wrong(f"{about}: other fire times without a word")
    if "as often" in rewrite.difference and not all(
        before.count(*span) == after.count(*span) for span in spans
    ):
        raise Wrong(f"{about}: not as often")


@cache
def _walks(zone: str) -> tuple[walker.Walk, ...]:
    """Whole local days around each change of the clocks in two years, and a plain week."""
    changes = [at for at in walker.changes(zone) if at > int(NOW.timestamp())][:5]
    plain = int(datetime(2027, 2, 27, tzinfo=UTC).timestamp())
    return tuple(_days_around(zone, at) for at in (*changes, plain))


def _days_around(zone: str, at: int) -> walker.Walk:
    """Walk from a local midnight to another: part of a day would cut expressions unequally."""
    info, day = ZoneInfo(zone), datetime.fromtimestamp(at, UTC).date()
    first, last = (
        int(datetime.combine(day + timedelta(days=days), time(), info).timestamp()) - 1
        for days in (-3, 5)
    )
    return walker.walk(zone, first, last)


# -- Drawing --


def _quartz(random: Random) -> Drawn:
    second = Field("0", frozenset({0}))
    if random.random() < 0.2:
        second = _starred(drawing._field(random, SECOND, stars=0.1))
    times = (second, *_times(random, wraps=True))
    by_month, by_week = _exclusive(random, _quartz_day)
    month = _month(random, wraps=True)
    words = [*(one.text for one in times), by_month.text, month.text, by_week.text]
    years, year = _years(random)
    if random.random() < 0.6:
        words.append(year)
    else:
        years = frozenset()
    meaning = Meaning(" ".join(words), *times, by_month, month, by_week)
    return Drawn("Quartz", meaning.text, meaning, years)


def _aws(random: Random) -> Drawn:
    minute, hour = _times(random, wraps=False)
    by_month, by_week = _exclusive(random, _aws_day)
    month, (years, year) = _month(random, wraps=False), _years(random)
    words = [one.text for one in (minute, hour, by_month, month, by_week)]
    text = " ".join([*words, year])
    zero = Field("0", frozenset({0}))
    meaning = Meaning(text, zero, minute, hour, by_month, month, by_week)
    shown = f"cron({text})" if random.random() < 0.6 else text
    return Drawn("AWS", shown, meaning, years)


def _cron(random: Random) -> Drawn:
    while True:
        meaning = drawing.draw(random, ("UTC",))
        if not meaning.every and not meaning.zone and len(meaning.text.split()) == 5:
            break
    if random.random() < 0.3:
        week = random.randint(0, 3)
        days = Field(f"{week * 7 + 1}-{week * 7 + 7}", frozenset(range(week * 7 + 1, week * 7 + 8)))
        day = random.randint(0, 6)
        weekday = Field(str(day), frozenset({day}))
        words = [*meaning.text.split()[:2], days.text, meaning.month.text, weekday.text]
        meaning = replace(meaning, text=" ".join(words), day=days, weekday=weekday)
    elif random.random() < 0.2 and "?" not in meaning.text:  # with a ? it looks like AWS
        zero = Field("0", frozenset({0}))
        text = f"{meaning.text} {random.choice(('*', '2027', '2027-2028'))}"
        years = {"2027": {2027}, "2027-2028": {2027, 2028}}.get(text.rsplit(maxsplit=1)[-1], set())
        return Drawn("five and a year", text, replace(meaning, second=zero), frozenset(years))
    return Drawn("cron", meaning.text, meaning)


_DRAWS: tuple[Callable[[Random], Drawn], ...] = (_quartz, _aws, _cron)


def _times(random: Random, *, wraps: bool) -> tuple[Field, Field]:
    minute = _starred(drawing._field(random, MINUTE, stars=0.3))
    hour = _starred(drawing._field(random, HOUR, stars=0.3))
    if wraps and random.random() < 0.15:
        low, high = random.randint(12, 23), random.randint(0, 11)
        hour = Field(f"{low}-{high}", frozenset({*range(low, 24), *range(high + 1)}))
    return minute, hour


def _month(random: Random, *, wraps: bool) -> Field:
    if wraps and random.random() < 0.1:
        return Field("NOV-FEB", frozenset({11, 12, 1, 2}))
    if random.random() < 0.3:
        return _starred(drawing._field(random, MONTH, stars=0.7))
    return Field("*", frozenset(range(1, 13)))


def _starred(drawn: Field) -> Field:
    """Return `*` for `?`: Quartz and AWS have `?` only in the day fields."""
    return replace(drawn, text="*") if drawn.text == "?" else drawn


def _exclusive(random: Random, special: Callable[[Random], Field]) -> tuple[Field, Field]:
    """The two day fields, exactly one of which is `?`."""
    if random.random() < 0.5:
        return special(random), Field("?", frozenset(range(7)))
    return Field("?", frozenset(range(1, 32))), _weekday(random, special is _quartz_day)


def _quartz_day(random: Random) -> Field:
    kind, day = random.random(), random.randint(1, 28)
    if kind < 0.5:
        return drawing._field(random, DAY, stars=0.4)
    before = random.randint(1, 20)
    return {
        0: Field("L", frozenset(), (last_day,)),
        1: Field("LW", frozenset(), (last_weekday_of_month,)),
        2: Field(f"{day}W", frozenset(), (nearest_weekday(day),)),
        3: Field(f"L-{before}", frozenset(), (before_last(before),)),
    }[random.randrange(4)]


def _aws_day(random: Random) -> Field:
    kind, day = random.random(), random.randint(1, 28)
    if kind < 0.6:
        return drawing._field(random, DAY, stars=0.4)
    if kind < 0.8:
        return Field("L", frozenset(), (last_day,))
    return Field(f"{day}W", frozenset(), (nearest_weekday(day),))


def _weekday(random: Random, quartz: bool) -> Field:
    """A weekday field, where 1 is Sunday."""
    kind, day, week = random.random(), random.randrange(7), random.randint(1, 5)
    written = random.choice((str(day + 1), _NAMES[day]))
    if kind < 0.15:
        return Field(f"{written}#{week}", frozenset(), (nth_weekday(day, week),))
    if kind < 0.3:
        return Field(f"{written}L", frozenset(), (last_such_weekday(day),))
    if kind < 0.35 and quartz:
        return Field("L", frozenset({6}))
    if kind < 0.4 and quartz:
        return Field("FRI-MON", frozenset({5, 6, 0, 1}))
    last = random.randint(day, 6)
    if kind < 0.7:
        end = random.choice((str(last + 1), _NAMES[last]))
        return Field(f"{written}-{end}", frozenset(range(day, last + 1)))
    if kind < 0.8:
        step = random.randint(1, 4)
        return Field(f"{day + 1}/{step}", frozenset(range(day, 7, step)))
    if kind < 0.9:
        others = random.sample(range(7), random.randint(2, 4))
        return Field(",".join(str(one + 1) for one in others), frozenset(others))
    return Field(written, frozenset({day}))


def _years(random: Random) -> tuple[frozenset[int], str]:
    kind, year = random.random(), random.randint(2026, 2030)
    if kind < 0.5:
        return frozenset(), "*"
    if kind < 0.7:
        return frozenset({year}), str(year)
    if kind < 0.9:
        last = year + random.randint(1, 5)
        return frozenset(range(year, last + 1)), f"{year}-{last}"
    return frozenset({year, year + 2}), f"{year},{year + 2}"
