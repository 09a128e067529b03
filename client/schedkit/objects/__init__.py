"""The result store: whole logs, and results that are too large for a row, as objects under keys.

    open_objects("file:///var/lib/schedd/results")      files, which need nothing else
    open_objects("s3://bucket/prefix", {…})             S3 and others, by the extra `s3`

    <namespace>/<run id>/<fencing token>/log | result

Workers write objects; members read and remove them. A key contains the token of its assignment, so
no attempt overwrites another's object. The database has key, size and SHA-256; readers compare them
(`parts`).

Invariants
- An object is complete or absent, and never changes.
- A key of another form is rejected before it reaches a store: no `..`, no empty part.
- All calls block; daemons make them in threads. An unavailable store raises `StoreAway` within a
  minute.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote

from schedkit.errors import Misconfigured, ScheddError, Unavailable

DEFAULT_URL: Final = "file:///var/lib/schedd/results"

_WORD: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_KEY: Final = re.compile(rf"{_WORD}(/{_WORD}){{0,7}}")


class StoreAway(Unavailable):
    """The store can't be reached, or accepts no data now. The message says why."""


class NoSuchObject(ScheddError):
    """No object has this key."""


class Objects(Protocol):
    """A result store."""

    def put(self, key: str, source: Path) -> None:
        """Store a file's content. Readers see all of it or nothing. Raises StoreAway."""
        ...

    def read(self, key: str, start: int, length: int) -> bytes:
        """Return `length` bytes from `start`, fewer only at the end. Raises NoSuchObject,
        StoreAway.
        """
        ...

    def remove(self, place: str) -> None:
        """Remove the object of this key, or all objects below a place that ends with `/`. Missing
        objects are ignored. Raises StoreAway.
        """
        ...

    def check(self) -> None:
        """Send a small request to the store. Raises StoreAway."""
        ...


def open_objects(url: str, options: Mapping[str, str] | None = None) -> Objects:
    """Return the store at this address, without a request to it. Raises Misconfigured: the address
    isn't valid, or a required package isn't installed.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise Misconfigured(f"the result store {url!r} isn't a valid URL, such as {DEFAULT_URL}")
    if scheme == "file":
        from schedkit.objects.files import Files

        folder = Path(unquote(rest))
        if not folder.is_absolute() or ".." in folder.parts:
            raise Misconfigured(
                f"the result store {url!r} isn't valid: write an absolute path without .., such as"
                " file:///var/lib/schedd"
            )
        return Files(folder)
    from schedkit.objects.cloud import open_cloud

    return open_cloud(url, options or {})


def log_key(namespace: str, run_id: str, token: int) -> str:
    """Return the key of an attempt's whole log."""
    return checked(f"{place_of(namespace, run_id)}{token}/log")


def result_key(namespace: str, run_id: str, token: int) -> str:
    return checked(f"{place_of(namespace, run_id)}{token}/result")


def place_of(namespace: str, run_id: str) -> str:
    """Return the place of all objects of a run. A namespace that isn't a valid part of a key is
    replaced by its digest; the run's id follows, so keys stay unique.
    """
    if not re.fullmatch(_WORD, namespace):
        digest = hashlib.sha256(namespace.encode(errors="replace")).hexdigest()
        namespace = f"namespace-{digest}"
    return checked(f"{namespace}/{run_id}") + "/"


def checked(key: str) -> str:
    """Return the key. Raises ValueError if it isn't valid."""
    if not _KEY.fullmatch(key):
        raise ValueError(
            f"{key[:200]!r} isn't a valid key of an object in the result store (a bug of"
            " schedd: please report this message)"
        )
    return key


def checked_place(place: str) -> str:
    """Return a key, or a key followed by `/`. Raises ValueError if it isn't valid."""
    checked(place.removesuffix("/"))
    return place


_HEAD: Final = 4
MOST: Final = 4 << 20
"""Maximum bytes of a message; our own messages are never longer."""


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(_HEAD, "big") + message


class Unframed:
    """Splits an object's bytes into messages, piece by piece."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add bytes; yield the complete messages. Raises ValueError if they aren't messages."""
        self._held += data
        at = 0
        while len(self._held) - at >= _HEAD:
            size = int.from_bytes(self._held[at : at + _HEAD], "big")
            if size > MOST:
                raise ValueError(
                    "an object in the result store is damaged: it contains a record of"
                    f" {size:,} bytes, and at most {MOST:,} are allowed; check the disk or"
                    " bucket of the store"
                )
            if len(self._held) - at - _HEAD < size:
                break
            yield bytes(self._held[at + _HEAD : at + _HEAD + size])
            at += _HEAD + size
        del self._held[:at]


# Read an object from its beginning to its end, in parts, and verify its size and digest.
#
# size and SHA-256 from the database ─→ parts ─→ the last one is given when all of it is right

PART: Final = 256 * 1024


class Damaged(ScheddError):
    """The object in the store differs from the object that was stored."""


def parts(objects: Objects, key: str, size: int, sha256: bytes) -> Iterator[bytes]:
    """Yield the whole object in parts. Raises NoSuchObject, StoreAway: as of `Objects.read`.
    Damaged: before the last part is returned.
    """
    digest, at = hashlib.sha256(), 0
    while at < size:
        part = objects.read(key, at, min(PART, size - at))
        digest.update(part)
        at += len(part)
        if not part or (at == size and digest.digest() != sha256):
            break
        yield part
    if at < size or digest.digest() != sha256:
        raise Damaged(
            f"object {key} in the result store is damaged: its size or SHA-256 isn't that of"
            " the stored object; check the disk or bucket of the store"
        )
