"""Output of a command whose reader may leave early (`| head -1`)."""

import os
import sys
from typing import TextIO


def swallow(stream: TextIO) -> None:
    """Discard further output, also the buffered part, when the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def put_out(text: str) -> None:
    """Print one or more lines; ignore a closed reader."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        swallow(sys.stdout)
