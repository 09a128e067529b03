"""Random expressions, each drawn together with its meaning."""

from dataclasses import dataclass, replace
from random import Random

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

_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]


@dataclass(frozen=True)
class _Spec:
    low: int
    high: int
    names: tuple[str, ...] = ()
    end: int = -1
    """Where a value with a step ends, if not at `high`."""

    def all(self) -> frozenset[int]:
        return frozenset(range(self.low, self.high + 1))


SECOND, MINUTE, HOUR = _Spec(0, 59), _Spec(0, 59), _Spec(0, 23)
DAY, MONTH = _Spec(1, 31), _Spec(1, 12, tuple(_MONTHS))
WEEKDAY = _Spec(0, 6, tuple(_WEEKDAYS))

_ZERO = Field("0", frozenset({0}))
_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


def draw(random: Random, zones: tuple[str, ...]) -> Meaning:
    """Return a random expression of the dialect, without `H`: other tests pin its values."""
    kind = random.random()
    if kind < 0.02:
        return _every(random)
    if kind < 0.04:
        return _macro(random)
    night = kind < 0.4
    second = _field(random, SECOND, stars=0.1) if random.random() < 0.1 else None
    drawn = _joined(
        second,
        _field(random, MINUTE, stars=0.25),
        # Clocks change in the small hours: few random expressions would ever look there.
        _listed(random, _Spec(0, 4, end=23)) if night else _field(random, HOUR, stars=0.35),
        _days(random, night),
        _field(random, MONTH, stars=0.7) if random.random() < 0.3 else _all(random, MONTH),
        _weekdays(random, night),
    )
    if random.random() < 0.01:
        zone = random.choice(zones)
        return replace(drawn, text=f"CRON_TZ={zone} {drawn.text}", zone=zone, shared=False)
    return drawn


def _joined(second: Field | None, *fields: Field) -> Meaning:
    minute, hour, day, month, weekday = fields
    written = fields if second is None else (second, *fields)
    return Meaning(
        " ".join(field.text for field in written),
        second or _ZERO,
        minute,
        hour,
        day,
        month,
        weekday,
        # cronsim takes each expression with seconds for one that follows elapsed time.
        shared=second is None and all(field.shared for field in fields),
    )


def _every(random: Random) -> Meaning:
    minutes, seconds = random.choice(((0, 90), (30, 0), (7, 13), (600, 0), (1440, 0), (61, 1)))
    text = "@every " + (f"{minutes}m" if minutes else "") + (f"{seconds}s" if seconds else "")
    every = minutes * 60 + seconds
    return replace(_joined(None, *[_ZERO] * 5), text=text, every=every, shared=False)


def _macro(random: Random) -> Meaning:
    text = random.choice(sorted(_MACROS))
    specs = (MINUTE, HOUR, DAY, MONTH, WEEKDAY)
    fields = [
        Field(word, spec.all() if word == "*" else frozenset({int(word)}))
        for word, spec in zip(_MACROS[text].split(), specs, strict=True)
    ]
    return replace(_joined(None, *fields), text=text, shared=False)


def _all(random: Random, spec: _Spec) -> Field:
    text = "?" if random.random() < 0.05 else "*"
    return Field(text, spec.all(), shared=text == "*")


def _field(random: Random, spec: _Spec, stars: float) -> Field:
    """As `_listed`, or beginning with a star (with this probability)."""
    if random.random() >= stars:
        return _listed(random, spec)
    step = random.choice((1, 1, 2, 5, 10, 15, 20, 30, 7, random.randint(1, 70)))
    if step == 1:
        return _all(random, spec)
    first = Field(f"*/{step}", frozenset(range(spec.low, spec.high + 1, step)))
    return _union([first, _listed(random, spec)]) if random.random() < 0.1 else first


def _listed(random: Random, spec: _Spec) -> Field:
    """Values, ranges and steps; mostly one, so that most expressions are as people write them."""
    return _union([_term(random, spec) for _ in range(random.choice((1, 1, 1, 2, 3)))])


def _union(parts: list[Field]) -> Field:
    return Field(
        ",".join(part.text for part in parts),
        frozenset().union(*(part.values for part in parts)),
        tuple(test for part in parts for test in part.days),
        all(part.shared for part in parts),
    )


def _term(random: Random, spec: _Spec) -> Field:
    kind = random.random()
    a, b = sorted(random.randint(spec.low, spec.high) for _ in range(2))
    step = random.randint(1, 9 if random.random() < 0.8 else 99)
    if kind < 0.55:
        if spec is WEEKDAY and random.random() < 0.1:
            return Field("7", frozenset({0}))
        return Field(_value(random, spec, a), frozenset({a}))
    text = f"{_value(random, spec, a)}-{_value(random, spec, b)}"
    if kind < 0.75:
        if spec is WEEKDAY and random.random() < 0.2:
            return Field(f"{a}-7", frozenset({*range(a, 7), 0}))
        return Field(text, frozenset(range(a, b + 1)))
    if kind < 0.9:
        # cronsim reads 5-5/3 as 5/3.
        return Field(f"{text}/{step}", frozenset(range(a, b + 1, step)), shared=a < b)
    # A value with a step counts on to the end; cronsim's weeks end with 7.
    values = frozenset(range(a, max(spec.high, spec.end) + 1, step))
    return Field(f"{_value(random, spec, a)}/{step}", values, shared=spec is not WEEKDAY)


def _value(random: Random, spec: _Spec, value: int) -> str:
    if not spec.names or random.random() < 0.7:
        return str(value)
    name = spec.names[value - spec.low]
    return random.choice((name, name.upper(), name.capitalize()))


def _days(random: Random, night: bool) -> Field:
    kind = random.random()
    if kind < (0.9 if night else 0.5):
        return _all(random, DAY)
    if kind < 0.85:
        return _field(random, DAY, stars=0.3)
    special = _special_day(random)
    return special if kind < 0.95 else _union([_term(random, DAY), special])


def _special_day(random: Random) -> Field:
    kind, day = random.random(), random.randint(1, 31)
    if kind < 0.3:
        return Field("L", frozenset(), (last_day,))
    if kind < 0.5:
        return Field("LW", frozenset(), (last_weekday_of_month,))
    if kind < 0.65:
        before = random.choice((1, 2, 3, random.randint(1, 30)))
        return Field(f"L-{before}", frozenset(), (before_last(before),), shared=False)
    text = f"{day}W" if kind < 0.9 else f"w{day}"
    return Field(text, frozenset(), (nearest_weekday(day),), shared=False)


def _weekdays(random: Random, night: bool) -> Field:
    kind = random.random()
    if kind < (0.9 if night else 0.55):
        return _all(random, WEEKDAY)
    if kind < 0.88:
        return _field(random, WEEKDAY, stars=0.2)
    special = _special_weekday(random)
    return special if kind < 0.96 else _union([_term(random, WEEKDAY), special])


def _special_weekday(random: Random) -> Field:
    day, week = random.randint(0, 6), random.randint(1, 5)
    if random.random() < 0.5:
        text = random.choice((f"{day}#{week}", f"{_WEEKDAYS[day]}#{week}"))
        return Field(text, frozenset(), (nth_weekday(day, week),))
    name = random.choice((f"{day}L", f"{day}L", f"L{day}", f"{_WEEKDAYS[day]}L"))
    return Field(name, frozenset(), (last_such_weekday(day),), shared=name == f"{day}L")
