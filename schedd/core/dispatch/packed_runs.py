"""The runs that a worker reports as held, packed as bytes (`Held` in `worker_service.proto`). Pure.

    heartbeat ──its parts, unparsed──→ Holdings ──first lookup──→ a set of run ids

A worker may hold 20,000 runs, and reports all of them every few seconds, but only a few are looked
up. So no object is created per run, except for running ones, whose start times are recorded. As
protobuf messages they blocked a member's event loop for a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final

from schedd.core.ids import Id, RunId, Token

_KEY: Final = Struct("!16sq")
_START: Final = Struct("!16sqq")


def pack_key(run: RunId, token: Token) -> bytes:
    return _KEY.pack(run, token)


def pack_start(run: RunId, token: Token, since: int) -> bytes:
    """Return the packed key and start time of a run: microseconds since 1970."""
    return _START.pack(run, token, since)


class Holdings:
    """Assignments that one heartbeat reports."""

    __slots__ = ("_all", "_running", "_spooled", "_waiting")

    def __init__(self, waiting: bytes = b"", running: bytes = b"", spooled: bytes = b"") -> None:
        """Parse packed assignments.

        `waiting` has keys of runs that are held or pre-dispatched, `running` keys with start times,
        and `spooled` keys of ended runs whose results aren't stored.

        Raises:
            ValueError: a part isn't a whole number of keys.
        """
        for name, part, piece in (
            ("waiting", waiting, _KEY),
            ("running", running, _START),
            ("spooled", spooled, _KEY),
        ):
            if len(part) % piece.size:
                raise ValueError(
                    f"the worker's heartbeat is invalid: its field held.{name} has {len(part)}"
                    f" bytes, which isn't a multiple of {piece.size}"
                )
        self._waiting, self._running, self._spooled = waiting, running, spooled
        self._all: frozenset[bytes] | None = None

    @staticmethod
    def from_keys(keys: Iterable[tuple[RunId, Token]] = ()) -> Holdings:
        """Return holdings of these assignments, none of which is known to run."""
        return Holdings(b"".join(pack_key(run, token) for run, token in keys))

    def __contains__(self, at: tuple[RunId, Token]) -> bool:
        if self._all is None:
            self._all = frozenset(self._pieces())
        return pack_key(*at) in self._all

    def __iter__(self) -> Iterator[tuple[RunId, Token]]:
        for piece in self._pieces():
            run, token = _KEY.unpack(piece)
            yield RunId(Id(run)), Token(token)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Holdings) and {*self._pieces()} == {*other._pieces()}

    __hash__ = None  # type: ignore[assignment]

    @property
    def unended(self) -> int:
        """Number of assignments that haven't ended."""
        return len(self._waiting) // _KEY.size + len(self._running) // _START.size

    @property
    def spooled(self) -> int:
        """Number of ended assignments whose results no member has stored."""
        return len(self._spooled) // _KEY.size

    def starts(self) -> Iterator[tuple[RunId, Token, int]]:
        """Iterate over running assignments with their start times: microseconds since 1970."""
        for run, token, since in _START.iter_unpack(self._running):
            yield RunId(Id(run)), Token(token), since

    def _pieces(self) -> Iterator[bytes]:
        parts = (self._waiting, _KEY), (self._running, _START), (self._spooled, _KEY)
        for part, piece in parts:
            for at in range(0, len(part), piece.size):
                yield part[at : at + _KEY.size]
