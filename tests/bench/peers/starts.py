"""The file of starts: a line for each time that a no-op ran, written by `programs/appending`.

Lines are of one length, so its size tells how many there are, at no cost to anybody.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LINE: Final = len("0000000001 1764000000.000000\n")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of jobs numbered from 0: how many ran at all, how many never, how often one ran again, how
    many are unknown; `first`: the earliest start, seconds of the epoch.
    """

    distinct: int
    lost: int
    duplicates: int
    unknown: int
    first: float | None


def counted(file: Path) -> int:
    """How many whole lines there are."""
    try:
        return file.stat().st_size // LINE
    except FileNotFoundError:
        return 0


def judge(content: bytes, jobs: int) -> Verdict:
    """Count these lines for so many jobs. An incomplete last line isn't counted."""
    whole = content[: content.rfind(b"\n") + 1].decode("ascii")
    lines = [line.split() for line in whole.splitlines()]
    ran = Counter(int(number) for number, _ in lines)
    known = {number for number in ran if 0 <= number < jobs}
    return Verdict(
        distinct=len(known),
        lost=jobs - len(known),
        duplicates=sum(ran[number] - 1 for number in known),
        unknown=sum(ran[number] for number in ran.keys() - known),
        first=min((float(at) for _, at in lines), default=None),
    )
