"""Read an object from its beginning to its end, in parts, and verify its size and digest.

size and SHA-256 from the database ─→ parts ─→ the last one is given when all of it is right
"""

import hashlib
from collections.abc import Iterator
from typing import Final

from schedkit.errors import ScheddError
from schedkit.objects import Objects

PART: Final = 256 * 1024


class Damaged(ScheddError):
    """The object in the store differs from the object that was stored."""


def parts(objects: Objects, key: str, size: int, sha256: bytes) -> Iterator[bytes]:
    """Yield the whole object in parts.

    Raises:
        NoSuchObject, StoreAway: as of `Objects.read`.
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
        raise Damaged(f"object {key} is damaged: its size or SHA-256 has changed")
