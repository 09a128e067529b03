"""The filter of a list of jobs in a namespace, as far as the database can apply it."""

from typing import Final

from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class JobFilter:
    """A filter of jobs. A job must meet all conditions; an unset field matches all.

    - `name`: the name; `*` matches any characters.
    - `words`: parts of the name.
    - `pool`: the pool's name; empty for jobs without a pool.
    - `bytes_`: byte strings that the stored definition must contain. Other jobs may contain them by
      chance, so the caller checks the result.
    """

    name: str = ""
    words: tuple[str, ...] = ()
    paused: bool | None = None
    pool: str | None = None
    bytes_: tuple[bytes, ...] = ()

    @property
    def by_index(self) -> bool:
        """Whether an index finds the matching jobs, or all jobs match. Otherwise the jobs are
        scanned.
        """
        return self == ALL_JOBS or bool(self.pool) or (bool(self.name) and "*" not in self.name)


ALL_JOBS: Final = JobFilter()
