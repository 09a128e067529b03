"""Positions of readers in the output of an attempt."""

from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from schedd.api.errors import FailedPreconditionError
from schedd.api.runs import logs
from schedd.api.runs.logs import LogPosition, Reached
from schedd.core.ids import RunId, Token
from schedd.core.runs.lifecycle import State
from schedd.store.user_store import UserStore
from schedd.watch.change_bus import Watchers
from schedkit.objects import Damaged, NoSuchObject, StoreAway, framed
from schedproto.v1 import run_pb2
from support.fake_of import fake_of
from support.runs import run

OUT, ERR = run_pb2.LogPiece.STREAM_STDOUT, run_pb2.LogPiece.STREAM_STDERR


def piece(data: bytes, offset: int, stream: run_pb2.LogPiece.Stream = OUT) -> run_pb2.LogPiece:
    return run_pb2.LogPiece(stream=stream, data=data, offset=offset)


def test_a_new_reader_starts_at_the_beginning_of_a_stream() -> None:
    """A second reader receives live pieces before the worker sends it the kept output."""
    reached = Reached(Token(7))
    live, head, later = piece(b"live", 1_000), piece(b"x" * 1_000, 0), piece(b"more", 1_004)
    assert reached.next(live) is None
    given = [reached.next(one) for one in (head, live, piece(b"err", 5, ERR), later)]
    assert [(one.offset, len(one.data), one.omitted) if one else None for one in given] == [
        (0, 1_000, 0),
        (1_000, 4, 0),
        None,
        (1_004, 4, 0),
    ]


def test_a_resumed_stream_continues_after_its_cursor() -> None:
    """The worker sends the kept output again; pieces before that are for other readers."""
    first = Reached(Token(7))
    given = [first.next(one) for one in (piece(b"abc", 0), piece(b"err", 0, ERR))]
    assert given[-1] is not None
    again = Reached(Token(7), LogPosition.read(given[-1].cursor))
    resumed = [again.next(one) for one in (piece(b"g", 6), piece(b"abcdef", 0), piece(b"g", 6))]
    assert [one and (one.data, one.offset, one.omitted, one.cursor) for one in resumed] == [
        None,
        (b"def", 3, 0, "7-6-3"),
        (b"g", 6, 0, "7-7-3"),
    ]


def test_repeated_pieces_are_sent_once_and_missing_bytes_are_counted() -> None:
    reached = Reached(Token(7))
    given = [
        reached.beyond(one)
        for one in (
            piece(b"abc", 0),
            piece(b"abc", 0),  # a second reader had the kept output sent again
            piece(b"bcde", 1),
            piece(b"err", 0, ERR),
            piece(b"xyz", 9),  # there was no room for four bytes
            piece(b"abcde", 0),
        )
    ]
    assert [(one.data, one.offset, one.omitted) if one else None for one in given] == [
        (b"abc", 0, 0),
        None,
        (b"de", 3, 0),
        (b"err", 0, 0),
        (b"xyz", 9, 4),
        None,
    ]
    assert {one.fencing_token for one in given if one} == {7}


@fake_of(UserStore)
@dataclass
class Rows:
    """A run with one state for each read, the last one repeated, and the output of its attempts,
    stored when they have ended.
    """

    looks: list[tuple[State, int]]
    stored: dict[int, bytes]
    ended: int = 0

    async def get_runs(self, _run_ids: Sequence[RunId]) -> list[Any]:
        state, token = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        self.ended = token - 1 if state is State.RUNNING else token
        found = run(1, state=state, token=Token(token))
        return [SimpleNamespace(run=found, namespace="default")]

    async def attempts(self, _run_id: RunId) -> list[Any]:
        return [SimpleNamespace(token=Token(token)) for token in sorted(self.stored)]

    async def output(self, _run_id: RunId, token: Token) -> tuple[Token, bytes]:
        data = self.stored[token] if token <= self.ended else None
        pieces = [] if data is None else [piece(data, 0)]
        return token, run_pb2.Output(pieces=pieces).SerializeToString()


class Silent:
    def take_pieces(self) -> list[run_pb2.LogPiece]:
        return []


async def followed(looks: list[tuple[State, int]], asked: int = 0, after: str = "") -> bytes:
    services = SimpleNamespace(
        store=Rows(looks, {1: b"one ", 2: b"two ", 3: b"three "}),
        changes=Watchers(),
        log_followers=SimpleNamespace(following=lambda _run, _wake: nullcontext(Silent())),
    )
    position = LogPosition.read(after)
    given = logs.followed(cast("Any", services), run(1).key.run_id, Token(asked), position)
    return b"".join([one.data async for one in given])


@pytest.mark.parametrize(
    ("looks", "output"),
    [
        ([(State.PENDING, 0), (State.SUCCEEDED, 3)], b"one two three "),
        ([(State.RUNNING, 1), (State.RUNNING, 3), (State.SUCCEEDED, 3)], b"one two three "),
        ([(State.RETRYING, 2), (State.SUCCEEDED, 3)], b"two three "),
        ([(State.PENDING, 0), (State.RETRYING, 2), (State.SUCCEEDED, 3)], b"one two three "),
        ([(State.FAILED, 3)], b"three "),
        ([(State.CANCELLED, 0)], b""),
    ],
)
async def test_no_attempt_is_left_out_when_the_next_one_follows_soon(
    monkeypatch: pytest.MonkeyPatch, looks: list[tuple[State, int]], output: bytes
) -> None:
    monkeypatch.setattr(logs, "LOOK_EVERY", 0.01)
    assert await followed(looks) == output


