"""How many bits stand above each other: a counter for each minute, all counted at once.

slices[i] holds bit i of every minute's count; adding a number of minutes is a few ANDs and XORs
over all of them together (a carry-save adder, as wide as the grid).
"""

from dataclasses import field
from typing import Final

from schedkit.records import dataclass

LANE: Final = 8
"""Slices that are read together: a minute's count of them is a byte."""
_DIGITS: Final = bytes.maketrans(b"01", b"\x00\x01")


@dataclass(slots=True)
class Tally:
    """Counts of `minutes` minutes."""

    minutes: int
    slices: list[int] = field(default_factory=list)

    def add(self, which: int, weight: int = 1) -> None:
        """Add `weight` to each minute whose bit is set in `which`."""
        at = 0
        while weight:
            if weight & 1:
                self._add_at(which, at)
            weight >>= 1
            at += 1

    def _add_at(self, carry: int, at: int) -> None:
        while carry:
            while len(self.slices) <= at:
                self.slices.append(0)
            before = self.slices[at]
            self.slices[at] = before ^ carry
            carry &= before
            at += 1

    def peak(self) -> tuple[int, int]:
        """The greatest count, and the minutes that have it."""
        value, having = 0, (1 << self.minutes) - 1
        for at in reversed(range(len(self.slices))):
            if hit := having & self.slices[at]:
                having = hit
                value |= 1 << at
        return value, having

    def above(self, limit: int) -> int:
        """The minutes whose count is greater than `limit`."""
        greater, equal = 0, (1 << self.minutes) - 1
        for at in reversed(range(max(len(self.slices), limit.bit_length()))):
            bits = self.slices[at] if at < len(self.slices) else 0
            if limit >> at & 1:
                equal &= bits
            else:
                greater |= equal & bits
                equal &= ~bits
        return greater

    def counts(self) -> list[int]:
        """Each minute's count."""
        found = [0] * self.minutes
        for first in range(0, len(self.slices), LANE):
            lanes = 0
            for at, bits in enumerate(self.slices[first : first + LANE]):
                lanes |= _spread(bits, self.minutes) << at
            counted = lanes.to_bytes(self.minutes, "little")
            found = [many + (more << first) for many, more in zip(found, counted, strict=True)]
        return found

    def total(self) -> int:
        """The sum over all minutes."""
        return sum(bits.bit_count() << at for at, bits in enumerate(self.slices))


def _spread(bits: int, length: int) -> int:
    """A byte for each of `length` bits: 0 or 1."""
    return int.from_bytes(format(bits, f"0{length}b").encode().translate(_DIGITS), "big")
