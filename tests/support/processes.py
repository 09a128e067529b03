"""Processes of this host, by their arguments."""

from __future__ import annotations

import contextlib
from pathlib import Path


def sleeping(seconds: str) -> list[int]:
    """Return the processes that sleep exactly so long: a number that no other test uses."""
    found = []
    for each in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if each.name.isdigit():
                words = (each / "cmdline").read_bytes().split(b"\0")
                if words[:2] == [b"sleep", seconds.encode()]:
                    found.append(int(each.name))
    return found
