"""How far an attempt's output was given out."""

from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from schedd.api.errors import FailedPreconditionError
from schedd.api.runs import logs
from schedd.api.runs.cursors import LogPosition
from schedd.api.runs.logs import Reached
from schedd.core.ids import RunId, Token
from schedd.core.runs.lifecycle import State
from schedd.store.users import UserStore
from schedd.watch.run_waiters import Watchers
from schedkit.objects import NoSuchObject, StoreAway
from schedkit.objects.frames import framed
from schedkit.objects.reading import Damaged
from schedproto.v1 import run_pb2
from support.runs import run
from support.twin_of import twin_of

OUT, ERR = run_pb2.LogPiece.STREAM_STDOUT, run_pb2.LogPiece.STREAM_STDERR


def piece(data: bytes, offset: int, stream: run_pb2.LogPiece.Stream = OUT) -> run_pb2.LogPiece:
    return run_pb2.LogPiece(stream=stream, data=data, offset=offset)


def test_a_stream_is_taken_up_from_its_beginning_whatever_comes_for_others_before() -> None:
    """A second reader is among those who are told before the worker sends it all that is kept."""
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


def test_a_stream_that_is_taken_up_again_is_told_past_what_was_told_before() -> None:
    """The worker sends it all that is kept: until then what comes is meant for others."""
    first = Reached(Token(7))
    given = [first.next(one) for one in (piece(b"abc", 0), piece(b"err", 0, ERR))]
    assert given[-1] is not None
    again = Reached(Token(7), LogPosition.read(given[-1].cursor))
    told = [again.next(one) for one in (piece(b"g", 6), piece(b"abcdef", 0), piece(b"g", 6))]
    assert [one and (one.data, one.offset, one.omitted, one.cursor) for one in told] == [
        None,
        (b"def", 3, 0, "7-6-3"),
        (b"g", 6, 0, "7-7-3"),
    ]


