"""The values of the options for the resource limits of a command."""

import re
from collections.abc import Mapping
from typing import Any, Final

from schedctl.failure import CommandFailure

# Sizes as people write them: `64MiB`, `1GiB`. A bare number is bytes.
#
# Units are powers of 1,024. MB and M are rejected, because they are ambiguous.

_UNITS: Final = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SHAPE: Final = re.compile(rf"([0-9]{{1,18}})\s*({'|'.join(_UNITS)})?", re.ASCII)


def parse_size(text: str) -> int:
    """Return the bytes of a size.

    Raises:
        ValueError: with a message for the author of the text.
    """
    match = _SHAPE.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} isn't a valid size; write a whole number of bytes, or with KiB, MiB, GiB or"
            " TiB, such as 64MiB"
        )
    return int(match[1]) * _UNITS.get(match[2], 1)


_FLAGS: Final = {
    "memory_bytes": "--limit-memory",
    "processes": "--limit-processes",
    "files": "--limit-files",
}
FLAG_OF: Final = {
    f"{action}.limits.{limit}": flag
    for action in ("shell", "python")
    for limit, flag in _FLAGS.items()
}
"""Fields to the options that set them."""


def form(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits that the options name.

    Raises:
        CommandFailure: a limit isn't valid.
    """
    limits = {
        limit: flags[flag[2:].replace("-", "_")]
        for limit, flag in _FLAGS.items()
        if flags.get(flag[2:].replace("-", "_")) is not None
    }
    if "memory_bytes" in limits:
        try:
            limits["memory_bytes"] = str(parse_size(limits["memory_bytes"]))
        except ValueError as wrong:
            raise CommandFailure(
                f"--limit-memory: {wrong}",
                reason="WRONG_FLAG",
                remedy="write for example --limit-memory 64MiB",
            ) from None
    for limit, flag in _FLAGS.items():
        if limits.get(limit, "1").strip().strip("0") == "":
            raise CommandFailure(
                f"{flag} 0 isn't valid: a limit must be at least 1",
                reason="WRONG_FLAG",
                remedy="to remove the limit of a job, apply a manifest without this limit: schedctl"
                " apply -f FILE",
            )
    return limits
