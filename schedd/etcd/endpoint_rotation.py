"""Which endpoint is next: the one that last worked, until it fails.

Invariants
- All calls share one current endpoint; a failure moves it on only if it is still the current
  one, so that a hundred calls failing at once move it by one.
- A round visits each endpoint once, beginning with the current one.
"""

from __future__ import annotations

from collections.abc import Iterator


class Ring:
    """Positions 0 to `size` - 1 and a current one. Used by one thread."""

    def __init__(self, size: int, start: int = 0) -> None:
        if size < 1:
            raise ValueError("a ring needs at least one endpoint")
        self._size = size
        self.current = start % size

    def round(self) -> Iterator[int]:
        """Every position once, beginning with the current one."""
        first = self.current
        return ((first + step) % self._size for step in range(self._size))

    def failed(self, position: int) -> None:
        """The endpoint at `position` didn't serve: calls begin with the next one."""
        if position == self.current:
            self.current = (position + 1) % self._size
