"""Which jobs of a namespace a list is of, as far as the database can tell."""

from __future__ import annotations

from typing import Final

from schedkit.records import dataclass


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

    @property
    def by_index(self) -> bool:
        """Whether an index finds the few that it may be, or any job will do; else all are looked at
        one by one.
        """
        return self == ALL_JOBS or bool(self.pool) or (bool(self.name) and "*" not in self.name)


ALL_JOBS: Final = JobFilter()
