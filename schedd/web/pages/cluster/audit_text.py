"""Turn the change in an audit entry into words. Pure.

    {"paused":true,"by":"user/ann","note":"disks"}   ─▶ note: disks
    {"leader":"m2","term":8,"reason":"upgrade"}      ─▶ leader: m2 · term: 8 · reason: upgrade

Empty and false values are left out, and so are those that the action's name implies.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

SAID: Final = frozenset({"paused", "by", "state"})
"""Implied by the action and its actor."""
_HUMP: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


def in_words(change: str) -> str:
    """Return the `after` of an entry in words; unchanged if it isn't a JSON object."""
    try:
        values = json.loads(change)
    except (ValueError, RecursionError):
        return change
    return " · ".join(_words(values)) if isinstance(values, dict) else change


def _words(values: dict[str, Any]) -> Iterator[str]:
    for key, value in values.items():
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
