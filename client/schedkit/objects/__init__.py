"""The result store: whole logs, and results that are too large for a row, as objects under keys.

    open_objects("file:///var/lib/schedd/results")      files, which need nothing else
    open_objects("s3://bucket/prefix", {…})             S3 and others, by the extra `s3`

    <namespace>/<run id>/<fencing token>/log | result

Workers write objects; members read and remove them. A key contains the token of its assignment, so
no attempt overwrites another's object. The database has key, size and SHA-256; readers compare them
(`reading`).

Invariants
- An object is complete or absent, and never changes.
- A key of another form is rejected before it reaches a store: no `..`, no empty part.
- All calls block; daemons make them in threads. An unavailable store raises `StoreAway` within a
  minute.
"""

import hashlib
import re
from collections.abc import Mapping
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
    """Return the store at this address, without a request to it.

    Raises:
        Misconfigured: the address isn't valid, or a required package isn't installed.
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
    return checked(f"{_word(namespace)}/{run_id}/{token}/log")


def result_key(namespace: str, run_id: str, token: int) -> str:
    return checked(f"{_word(namespace)}/{run_id}/{token}/result")


def place_of(namespace: str, run_id: str) -> str:
    """Return the place of all objects of a run."""
    return checked(f"{_word(namespace)}/{run_id}") + "/"


def _word(namespace: str) -> str:
    """Return a namespace as a part of a key: unchanged if valid, otherwise its digest. The run's id
    follows, so keys stay unique.
    """
    if re.fullmatch(_WORD, namespace):
        return namespace
    return f"namespace-{hashlib.sha256(namespace.encode(errors='replace')).hexdigest()}"


def checked(key: str) -> str:
    """Return the key. Raises ValueError if it isn't valid."""
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key[:200]!r} isn't a valid object key")
    return key


def checked_place(place: str) -> str:
    """Return a key, or a key followed by `/`. Raises ValueError if it isn't valid."""
    checked(place.removesuffix("/"))
    return place
