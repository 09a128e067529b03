"""A budget of work for computations whose cost others decide: schedules, calendars, long spans.

    with limited(1_000):        about 1 ms
        schedule.next_after(now)    spends as it searches; raises TooMuchWork past the limit

One unit is about a microsecond of one processor of 2020. Work is counted, never measured by a
clock: the same question costs the same on every member, however busy the machine is.

Invariants
- A budget decides whether an answer is given, never which one.
- A computation that raised TooMuchWork changed nothing but caches, and may be repeated with more.
- Without a budget nothing is limited: who computes on an event loop sets one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

ON_LOOP: Final = 1_000
"""Units that a computation of a call may spend on the event loop; past them it moves to a thread.
Many calls may have their turn at the same time.
"""
OF_TURN: Final = 5_000
"""The same of an owner's computation: owners have their turns one after the other."""
MUCH: Final = 500
"""Units after which others have their turn on the loop before the next computation."""
OF_CALL: Final = 1_000_000
"""Units that one computation of a call may spend in a thread; past them the call is refused."""
OF_OWNER: Final = 60_000_000
"""The same of one step of a timer or one definition, by the owner of its shard."""


class TooMuchWork(Exception):
    """The budget was spent before there was an answer."""

    def __init__(self) -> None:
        super().__init__("the computation needs more work than its budget allows")


class Budget:
    """Units that are left. Any thread may end the computation that spends them."""

    __slots__ = ("left",)

    def __init__(self, units: int) -> None:
        self.left = units

    def end(self) -> None:
        """Let the next `spend` raise."""
        self.left = -1


_budget: ContextVar[Budget | None] = ContextVar("budget", default=None)


def spend(units: int) -> None:
    """Take so many units from the budget of this computation. Raises TooMuchWork."""
    budget = _budget.get()
    if budget is not None:
        budget.left -= units
        if budget.left < 0:
            raise TooMuchWork


@contextmanager
def limited(units: int | Budget) -> Iterator[None]:
    """Limit what is computed inside to so many units, and to those left of a limit outside."""
    outer = _budget.get()
    inner = units if isinstance(units, Budget) else Budget(units)
    if outer is not None:
        inner.left = min(inner.left, outer.left)
    granted = inner.left
    token = _budget.set(inner)
    try:
        yield
    finally:
        _budget.reset(token)
        if outer is not None:
            outer.left -= granted - inner.left
