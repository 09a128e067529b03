"""Variables of a job that stand in files on its worker, never in its definition: `env_from`.

    NAME=value      a line each; blank lines and those that begin with # say nothing
    NAME="value"    one pair of quotes around it, either kind, is left out

Invariants
- Only files below a directory that the worker's own configuration names are read, wherever links
  lead: whoever writes jobs reads nothing else of a worker by them.
- No message holds a value, or a line that can't be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

LONGEST: Final = 64 * 1024
"""Bytes of a file."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_QUOTES: Final = "\"'"


def from_files(names: Iterable[str], allowed: Sequence[Path]) -> Mapping[str, str]:
    """What these files say; of one name the last.

    Raises:
        ValueError: a file isn't allowed, too long, or says what can't be meant.
        OSError: it can't be read.
    """
    found: dict[str, str] = {}
    for name in names:
        found |= _parsed(_read(name, allowed), name)
    return found


def _read(name: str, allowed: Sequence[Path]) -> str:
    path = Path(name).resolve(strict=True)
    if not any(path.is_relative_to(folder.resolve()) for folder in allowed):
        below = " or ".join(map(str, allowed))
        raise ValueError(
            f"env_from: {name} isn't below {below}"
            if allowed
            else f"env_from: {name}: this worker's env_files names no directory"
        )
    with path.open("rb") as file:
        data = file.read(LONGEST + 1)
    if len(data) > LONGEST:
        raise ValueError(f"env_from: {name} has more than {LONGEST // 1024} KiB")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ValueError(f"env_from: {name} isn't UTF-8") from None


def _parsed(text: str, name: str) -> dict[str, str]:
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        said = line.strip()
        if not said or said.startswith("#"):
            continue
        key, equals, value = said.partition("=")
        key, value = key.strip(), value.strip()
        if not equals or not _NAME.fullmatch(key) or "\0" in value:
            raise ValueError(f"env_from: {name}:{number}: not NAME=value")
        if len(value) > 1 and value[0] in _QUOTES and value[-1] == value[0]:
            value = value[1:-1]
        found[key] = value
    return found
