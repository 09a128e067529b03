"""The stored meaning of expressions, and the differences that a new library makes.

    golden/cron/expressions.tsv     expression, version of the dialect, its fields as values
    golden/cron/Europe_Riga.tsv     changes of the zone's clocks; for each expression its next
                                    instant after each of some points, in seconds after the point
    golden/cron/history.json        when and why it was written, with which libraries

`python -m almanac.golden` (from tests/, or `make golden-diff`) compares it with what is installed
and tells each difference: fields (the parser, the dialect), clocks (tzdata) with the instants that
move, instants (our own arithmetic). Exit code 1 if there is one. `--write --reason WHY` takes over
what is installed, and the reason into the history. A new expression: a line of the first file.
"""

import argparse
import json
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path

from almanac.trials import ZONES
from schedd.core.schedule import cron, zones
from schedd.core.schedule.cron import DEBIAN, DIALECT, CronExpression
from schedd.core.schedule.cron.expression import _first_from
from schedd.core.schedule.zones import Zone

GOLDEN = Path(__file__).parent.parent / "golden" / "cron"
SEED = "default/golden"

Changes = tuple[tuple[int, int], ...]
"""Instants at which clocks change, each with the offset from then on, in seconds."""

_FROM, _UNTIL = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (2010, 2038))
_ABOUT = (-86400, -1800, -1, 3660)
"""From where each change is looked at: the day before, half an hour, a second, an hour after."""


@dataclass(frozen=True)
class Golden:
    """All that is compared: per expression its fields, per zone its clocks and instants."""

    fields: dict[str, tuple[int, str]]
    changes: dict[str, Changes]
    instants: dict[str, dict[str, tuple[int | None, ...]]]


def present(expressions: Sequence[str], clocks: dict[str, Changes]) -> Golden:
    """Return the answers of the installed libraries at the points of `clocks`, for a comparison."""
    return Golden(
        {text: (DIALECT, _fields(text)) for text in expressions},
        {zone: _changes(zone) for zone in ZONES},
        {
            zone: {text: _instants(text, zone, clocks[zone]) for text in expressions}
            for zone in ZONES
        },
    )


def differences(old: Golden) -> Iterator[str]:
    """Each difference between what was written and what is installed, in words."""
    new = present(tuple(old.fields), old.changes)
    for text, (dialect, fields) in old.fields.items():
        if new.fields[text] != (dialect, fields):
            yield (
                f"{text!r}: meant {fields} (dialect {dialect}), "
                f"means {new.fields[text][1]} (dialect {DIALECT})"
            )
    for zone in ZONES:
        yield from _moved_clocks(zone, old.changes[zone], new.changes[zone])
        moved = set(old.changes[zone]) ^ set(new.changes[zone])
        for text, were in old.instants[zone].items():
            yield from _moved_instants(text, zone, old, were, new.instants[zone][text])
            if moved:
                yield from _with_clocks(text, zone, old.changes[zone], {at for at, _ in moved})


def _moved_clocks(zone: str, old: Changes, new: Changes) -> Iterator[str]:
    for at, offset in sorted({*old} ^ {*new}):
        was = "were set" if (at, offset) in old else "are set"
        not_so = "no longer are" if (at, offset) in old else "weren't before"
        yield f"{zone}: clocks {was} to UTC{offset / 3600:+g} h at {_stamp(at)}, and {not_so}"


def _moved_instants(
    text: str, zone: str, old: Golden, were: Sequence[int | None], are: Sequence[int | None]
) -> Iterator[str]:
    for point, was, found in zip(_points(old.changes[zone]), were, are, strict=True):
        if was != found:
            yield _moved(text, zone, point, was, found)


def _with_clocks(text: str, zone: str, old: Changes, moved: set[int]) -> Iterator[str]:
    """Yield changes with the clocks where no point is: the old clocks are still known."""
    parsed = cron.parse(text, zone=zone, seed=SEED)
    if parsed.masks is None or parsed.zone != zone:
        return
    before = _Stored(zone, old)
    for point in sorted({at + about for at in moved for about in _ABOUT}):
        was = _first_from(point + 1, parsed.masks, before, parsed.wildcard, DEBIAN)
        if was != (found := parsed.next_second(point)):
            yield _moved(text, zone, point, was, found)


def _moved(text: str, zone: str, point: int, was: int | None, found: int | None) -> str:
    return f"{text!r} in {zone}: after {_stamp(point)} came {_stamp(was)}, comes {_stamp(found)}"


class _Stored(Zone):
    """A zone as it was when the golden files were written."""

    __slots__ = ("_ats", "_offsets")

    def __init__(self, name: str, changes: Changes) -> None:
        super().__init__(name)
        self._ats = [at for at, _ in changes]
        self._offsets = [super().offset(_FROM), *(offset for _, offset in changes)]

    def offset(self, second: int) -> int:
        return self._offsets[bisect_right(self._ats, second)]


