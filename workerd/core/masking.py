"""Secrets in a stream, masked however its bytes are cut into pieces.

    … password=hunter42hunter42 …  ──→  … password=*** …

Of the end of what was fed so much is held back as may be the beginning of a secret.

Invariants
- No byte of a secret that stands whole in the stream is ever given out, not of two that overlap.
- What is held back is shorter than the longest secret.
"""

from __future__ import annotations

from collections.abc import Iterable

LEAST = 6
"""Bytes: what is shorter (`true`, `5432`) stands in any output, and masked would tell itself."""
MASK = b"***"


class Mask:
    """One stream's. Without secrets all goes through as it is."""

    def __init__(self, secrets: Iterable[bytes] = ()) -> None:
        self._secrets = sorted({secret for secret in secrets if len(secret) >= LEAST})
        self._held = b""
        self._covered = 0
        """So many bytes of what is held back stand in a secret that was masked."""

    def feed(self, data: bytes) -> bytes:
        """What may be shown by now."""
        if not self._secrets:
            return data
        data = self._held + data
        return self._given(data, self._begun(data))

    def end(self) -> bytes:
        """The stream is over: the rest."""
        return self._given(self._held, len(self._held))

    def _given(self, data: bytes, until: int) -> bytes:
        """`data` as far as `until`, masked; the rest of it is held back."""
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

    def _begun(self, data: bytes) -> int:
        """Where the first begins that may be a secret when more has come; the end: none does."""
        first = len(data)
        for secret in self._secrets:
            at = data.find(secret[:1], max(0, len(data) - len(secret) + 1), first)
            while at >= 0 and not secret.startswith(data[at:]):
                at = data.find(secret[:1], at + 1, first)
            first = at if at >= 0 else first
        return first

    def _found(self, data: bytes) -> list[tuple[int, int]]:
        """Where secrets stand, by where they begin."""
        found: list[tuple[int, int]] = []
        for secret in self._secrets:
            start = data.find(secret)
            while start >= 0:
                found.append((start, start + len(secret)))
                start = data.find(secret, start + 1)
        return sorted(found)
