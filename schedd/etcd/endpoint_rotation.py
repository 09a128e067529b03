"""Which endpoint is next: the one that last worked, until it fails.

Invariants
- All calls share one current endpoint. A failure advances it only if the failed endpoint is still
  the current one. So a hundred calls that fail at once advance it by one.
- A round visits each endpoint once, beginning with the current one.
"""

from collections.abc import Iterator


class Ring:
    """Positions 0 to `size` - 1, one of them current. Used by one thread."""

    def __init__(self, size: int, start: int = 0) -> None:
        if size < 1:
            raise ValueError("at least one endpoint is required")
        self._size = size
        self.current = start % size

    def round(self) -> Iterator[int]:
        """Yield every position once, beginning with the current one."""
        first = self.current
        return ((first + step) % self._size for step in range(self._size))

    def failed(self, position: int) -> None:
        """Let calls begin with the next endpoint, because the one at `position` failed."""
        if position == self.current:
            self.current = (position + 1) % self._size
