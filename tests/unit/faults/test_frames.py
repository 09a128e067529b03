"""Where frames end, however the stream is torn into pieces."""

from __future__ import annotations

from itertools import accumulate

import pytest

from faults.nemesis.frames import ENCRYPTED, PREFACE, Frames


def http2(payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes(6) + payload


def message(payload: bytes, type_: bytes = b"Q") -> bytes:
    """Return a message of PostgreSQL; the first message of a client has no type."""
    return type_ + (len(payload) + 4).to_bytes(4, "big") + payload


ASKS_FOR_CIPHER = message(ENCRYPTED[0].to_bytes(4, "big"), b"")
STARTUP = message(bytes(30), b"")


@pytest.mark.parametrize(
    ("protocol", "up", "frames"),
    [
        ("http2", True, [bytes(PREFACE), http2(b"a" * 40), http2(b""), http2(b"b" * 300)]),
        ("http2", False, [http2(b""), http2(b"a" * 40)]),
        ("postgres", True, [ASKS_FOR_CIPHER, STARTUP, message(b"SELECT 1"), message(b"")]),
        ("postgres", True, [STARTUP, message(b"SELECT 1")]),
        ("postgres", False, [b"N", message(bytes(4), b"R"), message(b"row" * 99, b"D")]),
        ("postgres", False, [message(bytes(4), b"R"), message(b"note", b"N"), message(b"", b"Z")]),
    ],
)
def test_frames_are_split_at_their_ends(protocol: str, up: bool, frames: list[bytes]) -> None:
    said = b"".join(frames)
    wanted = set(accumulate(map(len, frames)))
    for size in (1, 2, 8, 9, 10, 33, len(said)):
        here, found = Frames(protocol, up=up), set[int]()
        for at in range(0, len(said), size):
            found |= {at + place for place in here.ends(said[at : at + size])}
        assert found == wanted, size
