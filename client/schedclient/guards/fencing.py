"""What the guards of all targets share: which token it is, and whether it is stale.

Invariants
- A target remembers, under a name that its user chose (the resource), the greatest token it has
  seen. A lower one is refused; the same passes, for one attempt may write twice.
- Tokens are compared within one job alone: those of two jobs say nothing about each other, and a
  job that was deleted and made anew is another one (docs/fencing.md).
- No token is never taken for a low one: what can't be read is an error.
"""

from __future__ import annotations

import os
from typing import Final

from schedclient.errors import StaleToken
from schedkit.errors import Misconfigured

VARIABLE: Final = "SCHEDD_FENCING_TOKEN"
GREATEST: Final = 2**63 - 1
LONGEST: Final = 500
"""Characters of a resource's name: what an index of PostgreSQL takes, however they are encoded."""


def given(token: int | None) -> int:
    """The attempt's token: as it was given, or from the environment of a shell job.

    Raises:
        Misconfigured: it is none.
    """
    if token is None:
        token = _of_the_environment()
    if isinstance(token, bool) or not isinstance(token, int) or not 0 < token <= GREATEST:
        raise Misconfigured(
            f"{token!r} is no fencing token: a whole number from 1 to 2^63 - 1 as the job was given"
            f" it (ctx.fencing_token, {VARIABLE}, Schedd-Fencing-Token)"
        )
    return token


def named(resource: str) -> str:
    """The name of a resource, if it can be one.

    Raises:
        Misconfigured: it is empty, too long, or has a NUL.
    """
    if not isinstance(resource, str) or not resource or "\0" in resource or len(resource) > LONGEST:
        raise Misconfigured(
            f"{resource!r:.60} can't name a guarded resource: 1 to {LONGEST} characters, no NUL"
        )
    return resource


def judge(resource: str, token: int, last_seen: int) -> None:
    """Let the token pass.

    Raises:
        StaleToken: a greater one was seen.
    """
    if token < last_seen:
        raise StaleToken(resource, token, last_seen)


def read(text: str) -> int | None:
    """A token as it is written in decimal; None if this isn't one."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _of_the_environment() -> int:
    text = os.environ.get(VARIABLE)
    if text is None:
        raise Misconfigured(
            f"no fencing token: {VARIABLE} isn't set, which schedd does for shell jobs; elsewhere"
            " give the guard the token (ctx.fencing_token)"
        )
    token = read(text)
    if token is None:
        raise Misconfigured(f"{VARIABLE}={text!r:.60} is no fencing token: a decimal number")
    return token
