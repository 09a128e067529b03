"""Mask secrets in a stream, however its bytes are split into pieces.

    … password=hunter42hunter42 …  ──→  … password=*** …

The end of the input is held back as far as it may be the beginning of a secret.

Invariants
- No byte of a secret in the stream is ever returned, also if two secrets overlap.
- Less is held back than the length of the longest secret.
"""

from collections.abc import Iterable

LEAST = 6
"""Bytes. Shorter values (`true`, `5432`) occur in any output; masking them would reveal them."""
MASK = b"***"


class Mask:
    """The mask of one stream. Without secrets the data is unchanged."""

    def __init__(self, secrets: Iterable[bytes] = ()) -> None:
        self._secrets = sorted({secret for secret in secrets if len(secret) >= LEAST})
        self._held = b""
        self._covered = 0
        """Bytes held back that belong to a masked secret."""

    def feed(self, data: bytes) -> bytes:
        """Add data; return what may be shown by now."""
        if not self._secrets:
            return data
        data = self._held + data
        return self._given(data, self._unfinished_secret_start(data))

    def end(self) -> bytes:
        return self._given(self._held, len(self._held))

    def _given(self, data: bytes, until: int) -> bytes:
        """Return `data` up to `until`, masked. Hold the rest back."""
        shown, at = [], self._covered
        for start, stop in self._found(data):
            if start >= until:
                break
            if start >= at:
                shown += [data[at:start], MASK]
            at = max(at, stop)
        shown.append(data[at : max(at, until)])
        self._held, self._covered = data[until:], max(0, at - until)
        return b"".join(shown)

    def _unfinished_secret_start(self, data: bytes) -> int:
        """Return where a possible unfinished secret begins; the end if there is none."""
        first = len(data)
        for secret in self._secrets:
            at = data.find(secret[:1], max(0, len(data) - len(secret) + 1), first)
            while at >= 0 and not secret.startswith(data[at:]):
                at = data.find(secret[:1], at + 1, first)
            first = at if at >= 0 else first
        return first

    def _found(self, data: bytes) -> list[tuple[int, int]]:
        """Return the ranges of secrets, by their beginning."""
        found: list[tuple[int, int]] = []
        for secret in self._secrets:
            start = data.find(secret)
            while start >= 0:
                found.append((start, start + len(secret)))
                start = data.find(secret, start + 1)
        return sorted(found)
