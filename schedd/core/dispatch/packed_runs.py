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
from uuid import UUID

from schedd.core.ids import RunId, Token

_KEY: Final = Struct("!16sq")
_START: Final = Struct("!16sqq")


def pack_key(run: RunId, token: Token) -> bytes:
    """A run's id and the token of an assignment."""
    return _KEY.pack(run.bytes, token)


def pack_start(run: RunId, token: Token, since: int) -> bytes:
    """The same, and when it started: microseconds since 1970."""
    return _START.pack(run.bytes, token, since)


class Holdings:
    """The assignments of one heartbeat."""

    __slots__ = ("_all", "_running", "_spooled", "_waiting")

    def __init__(self, waiting: bytes = b"", running: bytes = b"", spooled: bytes = b"") -> None:
        """Held or armed: keys; running: with their starts; ended, and not stored: keys.

        Raises:
            ValueError: these aren't whole keys.
        """
        for part, piece in ((waiting, _KEY), (running, _START), (spooled, _KEY)):
            if len(part) % piece.size:
                raise ValueError(f"{len(part)} bytes aren't whole pieces of {piece.size}")
        self._waiting, self._running, self._spooled = waiting, running, spooled
        self._all: frozenset[bytes] | None = None

    @staticmethod
    def of(keys: Iterable[tuple[RunId, Token]] = ()) -> Holdings:
        """These, and of none it is known that it runs."""
        return Holdings(b"".join(pack_key(run, token) for run, token in keys))

    def __contains__(self, at: tuple[RunId, Token]) -> bool:
        """Whether this assignment is among them."""
        if self._all is None:
            self._all = frozenset(self._pieces())
        return pack_key(*at) in self._all

    def __iter__(self) -> Iterator[tuple[RunId, Token]]:
        """All of them."""
        for piece in self._pieces():
            run, token = _KEY.unpack(piece)
            yield RunId(UUID(bytes=run)), Token(token)

    def __eq__(self, other: object) -> bool:
        """Whether it is the same assignments."""
        return isinstance(other, Holdings) and {*self._pieces()} == {*other._pieces()}

    __hash__ = None  # type: ignore[assignment]

    @property
    def unended(self) -> int:
        """How many haven't ended."""
        return len(self._waiting) // _KEY.size + len(self._running) // _START.size

    @property
    def spooled(self) -> int:
        """How many have ended, and no member has stored their results."""
        return len(self._spooled) // _KEY.size

    def starts(self) -> Iterator[tuple[RunId, Token, int]]:
        """Those that run, and since when: microseconds since 1970."""
        for run, token, since in _START.iter_unpack(self._running):
            yield RunId(UUID(bytes=run)), Token(token), since

    def _pieces(self) -> Iterator[bytes]:
        parts = (self._waiting, _KEY), (self._running, _START), (self._spooled, _KEY)
        for part, piece in parts:
            for at in range(0, len(part), piece.size):
                yield part[at : at + _KEY.size]
