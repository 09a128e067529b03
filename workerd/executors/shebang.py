"""Read the `#!` line of a script: its interpreter, and errors in it.

Invariants
- The line is read as the kernel reads it: a path, and the rest as one argument.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_MARK: Final = "#!"
_BLANKS: Final = re.compile(r"[ \t]+")
_MOST: Final = 4096
"""Bytes read of a file."""


def plain(script: str) -> str:
    """Return a script without byte order mark, with LF for CRLF if its first line has CRLF."""
    script = script.removeprefix("\ufeff")
    if not script.partition("\n")[0].endswith("\r"):
        return script
    return script.replace("\r\n", "\n").removesuffix("\r")


def interpreter(script: str) -> Sequence[str]:
    """Return the interpreter of the `#!` line; empty without one. Raises ValueError: none named."""
    line = script.partition("\n")[0]
    if not line.startswith(_MARK):
        return ()
    words = _BLANKS.split(line.removeprefix(_MARK).strip(" \t"), maxsplit=1)
    if not words[0]:
        raise ValueError(f"first line of the script, {line!r}, names no interpreter")
    return words


def problem(program: Path) -> str:
    """Return why the `#!` line of an existing program fails; empty if it doesn't."""
    try:
        line = _first_line(program)
        if not line.startswith(_MARK):
            return ""
        found = interpreter(line)
    except (OSError, ValueError):
        return ""
    if not found or Path(found[0]).exists():
        return ""
    if line.endswith("\r"):
        name = found[0].rstrip("\r")
        return (
            f"#! line of {program} ends in a carriage return (CRLF): the kernel looks for"
            f" {name!r} with that at its end; convert the file to LF line ends"
        )
    return f"interpreter {found[0]!r} in the #! line of {program} not found"


def _first_line(program: Path) -> str:
    fd = os.open(program, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        return os.read(fd, _MOST).partition(b"\n")[0].decode(errors="replace")
    finally:
        os.close(fd)
