"""Until when a worker may trust in its lease, told to its keeper: a number in memory both share.

    worker ──tell──→ [ instant ] ←──until── keeper

It is a value and no message: a keeper that stood still reads what holds now, never what held once,
and a worker never waits for a keeper.

Invariants
- Instants are seconds of the boot clock, which goes on in a suspend.
- Whoever judges takes the time first and then reads: what had passed by then passed without news.
- Standard library alone: the keeper stands on this.
"""

from __future__ import annotations

import math
import os
import struct

_INSTANT = struct.Struct("=d")


class SharedLease:
    """One end of it."""

    def __init__(self, fd: int | None = None) -> None:
        """A new one, which doesn't end until that is told; or the one that `fd` was inherited for.

        Raises:
            OSError: none can be made now.
        """
        self.fd = os.memfd_create("lease") if fd is None else fd
        if fd is None:
            self.tell(math.inf)

    def tell(self, until: float) -> None:
        """From now on this instant counts, whether it is later or earlier than the last."""
        os.pwrite(self.fd, _INSTANT.pack(until), 0)

    def until(self) -> float:
        """The instant told last."""
        while (first := self._read()) != self._read():  # a reading may fall into a writing
            pass
        return float(_INSTANT.unpack(first)[0])

    def _read(self) -> bytes:
        return os.pread(self.fd, _INSTANT.size, 0)

    def close(self) -> None:
        """Of this end."""
        os.close(self.fd)
