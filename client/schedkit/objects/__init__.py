"""The result store: whole logs, and results too large for a row, as objects under keys.

    open_objects("file:///var/lib/schedd/results")      files, which need nothing else
    open_objects("s3://bucket/prefix", {…})             S3 and others, by the extra `s3`

    <namespace>/<run id>/<fencing token>/log | result

Workers write, members read and remove. A key contains the token of its assignment, so no attempt
overwrites another's object. The database has key, size and SHA-256; readers compare them
(`reading`).

Invariants
- An object is complete or absent, and never changes.
- A key of another shape never reaches a store: no `..`, no empty word.
- All calls block: daemons make them in threads. An unavailable store is `StoreAway`, within a
  minute.
"""

from __future__ import annotations

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
    """The store can't be reached, or takes nothing now. The message says why."""


class NoSuchObject(ScheddError):
    """There is no object of this key."""


class Objects(Protocol):
    """One store."""

    def put(self, key: str, source: Path) -> None:
        """Store a file's content; readers see all of it or none. Raises StoreAway."""
        ...

    def read(self, key: str, start: int, length: int) -> bytes:
        """So many bytes from there on, fewer only at the end. Raises NoSuchObject, StoreAway."""
        ...

    def remove(self, place: str) -> None:
        """The object of this key or, where it ends with `/`, all below it; what isn't there is
        removed already. Raises StoreAway.
        """
        ...

    def check(self) -> None:
        """Ask the store for something small. Raises StoreAway."""
        ...


def open_objects(url: str, options: Mapping[str, str] | None = None) -> Objects:
    """The store at this address; nothing is asked of it yet.

    Raises:
        Misconfigured: the address is none, or needs what isn't installed.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise Misconfigured(f"the result store {url!r} isn't a valid URL, such as {DEFAULT_URL}")
    if scheme == "file":
        from schedkit.objects.files import Files

        folder = Path(unquote(rest))
        if not folder.is_absolute() or ".." in folder.parts:
            raise Misconfigured(f"the result store {url!r} must name an absolute folder")
        return Files(folder)
    from schedkit.objects.cloud import open_cloud

    return open_cloud(url, options or {})


def log_key(namespace: str, run_id: str, token: int) -> str:
    """Of the whole log of an attempt."""
    return checked(f"{_word(namespace)}/{run_id}/{token}/log")


def result_key(namespace: str, run_id: str, token: int) -> str:
    """Of what an attempt returned."""
    return checked(f"{_word(namespace)}/{run_id}/{token}/result")


def place_of(namespace: str, run_id: str) -> str:
    """Where all of a run's objects are."""
    return checked(f"{_word(namespace)}/{run_id}") + "/"


def _word(namespace: str) -> str:
    """A namespace as part of a key: itself, or where it is no word of one, its digest. The run's id
    behind it tells runs apart.
    """
    if re.fullmatch(_WORD, namespace):
        return namespace
    return f"namespace-{hashlib.sha256(namespace.encode(errors='replace')).hexdigest()}"


def checked(key: str) -> str:
    """The key itself. Raises ValueError where it isn't one."""
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key[:200]!r} isn't a valid object key")
    return key


def checked_place(place: str) -> str:
    """A key, or one with a `/` behind it. Raises ValueError."""
    checked(place.removesuffix("/"))
    return place
