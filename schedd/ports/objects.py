"""The result store for members: they read and remove what workers stored."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol


class ResultObjects(Protocol):
    """Whole logs, and results too large for a row (`schedkit.objects` has the keys)."""

    def parts(self, key: str, size: int, sha256: bytes) -> AsyncIterator[bytes]:
        """Yield an object in parts. Its size and checksum are compared.

        Raises NoSuchObject, Unavailable, or Damaged before the last part.
        """
        ...

    async def remove(self, places: Sequence[str]) -> tuple[list[str], list[str]]:
        """Remove these objects; return the removed ones and those that couldn't be removed.

        Several failures in a row end the call. Never raises.
        """
        ...
