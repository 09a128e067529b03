"""Logs of runs: stored logs of ended attempts, and logs followed while an attempt runs.

ended:     the row has the whole log, or its beginning was sent already: read the row
           else: read the whole log from the result store; if it isn't there, a note and the row
followed:  wait ─→ running: pieces as they come ─→ ended: the stored rest ─→ next attempt, if any

A cursor is `7-1024-20`: attempt 7, bytes of its stdout and stderr. A stream that continues from a
cursor, on any member, repeats nothing that was sent before it, except the note at the cursor.
"""

import re
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from dataclasses import field
from typing import Final, Self

from google.protobuf.message import DecodeError

from schedd.api.errors import FailedPreconditionError, InvalidArgumentError, cut, wrong
from schedd.api.services import Services
from schedd.core.ids import NO_TOKEN, RunId, Token
from schedd.core.runs.lifecycle import LIVE, State
from schedd.core.runs.model import LiveRun
from schedd.core.runs.run_records import RunFilter, RunRecord
from schedd.watch.change_bus import RunWaiter
from schedkit.clock import boottime
from schedkit.errors import Unavailable
from schedkit.objects import Damaged, NoSuchObject, Unframed, log_key
from schedkit.records import dataclass
from schedproto.v1 import run_pb2

BEGINNING: Final = "0"
"""The cursor of a stream that ended before anything was sent."""
_LOG: Final = re.compile(r"(\d{1,18})-(\d{1,18})-(\d{1,18})", re.ASCII)


def bad_cursor(problem: str) -> InvalidArgumentError:
    """Return the error for an invalid cursor."""
    return wrong(
        "resume_after",
        problem,
        "send the cursor of the last event unchanged, or leave resume_after out",
        reason="BAD_CURSOR",
    )


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The bytes of each stream that were sent, of the attempt with this token."""

    token: Token = NO_TOKEN
    ends: Mapping[int, int] = field(default_factory=dict)

    def __str__(self) -> str:
        out = self.ends.get(run_pb2.LogPiece.STREAM_STDOUT, 0)
        err = self.ends.get(run_pb2.LogPiece.STREAM_STDERR, 0)
        return f"{self.token}-{out}-{err}"

    @classmethod
    def read(cls, text: str) -> Self:
        """Parse a cursor; an empty one is the beginning. Raises InvalidArgumentError."""
        if text in ("", BEGINNING):
            return cls()
        found = _LOG.fullmatch(text)
        if found is None:
            raise bad_cursor(f"the cursor {cut(text)!r} isn't a valid position in the run's log")
        ends: dict[int, int] = {
            run_pb2.LogPiece.STREAM_STDOUT: int(found[2]),
            run_pb2.LogPiece.STREAM_STDERR: int(found[3]),
        }
        return cls(Token(int(found[1])), ends)


_FROM_THE_FIRST: Final = Token(1)
BEFORE_ALL: Final = LogPosition()
LOOK_EVERY: Final = 0.15
"""Seconds after which a followed run is read again. Changes that another member stores, for example
its start, are seen by this only. All readers of a run share one statement.
"""
NAMED: Final = 20
"""Children of a broadcast that an error names."""


class Reached:
    """How far the log of one attempt was sent, also by earlier streams. `token`: for its pieces."""

    def __init__(self, token: Token, after: LogPosition = BEFORE_ALL) -> None:
        self._token = token
        self.attempt = token or after.token
        self._ends = dict(after.ends)
        self._begun: set[int] = set()
        self.left_out = 0
        """Bytes that were omitted."""

    def next(self, piece: run_pb2.LogPiece) -> run_pb2.LogPiece | None:
        """Like `beyond`, for a running attempt. A worker sends each new reader the beginning of a
        stream first; pieces before that are for other readers and dropped.
        """
        if piece.offset and piece.stream not in self._begun:
            return None
        self._begun.add(piece.stream)
        return self.beyond(piece)

    def beyond(self, piece: run_pb2.LogPiece) -> run_pb2.LogPiece | None:
        """Return the part of a piece that wasn't sent yet."""
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
        """Return a note about the log, at this position."""
        return run_pb2.LogPiece(note=note, cursor=str(self.position))

    @property
    def position(self) -> LogPosition:
        """The position from which an interrupted stream continues."""
        return LogPosition(self.attempt, self._ends)

    def lacks(self, pieces: Iterable[run_pb2.LogPiece]) -> bool:
        """Return whether bytes are missing between these pieces and the position."""
        trial = Reached(self._token)
        trial._ends = dict(self._ends)
        return any(rest.omitted for one in pieces if (rest := trial.beyond(one)) is not None)


async def kept(
    services: Services, namespace: str, run_id: RunId, token: Token | None, reach: Reached
) -> AsyncIterator[run_pb2.LogPiece]:
    """Return the stored log from the position on. `token` None: of the newest attempt with one."""
    stored = await services.store.output(run_id, token)
    if stored is None:
        return
    reach.attempt, pieces = stored
    output = run_pb2.Output.FromString(pieces)
    left_out = reach.left_out  # while the attempt ran
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
        what = "more of the log" if output.log.omitted else "the whole log"
        yield reach.noted(
            f"{left_out:,} bytes of output were omitted during the run; {command} shows {what}"
        )


