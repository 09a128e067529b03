"""A program with a reader that closes its output early, as under `| head -1`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence


def unread(command: Sequence[str]) -> tuple[int, str]:
    """Its exit code and what it said on stderr, when the reader of its stdout has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run(
            command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    finally:
        os.close(writer)
    return ended.returncode, ended.stderr
