"""Which jobs of a namespace a list is of, as far as the database can tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Every condition holds at once.

    `name`: with `*` for any signs; `words` are parts of the name. `pool`: empty for those without
    one. `bytes_`: all of them lie somewhere in the stored definition, which others may have too.
    """

    name: str = ""
    words: tuple[str, ...] = ()
    paused: bool | None = None
    pool: str | None = None
    bytes_: tuple[bytes, ...] = ()


ALL_JOBS: Final = JobFilter()
