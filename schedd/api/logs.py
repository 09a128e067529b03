"""What runs write: kept of an attempt that has ended, or read along while it runs.

followed:  waits ─→ runs: pieces as they come ─→ ended: the stored rest ─→ the next attempt, if any
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import Final

from schedd.api import broadcasts
from schedd.api.services import Services
from schedd.core.ids import NO_TOKEN, RunId, Token
from schedd.core.lifecycle import LIVE, State
from schedd.core.model import LiveRun
from schedd.ports import Watching
from schedkit.clock import boottime
from schedproto.v1 import run_pb2

_FROM_THE_FIRST: Final = Token(1)
LOOK_EVERY: Final = 1.0
"""Seconds after which a run that is followed is read anew, whatever hint was lost."""


class Reached:
    """How far one attempt's streams were given out."""

    def __init__(self, token: Token) -> None:
        self._token = token
        self._ends: dict[int, int] = {}

    def next(self, piece: run_pb2.LogPiece) -> run_pb2.LogPiece | None:
        """As `beyond`, of what comes while it runs: nothing of a stream before its beginning, which
        a worker sends first to each new reader; until then what comes is meant for others.
        """
        if piece.offset and piece.stream not in self._ends:
            return None
        return self.beyond(piece)

    def beyond(self, piece: run_pb2.LogPiece) -> run_pb2.LogPiece | None:
        """What of a piece wasn't given out yet."""
        at = self._ends.get(piece.stream, 0)
        end = piece.offset + len(piece.data)
        if end <= at:
            return None
        self._ends[piece.stream] = end
        begin = max(at, piece.offset)
        return run_pb2.LogPiece(
            stream=piece.stream,
            data=piece.data[begin - piece.offset :],
            offset=begin,
            at=piece.at,
            omitted=begin - at,
            fencing_token=self._token,
        )


async def kept(services: Services, run_id: RunId, token: Token | None) -> list[run_pb2.LogPiece]:
    """What is stored of an attempt that has ended; None: of the newest that has any."""
    stored = await services.store.output(run_id, token)
    return [] if stored is None else [*run_pb2.Output.FromString(stored).pieces]


async def followed(
    services: Services, run_id: RunId, asked: Token
) -> AsyncIterator[run_pb2.LogPiece]:
    """All that it writes until it has ended; `asked`: until this attempt of it has."""
    reached: dict[Token, Reached] = {}
    told: set[Token] = set()  # whose stored output was given out
    first = asked
    with services.changes.watching([run_id]) as changes:
        while (record := await services.store.get_run(run_id)) is not None:
            run = record.run
            first = first or run.token or _FROM_THE_FIRST
            running = run.token if run.state is State.RUNNING else NO_TOKEN
            for token in await _handed_out(services, run, first, asked, told):
                if token == running:
                    continue
                told.add(token)
                reach = reached.setdefault(token, Reached(token))
                for piece in await kept(services, run_id, token):
                    if (rest := reach.beyond(piece)) is not None:
                        yield rest
            if run.state not in LIVE or (asked and asked in told):
                return
            if run.children is not None:  # it has just begun
                raise await broadcasts.no_log(services, record)
            if running and (not asked or running == asked):
                reach = reached.setdefault(running, Reached(running))
                async for piece in _as_it_comes(services, run, reach, changes):
                    yield piece
            else:
                await changes.wait(LOOK_EVERY)


async def _handed_out(
    services: Services, run: LiveRun, first: Token, asked: Token, told: Collection[Token]
) -> list[Token]:
    """Attempts from the `first` on that weren't told of, oldest first; or the one that is asked
    for.
    """
    if asked:
        return [asked] if asked <= run.token and asked not in told else []
    if run.token in (first, NO_TOKEN):
        return [run.token] if run.token and run.token not in told else []
    attempts = await services.store.attempts(run.key.run_id)
    return [one.token for one in attempts if one.token >= first and one.token not in told]


async def _as_it_comes(
    services: Services, run: LiveRun, reach: Reached, changes: Watching
) -> AsyncIterator[run_pb2.LogPiece]:
    """Until this attempt has ended."""
    with services.tails.following(run, changes.wake) as reader:
        looked, over = boottime(), False
        while True:
            if not over:
                await changes.wait(LOOK_EVERY)
            pieces = reader.take()
            for piece in pieces:
                if (rest := reach.next(piece)) is not None:
                    yield rest
            if over:
                return
            if pieces and boottime() - looked < LOOK_EVERY:
                continue
            looked = boottime()
            record = await services.store.get_run(run.key.run_id)
            over = record is None or (record.run.state, record.run.token) != (run.state, run.token)