def test_what_comes_twice_is_given_once_and_what_is_missing_is_counted() -> None:
    reached = Reached(Token(7))
    given = [
        reached.beyond(one)
        for one in (
            piece(b"abc", 0),
            piece(b"abc", 0),  # a second reader had all that is kept sent again
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


@twin_of(UserStore)
@dataclass
class Rows:
    """A run as it stands at each look, the last for ever, and what its attempts write, stored when
    they have ended. As soon as it was read all of them are handed out.
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
        tails=SimpleNamespace(following=lambda _run, _wake: nullcontext(Silent())),
    )
    position = LogPosition.read(after)
    given = logs.followed(cast("Any", services), run(1).key.run_id, Token(asked), position)
    return b"".join([one.data async for one in given])


@pytest.mark.parametrize(
    ("looks", "told"),
    [
        ([(State.PENDING, 0), (State.SUCCEEDED, 3)], b"one two three "),
        ([(State.RUNNING, 1), (State.RUNNING, 3), (State.SUCCEEDED, 3)], b"one two three "),
        ([(State.RETRYING, 2), (State.SUCCEEDED, 3)], b"two three "),
        ([(State.PENDING, 0), (State.RETRYING, 2), (State.SUCCEEDED, 3)], b"one two three "),
        ([(State.FAILED, 3)], b"three "),
        ([(State.CANCELLED, 0)], b""),
    ],
)
async def test_no_attempt_is_left_out_however_soon_the_next_one_follows(
    monkeypatch: pytest.MonkeyPatch, looks: list[tuple[State, int]], told: bytes
) -> None:
    monkeypatch.setattr(logs, "LOOK_EVERY", 0.01)
    assert await followed(looks) == told


async def test_one_attempt_alone_is_followed_to_its_own_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "LOOK_EVERY", 0.01)
    assert await followed([(State.RUNNING, 2), (State.RUNNING, 3)], asked=2) == b"two "
    assert await followed([(State.RUNNING, 3)], asked=1) == b"one "


@pytest.mark.parametrize(
    ("after", "told"),
    [
        ("1-2-0", b"e two three "),
        ("1-4-0", b"two three "),
        ("3-1-0", b"hree "),
        ("3-6-0", b""),
        ("0", b"three "),
    ],
)
async def test_a_run_is_followed_from_the_attempt_that_was_told_last(
    monkeypatch: pytest.MonkeyPatch, after: str, told: bytes
) -> None:
    monkeypatch.setattr(logs, "LOOK_EVERY", 0.01)
    assert await followed([(State.SUCCEEDED, 3)], after=after) == told


HEAD, TAIL = b"h" * 10, b"t" * 10
WHOLE = HEAD + b"m" * 20 + TAIL


class Objects:
    """What the result store has, or raises."""

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
    """What is told of a log whose ends are inline, after so many bytes of it were given out, those
    up to `after` left out.
    """
    tail = piece(TAIL, 30)
    tail.omitted = 20
    output = run_pb2.Output(pieces=[piece(HEAD, 0), tail], log=run_pb2.Kept(**log))

    async def stored(_run: RunId, _token: Token | None) -> tuple[Token, bytes]:
        return Token(7), output.SerializeToString()

    services = SimpleNamespace(store=SimpleNamespace(output=stored), objects=Objects(content))
    reach = Reached(Token(7))
    if given:
        reach.beyond(piece(WHOLE[after:given], after))
    run_id = run(1).key.run_id
    told = logs.kept(cast("Any", services), "default", run_id, Token(7), reach)
    return [(one.note, one.data, one.omitted) async for one in told]


def framed_log(data: bytes) -> bytes:
    pieces = [piece(data[at : at + 8], at) for at in range(0, len(data), 8)]
    return b"".join(framed(one.SerializeToString()) for one in pieces)


async def test_the_whole_log_comes_from_the_store_and_nothing_twice() -> None:
    for given in (0, 5, 25):
        told = await read(framed_log(WHOLE), given=given)
        assert b"".join(data for _, data, _ in told) == WHOLE[given:]
        assert not any(note or omitted for note, _, omitted in told)


async def test_who_followed_it_is_told_where_the_whole_is_if_something_was_left_out() -> None:
    command = f"schedctl run logs {run(1).key.run_id} --token 7"
    [*rest, (note, _, _)] = await read(framed_log(WHOLE), given=35, after=8, fencing_token=7)
    assert b"".join(data for _, data, _ in rest) == WHOLE[35:]
    assert note == f"8 bytes were omitted while it ran; {command} shows the whole log"
    [*_, (note, _, _)] = await read(given=35, after=8, fencing_token=7, omitted=4)
    assert note == f"8 bytes were omitted while it ran; {command} shows more of the log"
    assert not any(note for note, _, _ in await read(given=35, after=8, problem="away"))


async def test_a_store_is_not_asked_for_what_was_given_out() -> None:
    assert await read(AssertionError("it was asked"), given=len(WHOLE)) == []


async def test_a_note_stands_at_its_place_and_is_told_again_to_who_goes_on_from_there() -> None:
    told = await read(given=10, problem="away")
    assert [bool(note) for note, _, _ in told] == [True, False], "the middle is nowhere"
    assert await read(given=10, problem="away") == told
    assert await read(given=len(WHOLE), problem="away") == [], "past the end nothing is said"


async def test_what_is_over_the_cap_is_told_and_the_end_comes_from_inline() -> None:
    told = await read(framed_log(WHOLE[:16]), omitted=24)
    assert b"".join(data for _, data, _ in told) == WHOLE[:16] + TAIL
    assert "24 bytes exceed" in told[2][0]
    assert told[-1] == ("", TAIL, 14)


@pytest.mark.parametrize(
    ("content", "log", "note"),
    [
        (b"", {"problem": "away"}, "isn't kept: away"),
        (NoSuchObject("default/1/log"), {}, "results.url"),
        (StoreAway("connection refused"), {}, "can't be read: connection refused"),
    ],
)
async def test_where_the_store_hasnt_it_the_ends_are_told_and_why(
    content: bytes | Exception, log: dict[str, Any], note: str
) -> None:
    [(why, *_), head, tail] = await read(content, **log)
    assert note in why
    assert (head, tail) == (("", HEAD, 0), ("", TAIL, 20))


@pytest.mark.parametrize("content", [Damaged("changed"), b"\xff" * 40, framed(b"\xff" * 9)])
async def test_what_isnt_what_was_stored_is_an_error(content: bytes | Exception) -> None:
    with pytest.raises(FailedPreconditionError) as told:
        await read(content)
    assert told.value.reason == "OBJECT_DAMAGED"
