"""The result store, as members use it: they read what workers stored, and remove it."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol


class ResultObjects(Protocol):
    """Whole logs, and results too large for a row (`schedkit.objects` has the keys)."""

    def parts(self, key: str, size: int, sha256: bytes) -> AsyncIterator[bytes]:
        """An object, a part at a time, compared with what is known of it.

        Raises NoSuchObject, Unavailable, or Damaged before the last part.
        """
        ...

    async def remove(self, places: Sequence[str]) -> tuple[list[str], list[str]]:
        """Remove what is at these; those at which nothing is any more, and those that the store
        kept. After some of these in a row it asks for no more. Never raises.
        """
        ...
