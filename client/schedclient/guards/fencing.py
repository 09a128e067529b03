"""The rules that all guards share: which token applies, and whether it is stale.

A lower token than the greatest one of a resource is rejected; the same token is accepted, because
an attempt may write twice. A missing or unreadable token is an error, never a low token.
"""

import os
from typing import Final

from schedclient.errors import StaleToken
from schedkit.errors import Misconfigured

VARIABLE: Final = "SCHEDD_FENCING_TOKEN"
GREATEST: Final = 2**63 - 1
LONGEST: Final = 500
"""Characters of a resource's name: the limit of an index of PostgreSQL, in any encoding."""


def given(token: int | None) -> int:
    """Return the attempt's token: the given one, or the one in the environment of a shell job.
    Raises Misconfigured: it isn't a valid token.
    """
    if token is None:
        token = _of_the_environment()
    if isinstance(token, bool) or not isinstance(token, int) or not 0 < token <= GREATEST:
        raise Misconfigured(
            f"{token!r} isn't a valid fencing token: give the whole number from 1 to 2^63 - 1 that"
            f" the job received (ctx.fencing_token, {VARIABLE}, Schedd-Fencing-Token)"
        )
    return token


def named(resource: str) -> str:
    """Return the name of a resource. Raises Misconfigured: it is empty, too long, or has a NUL."""
    if not isinstance(resource, str) or not resource or "\0" in resource or len(resource) > LONGEST:
        raise Misconfigured(
            f"{resource!r:.60} isn't a valid name of a guarded resource: give 1 to {LONGEST}"
            " characters without a NUL"
        )
    return resource


def judge(resource: str, token: int, last_seen: int) -> None:
    """Check a token. Raises StaleToken: the target has a greater token."""
    if token < last_seen:
        raise StaleToken(resource, token, last_seen)


def read(text: str) -> int | None:
    """Parse a token in decimal; None if it isn't one."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _of_the_environment() -> int:
    text = os.environ.get(VARIABLE)
    if text is None:
        raise Misconfigured(
            f"fencing token not found: the variable {VARIABLE} isn't set. schedd sets this variable"
            " only for shell jobs. In other jobs pass the token to the guard (ctx.fencing_token)"
        )
    token = read(text)
    if token is None:
        raise Misconfigured(
            f"{VARIABLE}={text!r:.60} isn't a valid fencing token: a token is a whole number; don't"
            " change this variable, which schedd sets"
        )
    return token
