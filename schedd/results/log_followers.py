"""Who reads along what a running attempt writes, at this member.

    reader ─→ follow ↓ the worker's stream ─→ pieces ↑, those kept and those that come ─→ reader

A worker sends output while it comes only for those who follow it, over its stream to the member
that they call: it is attached to all of them. What a reader can't take in time is left out: it is
in the pieces' offsets, and the output's ends are stored when the attempt has ended.

Invariant: what came from anybody but the attempt's own incarnation isn't passed on.
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
"""Bytes of pieces that wait for one reader; what comes beyond that is left out."""
PIECE: Final = 500
"""Bytes that a piece takes besides what is in it."""


class LogReader:
    """One who reads along."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._pieces: deque[run_pb2.LogPiece] = deque()
        self._bytes = 0

    def came(self, piece: run_pb2.LogPiece) -> None:
        """The attempt has written this."""
        size = len(piece.data) + PIECE
        if self._bytes + size <= MOST_WAITING:
            self._pieces.append(piece)
            self._bytes += size
            self._wake()

    def take(self) -> list[run_pb2.LogPiece]:
        """What came since the last time."""
        pieces, self._bytes = [*self._pieces], 0
        self._pieces.clear()
        return pieces


@dataclass(slots=True)
class _Followed:
    run: LiveRun
    readers: set[LogReader] = field(default_factory=set)


class MemberLogTails:
    """The port of this name."""

    def __init__(self, workers: WorkerRegistry) -> None:
        self._workers = workers
        self._followed: dict[tuple[RunId, Token], _Followed] = {}

    @contextmanager
    def following(self, run: LiveRun, wake: Callable[[], None]) -> Iterator[LogReader]:
        """For this block somebody reads along the attempt that runs now, and is woken when there
        is something to take.
        """
        at, reader = (run.key.run_id, run.token), LogReader(wake)
        followed = self._followed.setdefault(at, _Followed(run))
        followed.readers.add(reader)
        self._workers.follow(run, on=True)  # for one more reader too: all that is kept comes again
        try:
            yield reader
        finally:
            followed.readers.discard(reader)
            if not followed.readers and self._followed.get(at) is followed:
                del self._followed[at]
                self._workers.follow(run, on=False)

    def attached(self, incarnation: IncarnationId) -> None:
        """Its stream is new: it has heard of no reader."""
        for followed in self._followed.values():
            if followed.run.incarnation == incarnation:
                self._workers.follow(followed.run, on=True)

    def came(
        self, sender: IncarnationId, run: RunId, token: Token, piece: run_pb2.LogPiece
    ) -> None:
        """A worker says that this attempt has written this."""
        followed = self._followed.get((run, token))
        if followed is not None and followed.run.incarnation == sender:
            for reader in followed.readers:
                reader.came(piece)
