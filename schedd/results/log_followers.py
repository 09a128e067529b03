"""Followers of the output of running attempts, at this member.

    reader ─→ follow ↓ the worker's stream ─→ pieces ↑, kept and new ─→ reader

A worker sends output live only while a reader follows it, over its stream to the reader's member.
Pieces that a reader doesn't take in time are dropped: the pieces' offsets show it. The first and
last parts of the output are stored when the attempt has ended.

Invariant: only pieces from the attempt's own incarnation are passed on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import Final

from schedd.core.ids import IncarnationId, RunId, Token
from schedd.core.runs.model import LiveRun
from schedd.dispatch.workers.registry import WorkerRegistry
from schedkit.records import dataclass
from schedproto.v1 import run_pb2

MOST_WAITING: Final = 1024 * 1024
"""Bytes of pieces that wait for one reader; further pieces are dropped."""
PIECE: Final = 500
"""Bytes that a piece takes besides its content."""


class LogReader:
    """Reads the output of one attempt live."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._pieces: deque[run_pb2.LogPiece] = deque()
        self._bytes = 0

    def add_piece(self, piece: run_pb2.LogPiece) -> None:
        """Keep a piece that the attempt has written."""
        size = len(piece.data) + PIECE
        if self._bytes + size <= MOST_WAITING:
            self._pieces.append(piece)
            self._bytes += size
            self._wake()

    def take_pieces(self) -> list[run_pb2.LogPiece]:
        """Return the pieces since the last call."""
        pieces, self._bytes = [*self._pieces], 0
        self._pieces.clear()
        return pieces


@dataclass(slots=True)
class _Followed:
    run: LiveRun
    readers: set[LogReader] = field(default_factory=set)


class LogFollowers:
    """The output of runs that readers at this member follow."""

    def __init__(self, workers: WorkerRegistry) -> None:
        self._workers = workers
        self._followed: dict[tuple[RunId, Token], _Followed] = {}

    @contextmanager
    def following(self, run: LiveRun, wake: Callable[[], None]) -> Iterator[LogReader]:
        """Follow the output of the running attempt for the length of the block. `wake` is called
        when there are pieces to take.
        """
        at, reader = (run.key.run_id, run.token), LogReader(wake)
        followed = self._followed.setdefault(at, _Followed(run))
        followed.readers.add(reader)
        self._workers.follow(run, on=True)  # for each new reader: the worker resends all it kept
        try:
            yield reader
        finally:
            followed.readers.discard(reader)
            if not followed.readers and self._followed.get(at) is followed:
                del self._followed[at]
                self._workers.follow(run, on=False)

    def attached(self, incarnation: IncarnationId) -> None:
        """Request the output of followed attempts again: the worker's stream is new."""
        for followed in self._followed.values():
            if followed.run.incarnation == incarnation:
                self._workers.follow(followed.run, on=True)

    def came(
        self, sender: IncarnationId, run: RunId, token: Token, piece: run_pb2.LogPiece
    ) -> None:
        """Pass a piece of a worker's output to the readers of its attempt."""
        followed = self._followed.get((run, token))
        if followed is not None and followed.run.incarnation == sender:
            for reader in followed.readers:
                reader.add_piece(piece)
