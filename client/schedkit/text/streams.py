"""What a command prints, where who reads it may leave before the end (`| head -1`)."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def swallow(stream: TextIO) -> None:
    """Let it take all that comes, also what it still holds when the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def put_out(text: str) -> None:
    """Print this line, or these; no matter if nobody reads them."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        swallow(sys.stdout)
