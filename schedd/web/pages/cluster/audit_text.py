"""What a line of the audit says of a change, in words. Pure.

    {"paused":true,"by":"user/ann","note":"disks"}   ─▶ note: disks
    {"leader":"m2","term":8,"reason":"upgrade"}      ─▶ leader: m2 · term: 8 · reason: upgrade

What is empty or no says nothing, and neither does what the action's name says already.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

SAID: Final = frozenset({"paused", "by", "state"})
"""Told by the action, and by who did it."""
_HUMP: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


def in_words(change: str) -> str:
    """The `after` of a line; as it stands where it is no object in JSON."""
    try:
        told = json.loads(change)
    except (ValueError, RecursionError):
        return change
    return " · ".join(_words(told)) if isinstance(told, dict) else change


def _words(told: dict[str, Any]) -> Iterator[str]:
    for key, value in told.items():
        name = _HUMP.sub(" ", key).replace("_", " ").lower()
        if value in (None, "", False, [], {}) or key in SAID:
            continue
        if value is True:
            yield name
        else:
            yield f"{name}: {value if isinstance(value, str) else _plain(value)}"


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
