"""What a worker says that it has in hand, as bytes (`schedkit/packed`). Pure.

    heartbeat ──parts of it, as they came──→ Holdings ──asked whether one is there──→ a set of it

Thousands are told of at each heartbeat, and few are asked about: so nothing is made of each of them
until somebody asks, but for those that run, whose starts are written down.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final
from uuid import UUID

from schedd.core.ids import RunId, Token
from schedkit import packed
from schedkit.packed import KEY_SIZE

START_SIZE: Final = KEY_SIZE + 8


class Holdings:
    """The assignments of one heartbeat."""

    __slots__ = ("_all", "_running", "_spooled", "_waiting")

    def __init__(self, waiting: bytes = b"", running: bytes = b"", spooled: bytes = b"") -> None:
        """Held or armed: keys; running: with their starts; ended, and not stored: keys.

        Raises:
            ValueError: these aren't whole keys.
        """
        packed.keys(waiting), packed.starts(running), packed.keys(spooled)
        self._waiting, self._running, self._spooled = waiting, running, spooled
        self._all: frozenset[bytes] | None = None

    @staticmethod
    def of(keys: Iterable[tuple[RunId, Token]] = ()) -> Holdings:
        """These, and of none it is known that it runs."""
        return Holdings(b"".join(packed.pack_key(run.bytes, token) for run, token in keys))

    def __contains__(self, at: tuple[RunId, Token]) -> bool:
        """Whether this assignment is among them."""
        if self._all is None:
            self._all = frozenset(self._pieces())
        run, token = at
        return packed.pack_key(run.bytes, token) in self._all

    def __iter__(self) -> Iterator[tuple[RunId, Token]]:
        """All of them."""
        for piece in self._pieces():
            [(run, token)] = packed.keys(piece)
            yield RunId(UUID(bytes=run)), Token(token)

    def __eq__(self, other: object) -> bool:
        """Whether it is the same assignments."""
        return isinstance(other, Holdings) and {*self._pieces()} == {*other._pieces()}

    __hash__ = None  # type: ignore[assignment]

    @property
    def unended(self) -> int:
        """How many haven't ended."""
        return len(self._waiting) // KEY_SIZE + len(self._running) // START_SIZE

    @property
    def spooled(self) -> int:
        """How many have ended, and no member has stored their results."""
        return len(self._spooled) // KEY_SIZE

    def starts(self) -> Iterator[tuple[RunId, Token, int]]:
        """Those that run, and since when: microseconds since 1970."""
        for run, token, since in packed.starts(self._running):
            yield RunId(UUID(bytes=run)), Token(token), since

    def _pieces(self) -> Iterator[bytes]:
        for whole, size in (
            (self._waiting, KEY_SIZE),
            (self._running, START_SIZE),
            (self._spooled, KEY_SIZE),
        ):
            for at in range(0, len(whole), size):
                yield whole[at : at + KEY_SIZE]
