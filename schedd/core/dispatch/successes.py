"""Results of runs that succeeded without result, output and error, as columns.

A batch of such results is one value from the worker's frame to the statement that stores it. Times
are microseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, overload

from schedd.core.ids import IncarnationId, RunId, Token
from schedkit.records import dataclass

SECOND: Final = 1_000_000
"""Microseconds."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Success:
    """Result of a run in a batch."""

    run_id: RunId
    token: Token
    sender: IncarnationId
    scheduled: int
    """`scheduled_at` of the run."""
    started: int
    finished: int


@dataclass(frozen=True, slots=True, eq=False)
class Successes(Sequence[Success]):
    """A batch. Columns have the same length; an index is the position of a run in all of them."""

    run_ids: Sequence[RunId]
    tokens: Sequence[Token]
    senders: Sequence[IncarnationId]
    scheduled: Sequence[int]
    started: Sequence[int]
    finished: Sequence[int]

    def __len__(self) -> int:
        return len(self.run_ids)

    def __iter__(self) -> Iterator[Success]:
        return map(Success, *self._columns())

    @overload
    def __getitem__(self, at: int) -> Success: ...
    @overload
    def __getitem__(self, at: slice) -> Successes: ...
    def __getitem__(self, at: int | slice) -> Success | Successes:
        if isinstance(at, slice):
            return Successes(*(column[at] for column in self._columns()))
        run_id, token, sender, *times = (column[at] for column in self._columns())
        return Success(run_id, token, sender, *times)

    def some(self, numbers: Sequence[int]) -> Successes:
        return Successes(*([column[n] for n in numbers] for column in self._columns()))

    def _columns(self) -> tuple[Sequence[Any], ...]:
        return (
            self.run_ids,
            self.tokens,
            self.senders,
            self.scheduled,
            self.started,
            self.finished,
        )


def instant_of(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)
