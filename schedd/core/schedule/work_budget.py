"""A budget of work for computations whose cost users decide: schedules, calendars, long spans.

    with limited(1_000):        about 1 ms
        schedule.next_after(now)    spends as it searches; raises TooMuchWork past the limit

A unit is about a microsecond on a processor of 2020. Work is counted, never measured by a clock.
The same question costs the same on every member, however busy the machine is.

Invariants
- A budget decides whether an answer is given, never which answer.
- A computation that raised TooMuchWork changed only caches, and may be repeated with more units.
- Without a budget there is no limit: a caller on an event loop sets one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

ON_LOOP: Final = 1_000
"""Units that one computation of a call may spend on the event loop.

Past them the computation moves to a thread. Many calls may run at the same time.
"""
OF_TURN: Final = 5_000
"""Units that one computation of an owner may spend on the event loop. Owners run one at a time."""
MUCH: Final = 500
"""Units after which a series of computations yields to the event loop."""
OF_CALL: Final = 1_000_000
"""Units that one computation of a call may spend in a thread; past them the call is rejected."""
OF_OWNER: Final = 60_000_000
"""Units that an owner may spend in a thread on one timer step or one definition."""


class TooMuchWork(Exception):
    """The budget was spent before there was an answer."""

    def __init__(self) -> None:
        super().__init__("the computation needs more work than its budget allows")


class Budget:
    """The remaining units of a computation. Any thread may end the computation."""

    __slots__ = ("left",)

    def __init__(self, units: int) -> None:
        self.left = units

    def end(self) -> None:
        """Make the next `spend` raise."""
        self.left = -1


_budget: ContextVar[Budget | None] = ContextVar("budget", default=None)


def spend(units: int) -> None:
    """Take `units` from the budget of this computation. Raises TooMuchWork."""
    budget = _budget.get()
    if budget is not None:
        budget.left -= units
        if budget.left < 0:
            raise TooMuchWork


@contextmanager
def limited(units: int | Budget) -> Iterator[None]:
    """Limit the computations inside to `units`, and to the remaining units of an outer limit."""
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
