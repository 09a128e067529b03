"""What runs write: kept of an attempt that has ended, or read along while it runs.

ended:     the ends are all of it, or were given out: these
           else: the whole from the result store; where that hasn't it, why, and the ends
followed:  waits ─→ runs: pieces as they come ─→ ended: the stored rest ─→ the next attempt, if any
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable
from typing import Final

from google.protobuf.message import DecodeError

from schedd.api.errors import FailedPrecondition
from schedd.api.runs import broadcasts
from schedd.api.runs.cursors import LogPosition
from schedd.api.services import Services
from schedd.core.ids import NO_TOKEN, RunId, Token
from schedd.core.runs.lifecycle import LIVE, State
from schedd.core.runs.model import LiveRun
from schedd.core.runs.run_records import RunRecord
from schedd.ports import Watching
from schedkit.clock import boottime
from schedkit.errors import Unavailable
from schedkit.objects import NoSuchObject, log_key
from schedkit.objects.frames import Unframed
from schedkit.objects.reading import Damaged
from schedproto.v1 import run_pb2

_FROM_THE_FIRST: Final = Token(1)
BEFORE_ALL: Final = LogPosition()
LOOK_EVERY: Final = 0.15
"""Seconds after which a run that is followed is read anew. What another member stores, such as its
start, is seen by this alone; who follows, however many they are, shares one statement.
"""


class Reached:
    """How far one attempt's streams were given out, perhaps in an earlier stream. `token` is what
    its pieces say of it.
    """

    def __init__(self, token: Token, after: LogPosition = BEFORE_ALL) -> None:
        self._token = token
        self.attempt = token or after.token
        self._ends = dict(after.ends)
        self._begun: set[int] = set()
        self.left_out = 0
        """Bytes that were passed over."""

    def next(self, piece: run_pb2.LogPiece) -> run_pb2.LogPiece | None:
        """As `beyond`, of what comes while it runs: nothing of a stream before its beginning, which
        a worker sends first to each new reader; until then what comes is meant for others.
        """
        if piece.offset and piece.stream not in self._begun:
            return None
        self._begun.add(piece.stream)
        return self.beyond(piece)

    def beyond(self, piece: run_pb2.LogPiece) -> run_pb2.LogPiece | None:
        """What of a piece wasn't given out yet."""
        at = self._ends.get(piece.stream, 0)
        end = piece.offset + len(piece.data)
        if end <= at:
            return None
        self._ends[piece.stream] = end
        begin = max(at, piece.offset)
        self.left_out += begin - at
        return run_pb2.LogPiece(
            stream=piece.stream,
            data=piece.data[begin - piece.offset :],
            offset=begin,
            at=piece.at,
            omitted=begin - at,
            fencing_token=self._token,
            cursor=str(self.position),
        )

    def noted(self, note: str) -> run_pb2.LogPiece:
        """What is to be known of the log, at this place of it."""
        return run_pb2.LogPiece(note=note, cursor=str(self.position))

    @property
    def position(self) -> LogPosition:
        """Where a stream that breaks now is gone on from."""
        return LogPosition(self.attempt, self._ends)

    def lacks(self, pieces: Iterable[run_pb2.LogPiece]) -> bool:
        """Whether something lies between these, and what was given out, that is neither."""
        trial = Reached(self._token)
        trial._ends = dict(self._ends)
        return any(rest.omitted for one in pieces if (rest := trial.beyond(one)) is not None)