async def test_one_attempt_alone_is_followed_to_its_own_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "LOOK_EVERY", 0.01)
    assert await followed([(State.RUNNING, 2), (State.RUNNING, 3)], asked=2) == b"two "
    assert await followed([(State.RUNNING, 3)], asked=1) == b"one "


@pytest.mark.parametrize(
    ("after", "output"),
    [
        ("1-2-0", b"e two three "),
        ("1-4-0", b"two three "),
        ("3-1-0", b"hree "),
        ("3-6-0", b""),
        ("0", b"three "),
    ],
)
async def test_a_run_is_followed_from_the_attempt_that_was_sent_last(
    monkeypatch: pytest.MonkeyPatch, after: str, output: bytes
) -> None:
    monkeypatch.setattr(logs, "LOOK_EVERY", 0.01)
    assert await followed([(State.SUCCEEDED, 3)], after=after) == output


HEAD, TAIL = b"h" * 10, b"t" * 10
WHOLE = HEAD + b"m" * 20 + TAIL


class Objects:
    """A result store with one content, or one error."""

    def __init__(self, content: bytes | Exception) -> None:
        self.content = content

    async def parts(self, _key: str, _size: int, _sha256: bytes) -> AsyncIterator[bytes]:
        if isinstance(self.content, Exception):
            raise self.content
        for at in range(0, len(self.content), 7):
            yield self.content[at : at + 7]


async def read(
    content: bytes | Exception = b"", *, given: int = 0, after: int = 0, **log: Any
) -> list[tuple[str, bytes, int]]:
    """Return the pieces of a log with inline ends after `given` bytes were sent, of which those
    up to `after` were omitted.
    """
    tail = piece(TAIL, 30)
    tail.omitted = 20
    output = run_pb2.Output(pieces=[piece(HEAD, 0), tail], log=run_pb2.StoredObject(**log))

    async def stored(_run: RunId, _token: Token | None) -> tuple[Token, bytes]:
        return Token(7), output.SerializeToString()

    services = SimpleNamespace(store=SimpleNamespace(output=stored), objects=Objects(content))
    reach = Reached(Token(7))
    if given:
        reach.beyond(piece(WHOLE[after:given], after))
    run_id = run(1).key.run_id
    pieces = logs.kept(cast("Any", services), "default", run_id, Token(7), reach)
    return [(one.note, one.data, one.omitted) async for one in pieces]


def framed_log(data: bytes) -> bytes:
    pieces = [piece(data[at : at + 8], at) for at in range(0, len(data), 8)]
    return b"".join(framed(one.SerializeToString()) for one in pieces)


async def test_the_whole_log_comes_from_the_store_and_nothing_twice() -> None:
    for given in (0, 5, 25):
        pieces = await read(framed_log(WHOLE), given=given)
        assert b"".join(data for _, data, _ in pieces) == WHOLE[given:]
        assert not any(note or omitted for note, _, omitted in pieces)


async def test_a_follower_gets_the_command_for_the_whole_log_if_bytes_were_omitted() -> None:
    command = f"schedctl run logs {run(1).key.run_id} --token 7"
    [*rest, (note, _, _)] = await read(framed_log(WHOLE), given=35, after=8, fencing_token=7)
    assert b"".join(data for _, data, _ in rest) == WHOLE[35:]
    assert note == f"8 bytes of output were omitted during the run; {command} shows the whole log"
    [*_, (note, _, _)] = await read(given=35, after=8, fencing_token=7, omitted=4)
    assert note == f"8 bytes of output were omitted during the run; {command} shows more of the log"
    assert not any(note for note, _, _ in await read(given=35, after=8, problem="away"))


async def test_sent_bytes_are_not_requested_from_the_store() -> None:
    assert await read(AssertionError("it was asked"), given=len(WHOLE)) == []


async def test_a_note_has_its_position_and_is_repeated_to_a_reader_that_resumes_there() -> None:
    pieces = await read(given=10, problem="away")
    assert [bool(note) for note, _, _ in pieces] == [True, False], "the middle is nowhere"
    assert await read(given=10, problem="away") == pieces
    assert await read(given=len(WHOLE), problem="away") == [], "past the end nothing is said"


async def test_bytes_over_the_cap_are_reported_and_the_end_is_read_inline() -> None:
    pieces = await read(framed_log(WHOLE[:16]), omitted=24)
    assert b"".join(data for _, data, _ in pieces) == WHOLE[:16] + TAIL
    assert "24 bytes exceed" in pieces[2][0]
    assert pieces[-1] == ("", TAIL, 14)


@pytest.mark.parametrize(
    ("content", "log", "note"),
    [
        (b"", {"problem": "away"}, "isn't kept: away"),
        (NoSuchObject("default/1/log"), {}, "results.url"),
        (StoreAway("connection refused"), {}, "can't be read: connection refused"),
    ],
)
async def test_a_log_missing_from_the_store_shows_its_ends_and_the_reason(
    content: bytes | Exception, log: dict[str, Any], note: str
) -> None:
    [(why, *_), head, tail] = await read(content, **log)
    assert note in why
    assert (head, tail) == (("", HEAD, 0), ("", TAIL, 20))


@pytest.mark.parametrize("content", [Damaged("changed"), b"\xff" * 40, framed(b"\xff" * 9)])
async def test_a_damaged_log_is_an_error(content: bytes | Exception) -> None:
    with pytest.raises(FailedPreconditionError) as error:
        await read(content)
    assert error.value.reason == "OBJECT_DAMAGED"
