"""The flattened schedules as a crontab, a patch or commands that a person applies.

A rewritten text is parsed again before it is printed. A move that it doesn't contain, or that
changes another schedule, is left out and reported. No file is written and no cluster is called.
"""

import difflib
import re
import shlex
from collections.abc import Sequence
from typing import Final

from schedctl.timetables.timetables import ScheduleTable
from schedd.core.schedule.compiled_schedule import CronSchedule, EverySchedule, Schedule
from schedd.core.schedule.timetable.flatten import Flattened, Move
from schedkit.records import dataclass, replace
from schedkit.text import duration


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Lines to print, and the moves that couldn't be applied."""

    lines: tuple[str, ...]
    left_out: tuple[Move, ...]


def rewritten(table: ScheduleTable, flat: Flattened | None) -> Rewritten:
    """Return the moves of a proposal; a single crontab is returned whole, with plain minutes."""
    moves = () if flat is None else flat.moves
    crontabs = [name for name in table.texts if name in table.crontabs]
    alone = len(table.texts) == len(crontabs) == 1
    lines: list[str] = []
    left_out: list[Move] = []
    for name, text in table.texts.items():
        its = [move for move in moves if _file(move) == name]
        made, failed = _made(table, name, its)
        left_out += failed
        if alone:
            lines += made
        elif made != text.split("\n"):
            lines += difflib.unified_diff(text.split("\n"), made, name, name, lineterm="")
    written: set[str] = set()
    for move in moves:
        if _file(move) not in table.texts and move.entry.name not in written:
            written.add(move.entry.name)
            same = [one for one in moves if one.entry.name == move.entry.name]
            lines.append(_command(move, same))
    if alone and lines and not lines[-1]:
        lines.pop()  # the newline at the end is printed with the last line
    return Rewritten(tuple(lines), tuple(left_out))


def _file(move: Move) -> str:
    return move.entry.where.rpartition(":")[0]


def _made(table: ScheduleTable, name: str, moves: Sequence[Move]) -> tuple[list[str], list[Move]]:
    """Return the lines with the moves that could be applied, and the other moves."""
    crontab, text = name in table.crontabs, table.texts[name]
    lines = _moved(text, moves, crontab=crontab)
    if _shows(table, name, lines, moves):
        return lines, []
    kept: list[Move] = []
    for move in moves:
        if _shows(table, name, _moved(text, [*kept, move], crontab=crontab), [*kept, move]):
            kept.append(move)
    return _moved(text, kept, crontab=crontab), [move for move in moves if move not in kept]


def _shows(table: ScheduleTable, name: str, lines: Sequence[str], moves: Sequence[Move]) -> bool:
    """Return whether the lines, parsed again, have the file's schedules with the moves."""
    crontab = name in table.crontabs
    expected: list[tuple[str, Schedule]] = []
    for entry in table.entries:
        if entry.where.rpartition(":")[0] != name:
            continue
        schedule = entry.schedule
        for move in moves:
            if move.entry == entry:
                after = move.fixed if crontab else move.after
                if isinstance(schedule, EverySchedule):
                    schedule = EverySchedule(schedule.interval, duration.parse(after))
                    continue
                assert isinstance(schedule, CronSchedule), "only these two are moved"
                texts = list(schedule.expressions)
                texts[move.number] = after
                schedule = replace(schedule, expressions=tuple(texts))
        expected.append((entry.name, schedule))
    assert table.reader is not None, "the table was read from files"
    found = table.reader(name, "\n".join(lines)).entries
    return [(entry.name, entry.schedule) for entry in found] == expected


def _moved(text: str, moves: Sequence[Move], *, crontab: bool) -> list[str]:
    """Return the lines with the moves applied; a phase becomes a new line below `every`."""
    lines = text.split("\n")
    phases: dict[int, str] = {}
    for move in moves:
        if len(move.entry.lines) <= max(move.number, 0):
            continue
        number = move.entry.lines[max(move.number, 0)]
        if move.number < 0:
            phases[number] = move.after
            continue
        after = move.fixed if crontab else move.after
        lines[number - 1] = _replaced(lines[number - 1], move.before, after, crontab=crontab)
    for number in sorted(phases, reverse=True):
        key = re.match(r"\s*(?=every\s*:)", lines[number - 1])
        written = f"phase: {phases[number]}"
        lines.insert(number, f"{key[0]}{written}" if key else f"# beside every: {written}")
    return lines


_BEGINS: Final = r"(?P<begins>(?:^|[\[,'\"{]|[:-]\s)\s*)"
_ENDS: Final = r"(?=\s*(?:$|['\"\],}]|\s#))"
"""Start and end of an expression in a manifest."""


def _replaced(line: str, before: str, after: str, *, crontab: bool) -> str:
    """Return the line with its expression replaced, whatever its spacing."""
    words = r"\s+".join(re.escape(word) for word in before.split())
    begins, ends = (r"(?P<begins>^\s*-?)", r"(?=\s)") if crontab else (_BEGINS, _ENDS)
    pattern = f"{begins}{words}{ends}"
    return re.sub(pattern, lambda found: found["begins"] + after, line, count=1)


def _command(move: Move, moves: Sequence[Move]) -> str:
    """Return the command that applies the moves to a stored job."""
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
