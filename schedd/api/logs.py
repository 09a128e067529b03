"""What runs write: kept of an attempt that has ended, or read along while it runs.

followed:  waits ─→ runs: pieces as they come ─→ ended: the stored rest ─→ the next attempt, if any
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from schedd.api.services import Services
from schedd.core.ids import NO_TOKEN, RunId, Token
from schedd.core.lifecycle import LIVE, State
from schedd.core.model import LiveRun
from schedd.ports import Watching
from schedkit.clock import boottime
from schedproto.v1 import run_pb2

LOOK_EVERY: Final = 1.0
"""Seconds after which a run that is followed is read anew, whatever hint was lost."""


class Reached:
    """How far one attempt's streams were given out."""

    def __init__(self, token: Token) -> None:
        self._token = token
        self._ends: dict[int, int] = {}

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
    told = {NO_TOKEN}  # whose stored output was given out
    with services.changes.watching([run_id]) as changes:
        while (record := await services.store.get_run(run_id)) is not None:
            run = record.run
            token = asked if asked != NO_TOKEN else run.token
            reach = reached.setdefault(token, Reached(token))
            if run.state is State.RUNNING and run.token == token:
                async for piece in _as_it_comes(services, run, reach, changes):
                    yield piece
                continue
            for piece in await kept(services, run_id, token) if token not in told else ():
                if (rest := reach.beyond(piece)) is not None:
                    yield rest
            told.add(token)
            if run.state not in LIVE or (asked != NO_TOKEN and run.token >= asked):
                return
            await changes.wait(LOOK_EVERY)


async def _as_it_comes(
    services: Services, run: LiveRun, reach: Reached, changes: Watching
) -> AsyncIterator[run_pb2.LogPiece]:
    """Until this attempt has ended."""
    with services.tails.following(run, changes.wake) as reader:
        looked = boottime()
        while True:
            await changes.wait(LOOK_EVERY)
            pieces = reader.take()
            for piece in pieces:
                if (rest := reach.beyond(piece)) is not None:
                    yield rest
            if pieces and boottime() - looked < LOOK_EVERY:
                continue
            looked = boottime()
            record = await services.store.get_run(run.key.run_id)
            if record is None or (record.run.state, record.run.token) != (run.state, run.token):
                return
