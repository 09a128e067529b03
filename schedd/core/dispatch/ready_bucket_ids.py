"""In which line the runs of a job wait, as a number that is stored beside its timer.

    definition ──written──→ hash of what its runs need │ told late? │ paced? │ hurried?
                                                  64 bits: of the form, of the hash, three flags

An owner that finds more runs waiting than it holds in memory knows by it where they belong, without
their definitions: of each line it has to read one. It is a hint, and nothing goes by it alone:
whoever hands a run out reads its definition.

A step that changes what goes into the hash changes `FORM`, too: a number that was written before
may be of runs that need something else, so it says nothing (`line_of`).
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
FORM: Final = 0x5C0E
"""The upper 15 bits, but for the sign's: a number of another form has them by chance at most."""
_SHIFT: Final = 48
_FORM_BITS: Final = 0x7FFF << _SHIFT


def line_id_of(
    needs: tuple[object, ...], *, hurried: bool = False, paced: bool = False, late: bool = False
) -> LineId:
    """Of texts and numbers, and tuples of such, that say what its runs need; `late`: TOLD_LATE."""
    digest = blake2b(repr(needs).encode(), digest_size=8).digest()
    flags = HURRIED * hurried + PACED * paced + TOLD_LATE * late
    hashed = int.from_bytes(digest, "big", signed=True) & ~(_FLAGS | _FORM_BITS)
    return LineId(hashed | FORM << _SHIFT | flags)


def line_of(stored: int | None) -> LineId | None:
    """What a row says; None where it says nothing that counts now."""
    if stored is None or stored & _FORM_BITS != FORM << _SHIFT:
        return None
    return LineId(stored)


def needs_of(line: LineId) -> int:
    """The part of it that is the same for all that need the same."""
    return line & ~_FLAGS
