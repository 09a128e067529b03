"""HTTP/2 as bytes, right and wrong: just enough to open streams of gRPC by hand and to spoil them.

Headers are literals without an index and without Huffman's code, so that nothing here has a state.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Mapping, Sequence

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INITIAL_WINDOW = 4
"""The setting that says how many bytes of a stream its reader takes unasked."""


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    """Build a frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def settings(values: Mapping[int, int] | None = None) -> bytes:
    """Frames with which a side begins."""
    pairs = (struct.pack(">HI", key, value) for key, value in (values or {}).items())
    return frame(SETTINGS, b"".join(pairs))


def hello(values: Mapping[int, int] | None = None) -> bytes:
    """First bytes of a client."""
    return PREFACE + settings(values)


def _number(value: int, bits: int, first: int = 0) -> bytes:
    most = (1 << bits) - 1
    if value < most:
        return bytes([first | value])
    found, value = bytearray([first | most]), value - most
    while value >= 128:
        found.append(value % 128 + 128)
        value //= 128
    found.append(value)
    return bytes(found)


def block(fields: Sequence[tuple[str, bytes]]) -> bytes:
    """A header block."""
    found = bytearray()
    for name, value in fields:
        key = name.encode()
        found += b"\0" + _number(len(key), 7) + key + _number(len(value), 7) + value
    return bytes(found)


def fields_of(path: str, authority: str, **more: bytes) -> list[tuple[str, bytes]]:
    """The headers of a call; `more` in place of them or beside them, `_` for `-`."""
    found = {
        ":method": b"POST",
        ":scheme": b"http",
        ":path": path.encode(),
        ":authority": authority.encode(),
        "te": b"trailers",
        "content-type": b"application/grpc",
    }
    found |= {name.replace("_", "-"): value for name, value in more.items()}
    return list(found.items())


def opening(path: str, authority: str, stream: int, **more: bytes) -> bytes:
    """The frame that opens a call."""
    packed = block(fields_of(path, authority, **more))
    return frame(HEADERS, packed, flags=END_HEADERS, stream=stream)


def message(content: bytes, *, packed: bool = False, length: int | None = None) -> bytes:
    """Build a message of gRPC; `length`: its length field, if that isn't true."""
    said = len(content) if length is None else length
    return struct.pack(">BI", packed, said) + content


def data(content: bytes, stream: int, *, end: bool = False, most: int = 16_384) -> bytes:
    """Frames of data."""
    pieces = [content[at : at + most] for at in range(0, len(content), most)] or [b""]
    return b"".join(
        frame(DATA, piece, flags=END_STREAM if end and piece is pieces[-1] else 0, stream=stream)
        for piece in pieces
    )


def update(stream: int, size: int) -> bytes:
    """Leave to send so many bytes more."""
    return frame(WINDOW, struct.pack(">I", size), stream=stream)


def read(buffer: bytearray) -> Iterator[tuple[int, int, int, bytes]]:
    """Take the whole frames from the left: kind, flags, stream, payload."""
    while len(buffer) >= 9:
        size = int.from_bytes(buffer[:3])
        if len(buffer) < 9 + size:
            return
        kind, flags, stream = struct.unpack(">BBI", buffer[3:9])
        payload = bytes(buffer[9 : 9 + size])
        del buffer[: 9 + size]
        yield kind, flags, stream & 0x7FFFFFFF, payload


def status_of(payload: bytes) -> int | None:
    """`grpc-status` of a header block as gRPC's core writes it: plainly, the first time."""
    at = payload.find(b"grpc-status")
    if at < 0:
        return None
    size = payload[at + 11] & 0x7F
    text = payload[at + 12 : at + 12 + size]
    return int(text) if text.isdigit() else None


def spoiled(luck: random.Random, path: str, authority: str) -> Iterator[tuple[str, bytes]]:
    """Return frames that no client sends: by name, all the bytes of one connection."""
    call = opening(path, authority, 1)
    whole = hello() + call + data(message(b"\x0a\x01a"), 1, end=True)
    yield "noise", luck.randbytes(luck.randrange(1, 4096))
    yield "noise after the preface", PREFACE + luck.randbytes(4096)
    yield "half a preface, then noise", PREFACE[:12] + luck.randbytes(512)
    yield "another protocol", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    yield "a TLS hello", tls_hello(luck)
    yield "cut off anywhere", whole[: luck.randrange(len(PREFACE), len(whole))]
    turned = bytearray(whole)
    for _ in range(8):
        turned[luck.randrange(len(PREFACE), len(turned))] ^= 1 << luck.randrange(8)
    yield "bits turned", bytes(turned)
    yield "a path of no UTF-8", hello() + opening("", authority, 1, **{":path": b"\xad\xff/x"})
    yield "a frame longer than allowed", hello() + b"\xff\xff\xff\0\0\0\0\0\1" + luck.randbytes(999)
    yield "a kind that there isn't", hello() + frame(200, luck.randbytes(64)) + call
    yield "data of no stream", hello() + data(b"abc", 0)
    yield "data of a stream that isn't open", hello() + data(b"abc", 77, end=True)
    yield "a stream of the server's", hello() + opening(path, authority, 2)
    yield "settings of seven bytes", PREFACE + frame(SETTINGS, b"1234567")
    yield "an endless window", hello() + update(0, 0x7FFFFFFF) * 3
    yield "a window of nothing", hello() + call + update(1, 0)
    yield (
        "headers that can't be unpacked",
        hello() + frame(HEADERS, b"\xff" * 99, flags=END_HEADERS, stream=1),
    )
    yield "padding longer than its frame", hello() + frame(DATA, b"\xff", flags=8, stream=1)
    yield "a push", hello() + frame(PUSH, b"\0\0\0\2" + b"\x82", flags=END_HEADERS, stream=1)
    yield (
        "headers without an end",
        hello()
        + frame(HEADERS, b"", stream=1)
        + b"".join(
            frame(CONTINUATION, block([(f"x-{n}", luck.randbytes(999).hex().encode())]), stream=1)
            for n in range(400)
        ),
    )
    yield (
        "opened and reset at once",
        hello()
        + b"".join(
            opening(path, authority, n) + frame(RST, b"\0\0\0\x08", stream=n)
            for n in range(1, 2000, 2)
        ),
    )
    yield "pings", hello() + frame(PING, b"12345678") * 3000
    yield "settings", hello() + settings({4: 1}) * 3000
    yield (
        "no path",
        hello()
        + frame(HEADERS, block([(":method", b"POST")]), flags=END_HEADERS | END_STREAM, stream=1),
    )


def tls_hello(luck: random.Random) -> bytes:
    """First bytes of a client that starts TLS, with nothing of use in them."""
    inner = b"\x03\x03" + luck.randbytes(32) + b"\0" + b"\0\x02\x13\x01" + b"\x01\0" + b"\0\0"
    shake = b"\x01" + struct.pack(">I", len(inner))[1:] + inner
    return b"\x16\x03\x01" + struct.pack(">H", len(shake)) + shake
