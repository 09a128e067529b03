"""Share the end of a worker's trust in its lease with its keeper: a number in shared memory.

    worker ──write──→ [ time ] ←──until── keeper

The time is a value, not a message: a keeper that was suspended reads the current value, and a
worker never waits for its keeper.

Invariants
- Times are seconds of the boot clock, which continues during a suspend.
- The keeper reads the clock first and then the value: a value that had passed by then wasn't
  renewed.
- Standard library only: the keeper imports this module.
"""

import math
import os
import struct

_INSTANT = struct.Struct("=d")


class SharedLease:
    """An end of the shared memory."""

    def __init__(self, fd: int | None = None) -> None:
        """Create a value without end; or open the inherited one of `fd`.

        Raises:
            OSError: it can't be created.
        """
        self.fd = os.memfd_create("lease") if fd is None else fd
        if fd is None:
            self.write(math.inf)

    def write(self, until: float) -> None:
        """Replace the value by a later or earlier one."""
        os.pwrite(self.fd, _INSTANT.pack(until), 0)

    def until(self) -> float:
        while (first := self._read()) != self._read():  # a read may overlap a write
            pass
        return float(_INSTANT.unpack(first)[0])

    def _read(self) -> bytes:
        return os.pread(self.fd, _INSTANT.size, 0)

    def close(self) -> None:
        os.close(self.fd)
