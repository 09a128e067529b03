"""Waits between retries: growing, bounded, randomized so that clients don't retry in step.

    wait(n) = min(maximum, initial · factor^n) · (1 - u · jitter)      u uniform in [0, 1)

Invariants
- No wait is longer than `maximum` nor shorter than `(1 - jitter)` times the undisturbed one.
- A success is reported by `reset`; nothing else shortens the wait.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """The waits between retries of one operation, in seconds."""

    initial: float
    maximum: float
    factor: float = 2.0
    jitter: float = 0.2
    uniform: Callable[[], float] = field(default=random.random, repr=False)
    """Returns a random number in [0, 1). A simulation passes its own seeded generator."""
    _following: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.initial <= self.maximum:
            raise ValueError(
                f"the backoff's initial wait {self.initial} and longest wait {self.maximum}"
                " aren't valid: the initial wait must be more than 0, and at most the longest"
                " wait"
            )
        if self.factor < 1 or not 0 <= self.jitter < 1:
            raise ValueError(
                f"the backoff {self} isn't valid: its factor must be at least 1, and its"
                " jitter from 0 to below 1"
            )
        self._following = self.initial

    def next(self) -> float:
        """Return the seconds to wait now. The next call returns a longer wait."""
        wait = self._following
        self._following = min(self.maximum, wait * self.factor)
        return wait * (1 - self.uniform() * self.jitter)

    def reset(self) -> None:
        """Start from `initial` again, after a success."""
        self._following = self.initial
