"""In which line the runs of a job wait, as a number that is stored beside its timer.

    definition ──written──→ hash of what its runs need │ told late? │ paced? │ hurried?
                                                  64 bits, the last three by themselves

An owner that finds more runs waiting than it holds in memory knows by it where they belong, without
their definitions: of each line it has to read one. It is a hint, and nothing goes by it alone:
whoever hands a run out reads its definition.

A step that changes what goes into the hash gives new numbers to what is written from then on; what
was written before keeps its own, and costs a look of its own.
"""

from hashlib import blake2b
from typing import Final, NewType

LineId = NewType("LineId", int)
"""Fits PostgreSQL's bigint."""

HURRIED: Final = 1
"""Its runs may end while they wait: it has a deadline, or was edited since they were made."""
PACED: Final = 2
"""A bounded number of its late runs goes in a second."""
TOLD_LATE: Final = 4
"""Somebody is told when a run of it starts late."""
_FLAGS: Final = HURRIED | PACED | TOLD_LATE


def line_id_of(
    needs: tuple[object, ...], *, hurried: bool = False, paced: bool = False, late: bool = False
) -> LineId:
    """Of texts and numbers, and tuples of such, that say what its runs need; `late`: TOLD_LATE."""
    digest = blake2b(repr(needs).encode(), digest_size=8).digest()
    flags = HURRIED * hurried + PACED * paced + TOLD_LATE * late
    return LineId(int.from_bytes(digest, "big", signed=True) & ~_FLAGS | flags)


def needs_of(line: LineId) -> int:
    """The part of it that is the same for all that need the same."""
    return line & ~_FLAGS