async def _whole(
    services: Services, namespace: str, run_id: RunId, log: run_pb2.StoredObject
) -> AsyncIterator[run_pb2.LogPiece]:
    """Read a log from the result store. If that fails, return a note with the reason."""
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
        why = "not found in the result store; members and workers must have the same results.url"
        yield run_pb2.LogPiece(note=f"the whole log can't be read: {why}")
    except Unavailable as error:
        yield run_pb2.LogPiece(note=f"the whole log can't be read: {error}")
    except (Damaged, ValueError, DecodeError) as error:
        raise damaged(key) from error
    if log.omitted:
        yield run_pb2.LogPiece(note=f"{log.omitted:,} bytes exceed the worker's limit")


def damaged(key: str) -> FailedPreconditionError:
    """Return the error for an object whose content has changed."""
    return FailedPreconditionError(
        f"object {key} in the result store is damaged: its size or SHA-256 differs",
        reason="OBJECT_DAMAGED",
        remedy="don't use the data that was received before this error: it may be damaged, too",
    )


async def followed(
    services: Services, run_id: RunId, asked: Token, after: LogPosition = BEFORE_ALL
) -> AsyncIterator[run_pb2.LogPiece]:
    """Follow the log of a run from a position until it has ended; `asked`: of this attempt only."""
    reached = {after.token: Reached(after.token, after)}
    sent: set[Token] = set()  # attempts whose stored log was sent
    first = asked or after.token
    with services.changes.watching([run_id]) as changes:
        while (record := await _read(services, run_id)) is not None:
            run = record.run
            first = first or run.token or _FROM_THE_FIRST
            running = run.token if run.state is State.RUNNING else NO_TOKEN
            for token in await _dispatched(services, run, first, asked, sent):
                if token == running:
                    continue
                sent.add(token)
                reach = reached.setdefault(token, Reached(token))
                async for piece in kept(services, record.namespace, run_id, token, reach):
                    yield piece
            if run.state not in LIVE or (asked and asked in sent):
                return
            if run.children is not None:  # a broadcast that has just started
                raise await no_log(services, record)
            if running and (not asked or running == asked):
                reach = reached.setdefault(running, Reached(running))
                async for piece in _as_it_comes(services, run, reach, changes):
                    yield piece
            else:
                await changes.wait(LOOK_EVERY)


async def no_log(services: Services, record: RunRecord) -> FailedPreconditionError:
    """Return the error for the log of a broadcast, which names the children that have one."""
    wanted = RunFilter(str(record.run.job_id), parent=record.run.key.run_id)
    children, _ = await services.store.list_runs(record.namespace, None, NAMED, wanted)
    more = (record.run.children or 0) - len(children)
    names = "; ".join(
        f"{each.run.key.run_id} ({each.run.target}, {each.run.state})" for each in children
    )
    return FailedPreconditionError(
        f"the run is a broadcast and has no log of its own; its child runs have logs: {names}"
        + (f"; and {more} more" if more > 0 else ""),
        reason="IS_BROADCAST",
        remedy=f"list the child runs: `schedctl run list --parent {record.run.key.run_id}`; then"
        " see the log of a child run: `schedctl run logs RUN`",
    )


async def _read(services: Services, run_id: RunId) -> RunRecord | None:
    return next(iter(await services.store.get_runs([run_id])), None)


async def _dispatched(
    services: Services, run: LiveRun, first: Token, asked: Token, sent: Collection[Token]
) -> list[Token]:
    """Return the attempts from `first` on that weren't sent, oldest first; or the one asked for.
    Attempts dispatched after the run was read are left out: they haven't ended.
    """
    if asked:
        return [asked] if asked <= run.token and asked not in sent else []
    if run.token in (first, NO_TOKEN):
        return [run.token] if run.token and run.token not in sent else []
    attempts = await services.store.attempts(run.key.run_id)
    tokens = (one.token for one in attempts)
    return [token for token in tokens if first <= token <= run.token and token not in sent]


async def _as_it_comes(
    services: Services, run: LiveRun, reach: Reached, changes: RunWaiter
) -> AsyncIterator[run_pb2.LogPiece]:
    """Follow a running attempt until it has ended."""
    with services.log_followers.following(run, changes.wake) as reader:
        polled, over = boottime(), False
        while True:
            if not over:
                await changes.wait(LOOK_EVERY)
            pieces = reader.take_pieces()
            for piece in pieces:
                if (rest := reach.next(piece)) is not None:
                    yield rest
            if over:
                return
            if pieces and boottime() - polled < LOOK_EVERY:
                continue
            polled = boottime()
            record = await _read(services, run.key.run_id)
            over = record is None or (record.run.state, record.run.token) != (run.state, run.token)
