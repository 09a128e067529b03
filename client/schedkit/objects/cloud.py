"""Objects in S3 and other services that obstore supports (Google Cloud Storage, Azure).

Credentials come from the sources of these services' own tools (variables such as AWS_ACCESS_KEY_ID,
or the role of the machine), or from the options.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from schedkit.errors import Misconfigured
from schedkit.objects import NoSuchObject, StoreAway, checked, checked_place

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES: Final = ("s3", "s3a", "gs", "az", "abfs", "abfss", "azure")
PART: Final = 5 << 20
"""Bytes of a part of an upload; the minimum of S3. One part at a time is in memory."""
_MANY: Final = 1_000
"""Keys removed in one request."""
_TIMEOUTS: Final[dict[str, Any]] = {
    "client_options": {"timeout": timedelta(seconds=30), "connect_timeout": timedelta(seconds=5)},
    "retry_config": {"max_retries": 2, "retry_timeout": timedelta(seconds=15)},
}


def open_cloud(url: str, options: Mapping[str, str]) -> Cloud:
    """Return the store at this address. Raises Misconfigured."""
    scheme = url.partition("://")[0]
    if scheme not in SCHEMES:
        known = ", ".join(f"{one}://" for one in ("file", "s3", "gs", "az"))
        raise Misconfigured(f"the result store {url!r} has an unknown scheme: use one of {known}")
    try:
        from obstore.store import from_url
    except ImportError:
        raise Misconfigured(
            f"the result store {url!r} needs a package that isn't installed: pip install"
            " 'schedd[s3]'"
        ) from None
    make: Any = from_url  # its types list each service's own options
    limits = {key: dict(value) for key, value in _TIMEOUTS.items()}
    given: dict[str, Any] = dict(options)
    if given.pop("allow_http", "false").lower() in ("true", "1", "yes"):
        limits["client_options"]["allow_http"] = True
    try:
        return Cloud(make(url, **given, **limits))
    except Exception as error:  # any error of the library, or of Rust, is caused by the options
        raise Misconfigured(f"the result store {url!r} can't be used: {_words(error)}") from error


class Cloud:
    """A store that obstore supports."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def put(self, key: str, source: Path) -> None:
        """Upload a file, in parts if it is large. It is visible when the last part has arrived."""
        import obstore

        with _away(key):
            obstore.put(self._store, checked(key), source, chunk_size=PART, max_concurrency=1)

    def read(self, key: str, start: int, length: int) -> bytes:
        import obstore

        if length <= 0:
            return b""
        with _away(key):
            return bytes(obstore.get_range(self._store, checked(key), start=start, length=length))

    def remove(self, place: str) -> None:
        import obstore

        checked_place(place)
        with contextlib.suppress(NoSuchObject), _away(place):
            if not place.endswith("/"):
                obstore.delete(self._store, place)
                return
            for batch in obstore.list(self._store, place, chunk_size=_MANY):
                obstore.delete(self._store, [one["path"] for one in batch])

    def check(self) -> None:
        """List a place that can't exist."""
        import obstore

        with _away("a list"):
            obstore.list_with_delimiter(self._store, "0-nothing")


@contextlib.contextmanager
def _away(what: str) -> Iterator[None]:
    from obstore.exceptions import BaseError, NotFoundError

    try:
        yield
    except (NotFoundError, FileNotFoundError):
        raise NoSuchObject(what) from None
    except (BaseError, OSError) as error:
        raise StoreAway(f"{what}: {_words(error)}") from error


def _words(error: BaseException) -> str:
    """Return the first line of an error. The rest has internal details, and perhaps signed
    addresses.
    """
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
