"""The flattened version, as something to apply by hand: a crontab, a patch, or commands.

Nothing here writes a file or asks a cluster: what is printed is a proposal.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from schedctl.timetables import Table
from schedd.core.schedule import CronSchedule
from schedd.core.timetable import Flattened, Move


def rewritten(table: Table, flat: Flattened | None) -> Iterator[str]:
    """Lines to print. One crontab alone comes whole, with minutes that any cron reads."""
    moves = () if flat is None else flat.moves
    crontabs = [name for name in table.texts if name in table.crontabs]
    if len(table.texts) == len(crontabs) == 1:
        name = crontabs[0]
        yield from _moved(table, name, moves)
        return
    for name, text in table.texts.items():
        lines = _moved(table, name, moves)
        yield from difflib.unified_diff(text.splitlines(), lines, name, name, lineterm="")
    told: set[str] = set()
    for move in moves:
        if _file(move) not in table.texts and move.entry.name not in told:
            told.add(move.entry.name)
            yield _command(move, [one for one in moves if one.entry.name == move.entry.name])


def _file(move: Move) -> str:
    return move.entry.where.rpartition(":")[0]


def _moved(table: Table, name: str, moves: Sequence[Move]) -> list[str]:
    """The file's lines with the moves made; a phase becomes a line of its own, below `every`."""
    lines = table.texts[name].splitlines()
    phases: dict[int, str] = {}
    for move in moves:
        if _file(move) != name:
            continue
        number = move.entry.lines[max(move.number, 0)]
        if move.number < 0:
            phases[number] = move.after
            continue
        crontab = name in table.crontabs
        after = move.fixed if crontab else move.after
        lines[number - 1] = _replaced(lines[number - 1], move.before, after, crontab=crontab)
    for number in sorted(phases, reverse=True):
        key = re.match(r"\s*(?=every\s*:)", lines[number - 1])
        written = f"phase: {phases[number]}"
        lines.insert(number, f"{key[0]}{written}" if key else f"# beside every: {written}")
    return lines


_BEGINS: Final = r"(?P<begins>(?:^|[\[,'\"{]|[:-]\s)\s*)"
_ENDS: Final = r"(?=\s*(?:$|['\"\],}]|\s#))"
"""Where an expression begins and ends in a manifest: one of a list may end as another does."""


def _replaced(line: str, before: str, after: str, *, crontab: bool) -> str:
    """The line with its expression replaced, however it was spaced."""
    words = r"\s+".join(re.escape(word) for word in before.split())
    begins, ends = (r"(?P<begins>^\s*-?)", r"(?=\s)") if crontab else (_BEGINS, _ENDS)
    pattern = f"{begins}{words}{ends}"
    return re.sub(pattern, lambda found: found["begins"] + after, line, count=1)


def _command(move: Move, moves: Sequence[Move]) -> str:
    """What changes a stored job so."""
    words = ["schedctl", "job", "patch", move.entry.name]
    schedule = move.entry.schedule
    if move.number < 0 or not isinstance(schedule, CronSchedule):
        return shlex.join([*words, "--phase", move.after])
    texts = list(schedule.expressions)
    for one in moves:
        texts[one.number] = one.after
    for text in texts:
        words += ["--cron", text]
    return shlex.join(words)
