"""Id of the bucket in which a job's runs wait: a number that is stored beside the job's timer.

    definition ──written──→ hash of its runs' needs │ late alert? │ paced? │ hurried?
                                                  64 bits: the form, the hash, three flags

If more runs wait than memory holds, this number gives an owner their bucket without their
definitions: it reads one definition per bucket. The number is only a hint: the definition is read
before a run is dispatched.

A change of the hash's input must change `FORM`, too: a number of an older form may belong to runs
with other needs, so it is ignored (`line_of`).
"""

from hashlib import blake2b
from typing import Final, NewType

LineId = NewType("LineId", int)
"""Number that fits PostgreSQL's bigint."""

HURRIED: Final = 1
"""Flag: runs may end while they wait. The job has a deadline, or was edited after their
creation.
"""
PACED: Final = 2
"""Flag: late runs are dispatched at a limited rate."""
LATE_ALERT: Final = 4
"""Flag: the job has `on_late`, so a late start sends a notification."""
_FLAGS: Final = HURRIED | PACED | LATE_ALERT
FORM: Final = 0x5C0E
"""The upper 15 bits below the sign bit. A number of another form has them only by chance."""
_SHIFT: Final = 48
_FORM_BITS: Final = 0x7FFF << _SHIFT


def line_id_of(
    needs: tuple[object, ...], *, hurried: bool = False, paced: bool = False, late: bool = False
) -> LineId:
    """Return the id for these needs: texts, numbers and tuples of such. `late`: LATE_ALERT."""
    digest = blake2b(repr(needs).encode(), digest_size=8).digest()
    flags = HURRIED * hurried + PACED * paced + LATE_ALERT * late
    hashed = int.from_bytes(digest, "big", signed=True) & ~(_FLAGS | _FORM_BITS)
    return LineId(hashed | FORM << _SHIFT | flags)


def line_of(stored: int | None) -> LineId | None:
    """Return the stored id; None if it is missing or of another form."""
    if stored is None or stored & _FORM_BITS != FORM << _SHIFT:
        return None
    return LineId(stored)


def needs_of(line: LineId) -> int:
    """Return the id without flags: equal for equal needs."""
    return line & ~_FLAGS
