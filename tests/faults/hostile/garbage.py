"""Malformed messages, by a seed: the same seed gives the same bytes."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator

LIMIT = 4 * 1024 * 1024
DEEP = 100_000


def nested(levels: int, field: int = 1, *, room: int = LIMIT - 1024) -> bytes:
    """Messages within each other, each in this field of the next, as far as there is room."""
    pieces, size = [], 0
    for _ in range(levels):
        head = _varint(field << 3 | 2) + _varint(size)
        size += len(head)
        if size > room:
            break
        pieces.append(head)
    return b"".join(reversed(pieces))


def deep_value(levels: int) -> bytes:
    """A google.protobuf.Value of lists within each other."""
    pieces, size = [], 0
    for level in range(2 * levels):
        head = _varint((1 if level % 2 else 6) << 3 | 2) + _varint(size)
        size += len(head)
        pieces.append(head)
    return b"".join(reversed(pieces))


def wide(field: int, room: int = LIMIT - 1024) -> bytes:
    """As many empty messages, or texts, as there is room for, side by side in one field."""
    one = _varint(field << 3 | 2) + b"\0"
    return one * (room // len(one))


def deep_json(levels: int = DEEP, key: str = "") -> str:
    """Lists, or objects of one key, within each other."""
    opened = "[" if not key else f'{{"{key}":'
    return opened * levels + ("1" if key else "") + ("}" if key else "]") * levels


def nonsense(luck: random.Random) -> Iterator[tuple[str, bytes]]:
    """Return bytes that no message of ours is parsed from, by name."""
    yield "noise", b"\x0f" + luck.randbytes(luck.randrange(1, 2000))
    yield "noise of a megabyte", b"\x0e" + luck.randbytes(1 << 20)
    yield "cut off in a number", b"\x08" + b"\xff" * 12
    yield "cut off in a text", b"\x0a\x7fabc"
    yield "a group that doesn't end", b"\x0b" * 50
    yield "a wire type that there isn't", b"\x0f\x0e\x0f"
    yield f"{DEEP} deep, and broken", nested(DEEP) + b"\x0f"
    yield f"a value {DEEP} deep, and broken", deep_value(DEEP) + b"\x0f"


def flat(luck: random.Random) -> Iterator[tuple[str, bytes]]:
    """Return messages that are parsed and have no sensible meaning, by name."""
    yield "nothing", b""
    yield "fields that there aren't", _varint(9999 << 3 | 2) + b"\x05abcde"
    yield "no UTF-8", b"\x0a\x04\xff\xfe\xfd\xfc" + b"\x12\x02\xc3\x28"
    for field in (1, 2, 3, 64):
        yield f"{DEEP} deep in field {field}", nested(DEEP, field)
    yield f"a value {DEEP} deep", deep_value(DEEP)
    for field in (1, 2, 3, 4, 5, 6, 7, 8, 10):
        yield f"as wide as can be in field {field}", wide(field)
    yield "a job with a million requirements", inside(1, wide(luck.choice((33, 34)), LIMIT - 2048))


def inside(field: int, content: bytes) -> bytes:
    """This as the field of another message."""
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def bombs() -> Iterator[tuple[str, bytes]]:
    """Gzip that is small on the wire: what it holds is 1,000 times as much."""
    yield "64 MiB of zeros", gzip.compress(bytes(64 << 20), 9)
    yield "3 GiB of zeros", _zeros(3 << 30)


def _zeros(size: int) -> bytes:
    """Gzip members one after another, each of 64 MiB."""
    return gzip.compress(bytes(64 << 20), 9) * (size >> 26)


def bodies() -> Iterator[tuple[str, bytes]]:
    """JSON bodies that are no request, by name."""
    job = {"name": "x", "onDemand": True, "shell": {"argv": ["true"]}}
    yield "broken", b'{"name": "x", '
    yield "no JSON", b"<job/>"
    yield "no UTF-8", b'{"name": "\xff\xfe"}'
    yield "UTF-16", json.dumps(job).encode("utf-16")
    yield "NUL", b'{"name": "a\\u0000b", "onDemand": true, "shell": {"argv": ["true"]}}'
    yield "half a pair", b'{"name": "x", "labels": {"a": "\\ud800"}}'
    yield "a number of 100,000 digits", b'{"slots": ' + b"9" * 100_000 + b"}"
    yield "a number beyond all", b'{"slots": 1e400}'
    yield "NaN", b'{"slots": NaN}'
    yield "a list", b"[]"
    yield "a key twice", b'{"name": "x", "name": "y"}'
    yield "lists, deep", deep_json().encode()
    yield "objects, deep", deep_json(key="a").encode()
    yield "jobs, deep", deep_json(key="job").encode()
    yield "payload, deep", b'{"name": "x", "payload": ' + deep_json().encode() + b"}"
    yield "payload, not so deep", b'{"name": "x", "payload": ' + deep_json(500).encode() + b"}"
    yield "deep without an end", b"[" * DEEP
    yield "a million lists", b'{"payload": [' + b"[]," * 1_000_000 + b"[]]}"
    yield "a million objects", b'{"payload": [' + b"{}," * 1_000_000 + b"{}]}"
    yield "a million requirements", b'{"require": [' + b"{}," * 1_000_000 + b"{}]}"
    yield "a million keys", _keys(200_000)
    yield "a text without an end, of a million quotes", b'{"name": "' + b'\\",' * 1_000_000
    yield "4 MiB and one", b'{"name": "' + b"x" * LIMIT + b'"}'


def _keys(count: int) -> bytes:
    pairs = ",".join(f'"k{n}":{n}' for n in range(count))
    return b"{" + pairs.encode() + b"}"


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)
