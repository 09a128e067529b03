"""How far an attempt's output was given out."""

from schedd.api.logs import Reached
from schedd.core.ids import Token
from schedproto.v1 import run_pb2

OUT, ERR = run_pb2.LogPiece.STREAM_STDOUT, run_pb2.LogPiece.STREAM_STDERR


def piece(data: bytes, offset: int, stream: run_pb2.LogPiece.Stream = OUT) -> run_pb2.LogPiece:
    return run_pb2.LogPiece(stream=stream, data=data, offset=offset)


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