def _fields(text: str) -> str:
    """Return the parsed expression: the values of its fields, or its interval."""
    parsed = cron.parse(text, seed=SEED)
    masks = parsed.masks
    if masks is None:
        return f"every {parsed.every} s"
    fields = [
        f"second {_values(masks.second)}",
        f"minute {_values(masks.minute)}",
        f"hour {_values(masks.hour)}",
        f"day {_values(masks.day_of_month)}{' L' * masks.last_day}"
        + "".join(f" L-{before}" for before in masks.before_last)
        + "".join(f" {day}W" for day in masks.nearest),
        f"month {_values(masks.month)}",
        f"weekday {_values(masks.day_of_week)}"
        + "".join(f" {day}#{week}" if week > 0 else f" {day}L" for day, week in masks.nth),
        "both days" if masks.both_days else "either day",
    ]
    return "; ".join(fields)


def _values(mask: int) -> str:
    """Bits as ranges: "0-4,7"."""
    bits = [bit for bit in range(64) if mask >> bit & 1]
    starts = [bit for bit in bits if bit - 1 not in bits]
    ends = [bit for bit in bits if bit + 1 not in bits]
    return (
        ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
        or "none"
    )


@cache
def _changes(zone: str) -> Changes:
    found = zones.zone(zone).segments(_FROM, _UNTIL)
    return tuple(
        (one.start, one.offset) for one in found if one.before != one.offset and one.start > _FROM
    )


def _points(changes: Changes) -> list[int]:
    """About the first, the last and three changes between, and two quiet days."""
    chosen = {changes[len(changes) * n // 4 - (n == 4)][0] for n in range(5)} if changes else set()
    quiet = {int(datetime(year, 1, 15, 12, tzinfo=UTC).timestamp()) for year in (2011, 2027)}
    return sorted({at + about for at in chosen for about in _ABOUT} | quiet)


def _instants(text: str, zone: str, clocks: Changes) -> tuple[int | None, ...]:
    parsed: CronExpression = cron.parse(text, zone=zone, seed=SEED)
    return tuple(parsed.next_second(point) for point in _points(clocks))


def _stamp(second: int | None) -> str:
    return "none" if second is None else f"{datetime.fromtimestamp(second, UTC):%FT%TZ}"


# -- Files --


def read(folder: Path = GOLDEN) -> Golden:
    """Return the stored meanings."""
    fields: dict[str, tuple[int, str]] = {}
    for line in (folder / "expressions.tsv").read_text().splitlines():
        text, dialect, values = line.split("\t")
        fields[text] = (int(dialect), values)
    changes: dict[str, Changes] = {}
    instants: dict[str, dict[str, tuple[int | None, ...]]] = {}
    for zone in ZONES:
        first, *rest = (folder / _file(zone)).read_text().splitlines()
        clocks = [change.split("=") for change in first.split()[1:]]
        changes[zone] = tuple((int(at), int(offset)) for at, offset in clocks)
        points = _points(changes[zone])
        instants[zone] = {}
        for line in rest:
            text, deltas = line.split("\t")
            instants[zone][text] = tuple(
                None if delta == "-" else point + int(delta)
                for point, delta in zip(points, deltas.split(), strict=True)
            )
    return Golden(fields, changes, instants)


def write(reason: str, folder: Path = GOLDEN) -> None:
    """Take over what is installed, for the expressions that stand there."""
    known = folder / "expressions.tsv"
    expressions = [line.split("\t")[0] for line in known.read_text().splitlines()]
    new = present(expressions, {zone: _changes(zone) for zone in ZONES})
    lines = [f"{text}\t{dialect}\t{values}\n" for text, (dialect, values) in new.fields.items()]
    known.write_text("".join(lines))
    for zone in ZONES:
        clocks = " ".join(f"{at}={offset}" for at, offset in new.changes[zone])
        points = _points(new.changes[zone])
        lines = [f"clocks {clocks}".rstrip() + "\n"]
        for text, found in new.instants[zone].items():
            deltas = (
                "-" if at is None else str(at - p) for p, at in zip(points, found, strict=True)
            )
            lines.append(f"{text}\t{' '.join(deltas)}\n")
        (folder / _file(zone)).write_text("".join(lines))
    today = f"{datetime.now(UTC):%F}"
    past = [*history(folder), {"on": today, "reason": reason, **versions()}]
    (folder / "history.json").write_text(json.dumps(past, indent=2) + "\n")


def versions() -> dict[str, str | int]:
    """Return the versions that scheduled times depend on."""
    croniter = metadata.version("croniter")
    return {"dialect": DIALECT, "tzdata": zones.tzdata_version(), "croniter": croniter}


def history(folder: Path = GOLDEN) -> list[dict[str, str | int]]:
    """When and why it was written, with which versions; the latest is last."""
    found: list[dict[str, str | int]] = json.loads((folder / "history.json").read_text())
    return found


def _file(zone: str) -> str:
    return zone.replace("/", "_") + ".tsv"


def main(arguments: Sequence[str]) -> int:
    """Tell the differences, or write."""
    parser = argparse.ArgumentParser(prog="python -m almanac.golden", description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--reason", default="")
    parser.add_argument("--most", type=int, default=200, help="differences printed")
    options = parser.parse_args(arguments)
    if options.write:
        if not options.reason:
            parser.error("--write needs a --reason, for those who ask why their job moved")
        write(options.reason)
        return 0
    last = history()[-1]
    for what, version in versions().items():
        print(f"{what}: {version}" + (f", was {last[what]}" if last[what] != version else ""))
    found = list(dict.fromkeys(differences(read())))
    print("\n".join(found[: options.most]))
    if len(found) > options.most:
        print(f"… {len(found) - options.most} more (--most)")
    print(f"{len(found)} differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
