"""A triple of expression, zone and window, asked of the product, of the walker and of cronsim.

Triples are drawn by seed: window `n` of seed `s`, and the expressions tried in it, are the same
wherever and whenever they are tried. A walk costs more than asking for an expression's instants in
it, so each window serves `PER_WINDOW` expressions.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from random import Random
from zoneinfo import ZoneInfo

from cronsim import CronSim

from almanac.drawing import draw
from almanac.meaning import Meaning
from almanac.walker import Walk, after, changes, instants, walk
from schedd.core.ids import Id
from schedd.core.schedule import compiled_schedule, cron
from schedd.core.schedule.cron import EPOCH, CronExpression, DstGap, DstOverlap, DstPolicy

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
CRONSIM_ERRS = (
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "Africa/Casablanca",
    "America/Havana",
    "Pacific/Apia",
)

PER_WINDOW = 20
LENGTH = 3 * 86400
_STARTS = 12
_STEPS = 30
_FIRST = int(datetime(2010, 1, 1, tzinfo=UTC).timestamp())
_LAST = int(datetime(2035, 12, 28, tzinfo=UTC).timestamp())


class Wrong(Exception):
    """The product said something else. The message is the whole story."""


@dataclass
class Tally:
    """Counts of tried triples."""

    triples: int = 0
    on_a_change: int = 0
    instants: int = 0
    refused: int = 0
    against_cronsim: int = 0
    zones: dict[str, int] = field(default_factory=dict)

    def add(self, other: "Tally") -> None:
        self.triples += other.triples
        self.on_a_change += other.on_a_change
        self.instants += other.instants
        self.refused += other.refused
        self.against_cronsim += other.against_cronsim
        for zone, count in other.zones.items():
            self.zones[zone] = self.zones.get(zone, 0) + count

    def summary(self) -> str:
        return (
            f"{self.triples:,} triples, {self.on_a_change:,} of them on a change of clocks: "
            f"{self.instants:,} instants as walked; {self.against_cronsim:,} asked of cronsim too, "
            f"{self.refused:,} refused since they never match"
        )


def windows(seed: int, numbers: range) -> Tally:
    """Try the expressions of these windows. Raises Wrong for the first that differs."""
    tally = Tally()
    for number in numbers:
        _window(seed, number, tally)
    return tally


def _window(seed: int, number: int, tally: Tally) -> None:
    random = Random(f"{seed}/{number}")
    on_a_change = number % 2 == 0
    zone = random.choice([zone for zone in ZONES if changes(zone) or not on_a_change])
    start = random.randint(_FIRST, _LAST)
    if on_a_change:
        start = random.choice(changes(zone)) - random.randint(0, LENGTH - 86400)
    here = walk(zone, start, start + LENGTH)
    drawn: list[tuple[Meaning, list[int]]] = []
    dst = DstPolicy(random.choice(tuple(DstGap)), random.choice(tuple(DstOverlap)))
    for place in range(PER_WINDOW):
        meaning = draw(random, ZONES)
        walked = walk(meaning.zone, here.start, here.end) if meaning.zone else here
        trial = Trial(f"window {number}.{place} of seed {seed}", meaning, walked, dst, random)
        if found := trial.judged(tally):
            drawn.append((meaning, found))
        tally.triples += 1
        tally.on_a_change += on_a_change
        tally.zones[zone] = tally.zones.get(zone, 0) + 1
    _union(f"window {number} of seed {seed}", drawn, here, dst)


@dataclass(frozen=True)
class Trial:
    """An expression, a zone and a policy for changes of clocks."""

    name: str
    meaning: Meaning
    walked: Walk
    dst: DstPolicy
    random: Random

    def judged(self, tally: Tally) -> list[int]:
        """The instants that walker and product agree on. Raises Wrong."""
        expected = instants(self.meaning, self.walked, self.dst)
        asked = self._parsed()
        if asked is None:
            tally.refused += 1
            self._same("none, since it is said never to match", [], expected)
            return []
        start, end = self.walked.start, self.walked.end
        found = list(asked.seconds(start, end, self.dst))
        self._same("instants", found, expected)
        if not all(a < b for a, b in pairwise(found)):
            raise self._wrong("the instants don't grow strictly")
        for second in self._starts(expected):
            self._asked_from(asked, second, expected)
        self._stepped(asked, expected)
        tally.instants += len(expected)
        tally.against_cronsim += self._as_cronsim(asked)
        return expected

    def _parsed(self) -> CronExpression | None:
        try:
            return cron.parse(self.meaning.text, zone=self.walked.zone, seed="")
        except cron.CronError as refusal:
            if "never matches" not in refusal.problem:
                raise self._wrong(f"refused: {refusal}") from refusal
            return None

    def _starts(self, expected: list[int]) -> Iterator[int]:
        """Points from which the same must be found: anywhere, at instants, about changes."""
        for _ in range(_STARTS):
            yield self.random.randint(self.walked.start, self.walked.end - 1)
        for at in self.random.sample(expected, min(4, len(expected))):
            yield from (at - 1, at)
        for at in self.walked.changes:
            yield from (at - 1801, at - 1, at, at + 1799)

    def _asked_from(self, asked: CronExpression, second: int, expected: list[int]) -> None:
        if not self.walked.start <= second < self.walked.end:
            return
        end = self.walked.end
        wanted, later = after(expected, second)
        found = asked.next_second(second, self.dst)
        if found != wanted and not (wanted is None and (found is None or found > end)):
            raise self._wrong(f"asked from {_stamp(second)}: {_stamp(found)}, not {_stamp(wanted)}")
        if (counted := asked.count(second, end, self.dst)) != later:
            raise self._wrong(f"{counted} counted from {_stamp(second)}, not {later}")

    def _stepped(self, asked: CronExpression, expected: list[int]) -> None:
        """Step from one instant to the next as an owner does, from any fraction of a second."""
        second = self.random.randint(self.walked.start, self.walked.end - 1)
        at = EPOCH + timedelta(seconds=second, microseconds=self.random.choice((0, 1, 999_999)))
        wanted = [one for one in expected if one > second][:_STEPS]
        found: list[int] = []
        while len(found) < len(wanted) and (following := asked.next_after(at, self.dst)):
            assert following.tzinfo is UTC
            found.append(int(following.timestamp()))
            at = following
        self._same(f"steps from {_stamp(second)}", found, wanted)

    def _as_cronsim(self, asked: CronExpression) -> bool:
        """Where the dialects agree, and from where clocks aren't about to change."""
        meaning, walked = self.meaning, self.walked
        if not meaning.shared or (meaning.wildcard and walked.zone in CRONSIM_ERRS):
            return False
        second = self.random.randint(walked.start, walked.end - 1)
        if walked.changes:
            second = min(
                second, max(walked.start, walked.changes[0] - self.random.randint(1, 9000))
            )
        if any(abs(second - change) < 3600 for change in walked.changes):
            return False
        info = ZoneInfo(walked.zone)
        theirs: list[int] = []
        for at in islice(CronSim(meaning.text, datetime.fromtimestamp(second, info)), _STEPS):
            if (one := int(at.timestamp())) > walked.end:
                break
            theirs.append(one)
        ours = list(islice(asked.seconds(second, walked.end), _STEPS))
        self._same(f"cronsim from {_stamp(second)}", ours, theirs)
        return True

    def _same(self, what: str, found: list[int], wanted: list[int]) -> None:
        if found != wanted:
            more, less = sorted({*found} - {*wanted}), sorted({*wanted} - {*found})
            wrong = [f"too many: {_stamp(more[0])} ({len(more)})"] if more else []
            wrong += [f"missing: {_stamp(less[0])} ({len(less)})"] if less else []
            raise self._wrong(f"{what}: {'; '.join(wrong) or 'out of order'}")

    def _wrong(self, what: str) -> Wrong:
        start, end = _stamp(self.walked.start), _stamp(self.walked.end)
        policy = f"gap {self.dst.gap.lower()}, overlap {self.dst.overlap.lower()}"
        about = f"{self.meaning.text!r} in {self.walked.zone}, ({start}, {end}], {policy}"
        return Wrong(f"{self.name}: {about}: {what}")


def _union(name: str, drawn: list[tuple[Meaning, list[int]]], here: Walk, dst: DstPolicy) -> None:
    """A job of several expressions has each of their instants once."""
    few = [(meaning, found) for meaning, found in drawn if len(found) < 200][:3]
    if not few:
        return
    texts = tuple(meaning.text for meaning, _ in few)
    compiled = compiled_schedule.compile(
        compiled_schedule.CronSchedule(texts, here.zone, dst), "", Id.from_int(1)
    )
    start, end = (EPOCH + timedelta(seconds=at) for at in (here.start, here.end))
    found = [int(one.nominal.timestamp()) for one in compiled.instants_between(start, end, 1000)]
    wanted = sorted({at for _, instants in few for at in instants})
    if found != wanted:
        raise Wrong(f"{name}: the union of {texts} in {here.zone} isn't that of their instants")


def _stamp(second: int | None) -> str:
    return "none" if second is None else f"{EPOCH + timedelta(seconds=second):%FT%TZ}"
