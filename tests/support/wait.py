"""Waiting on conditions, with deadlines and a reason: tests never sleep for a fixed time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

POLL = 0.02
"""Seconds between two checks."""
LONGEST_POLL = 0.1
"""Seconds between two checks of a wait that has lasted for a second: a check asks processes of the
cluster, which takes processor time of theirs.
"""
PROCESS_POLL = 0.5
"""Seconds between two checks that each start a process."""
WAIT_TIMEOUT = 30.0
"""Seconds for a short wait, on a very busy machine. It asserts no bound: a test of a bound names
the bound itself.
"""


class WaitTimedOut(AssertionError):
    """The deadline passed first; says what was waited for, and what was seen last."""


def wait_until(
    predicate: Callable[[], T], timeout: float, what: str, *, every: float | None = None
) -> T:
    """Look until `predicate` answers something true, and return that.

    `every`: seconds between two checks; None: from `POLL` to `LONGEST_POLL`, growing with the wait.

    Raises:
        WaitTimedOut: `timeout` seconds passed; names `what` and the last answer.
    """
    began = time.monotonic()
    while True:
        if seen := predicate():
            return seen
        waited = time.monotonic() - began
        if waited >= timeout:
            raise WaitTimedOut(f"waited {timeout:g} s for {what}; last seen: {seen!r}")
        time.sleep(_pause(waited, every))


async def wait_until_async(
    predicate: Callable[[], T | Awaitable[T]],
    timeout: float,
    what: str,
    *,
    every: float | None = None,
) -> T:
    """The same inside an event loop; `predicate` may be a plain or an async function."""
    began = time.monotonic()
    while True:
        answer = predicate()
        seen = await answer if isinstance(answer, Awaitable) else answer
        if seen:
            return seen
        waited = time.monotonic() - began
        if waited >= timeout:
            raise WaitTimedOut(f"waited {timeout:g} s for {what}; last seen: {seen!r}")
        await asyncio.sleep(_pause(waited, every))


def _pause(waited: float, every: float | None) -> float:
    """Return the seconds until the next check, after a wait of so many seconds."""
    return min(POLL + waited / 10, LONGEST_POLL) if every is None else every
