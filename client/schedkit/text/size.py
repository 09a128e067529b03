"""Sizes as people write them: `64MiB`, `1GiB`; a bare number is of bytes.

Units are powers of 1,024, and say so: MB and M, which mean this to some and that to others, are
refused.
"""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SHAPE: Final = re.compile(rf"([0-9]{{1,18}})\s*({'|'.join(_UNITS)})?", re.ASCII)


def parse(text: str) -> int:
    """The bytes that `text` writes.

    Raises:
        ValueError: with a message for the person who wrote it.
    """
    match = _SHAPE.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is no size; write a whole number with KiB, MiB, GiB or TiB, such as 64MiB"
        )
    return int(match[1]) * _UNITS.get(match[2], 1)