async def kept(
    services: Services, namespace: str, run_id: RunId, token: Token | None, reach: Reached
) -> AsyncIterator[run_pb2.LogPiece]:
    """What is stored of an attempt that has ended (None: of the newest that has any), as far as it
    wasn't given out yet.
    """
    stored = await services.store.output(run_id, token)
    if stored is None:
        return
    reach.attempt, pieces = stored
    output = run_pb2.Output.FromString(pieces)
    left_out = reach.left_out  # of what came while it ran
    if output.HasField("log") and reach.lacks(output.pieces):
        async for piece in _whole(services, namespace, run_id, output.log):
            if piece.note:
                yield reach.noted(piece.note)
            elif (rest := reach.beyond(piece)) is not None:
                yield rest
    for piece in output.pieces:
        if (rest := reach.beyond(piece)) is not None:
            yield rest
    if left_out and output.HasField("log") and not output.log.problem:
        command = f"schedctl run logs {run_id} --token {output.log.fencing_token}"
        what = "more of it" if output.log.omitted else "the whole"
        yield reach.noted(f"{left_out:,} bytes were left out as it came; {command} has {what}")


async def _whole(
    services: Services, namespace: str, run_id: RunId, log: run_pb2.Kept
) -> AsyncIterator[run_pb2.LogPiece]:
    """From the result store; where that hasn't got it, a note of why."""
    if log.problem:
        yield run_pb2.LogPiece(note=f"the whole log isn't kept: {log.problem}")
        return
    key = log_key(namespace, str(run_id), log.fencing_token)
    unframed = Unframed()
    try:
        async for part in services.objects.parts(key, log.size, log.sha256):
            for message in unframed.feed(part):
                yield run_pb2.LogPiece.FromString(message)
    except NoSuchObject:
        told = "it isn't in the result store; is results.url the same for members and workers?"
        yield run_pb2.LogPiece(note=f"the whole log can't be read: {told}")
    except Unavailable as error:
        yield run_pb2.LogPiece(note=f"the whole log can't be read: {error}")
    except (Damaged, ValueError, DecodeError) as error:
        raise damaged(key) from error
    if log.omitted:
        yield run_pb2.LogPiece(note=f"{log.omitted:,} bytes are over what its worker keeps")


def damaged(key: str) -> FailedPrecondition:
    """What a reader is told of an object that isn't what was stored."""
    return FailedPrecondition(
        f"{key} in the result store isn't what was stored: its size or its SHA-256 differs",
        reason="OBJECT_DAMAGED",
        remedy="what came before it may be wrong too",
    )


async def followed(
    services: Services, run_id: RunId, asked: Token, after: LogPosition = BEFORE_ALL
) -> AsyncIterator[run_pb2.LogPiece]:
    """All that it writes until it has ended, past what was told before; `asked`: until this attempt
    of it has.
    """
    reached = {after.token: Reached(after.token, after)}
    told: set[Token] = set()  # whose stored output was given out
    first = asked or after.token
    with services.changes.watching([run_id]) as changes:
        while (record := await _stands(services, run_id)) is not None:
            run = record.run
            first = first or run.token or _FROM_THE_FIRST
            running = run.token if run.state is State.RUNNING else NO_TOKEN
            for token in await _handed_out(services, run, first, asked, told):
                if token == running:
                    continue
                told.add(token)
                reach = reached.setdefault(token, Reached(token))
                async for piece in kept(services, record.namespace, run_id, token, reach):
                    yield piece
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


async def _stands(services: Services, run_id: RunId) -> RunRecord | None:
    return next(iter(await services.store.get_runs([run_id])), None)


async def _handed_out(
    services: Services, run: LiveRun, first: Token, asked: Token, told: Collection[Token]
) -> list[Token]:
    """Attempts from the `first` on that weren't told of, oldest first; or the one that is asked
    for. None that was handed out since the run was read: it hasn't ended.
    """
    if asked:
        return [asked] if asked <= run.token and asked not in told else []
    if run.token in (first, NO_TOKEN):
        return [run.token] if run.token and run.token not in told else []
    attempts = await services.store.attempts(run.key.run_id)
    tokens = (one.token for one in attempts)
    return [token for token in tokens if first <= token <= run.token and token not in told]


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
            record = await _stands(services, run.key.run_id)
            over = record is None or (record.run.state, record.run.token) != (run.state, run.token)
