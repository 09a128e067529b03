"""The cluster's row: the newest mark, and the holds of databases that went back. Times in steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hold:
    """A pause by which a database that went back to `began` is held, until a person resumes it."""

    began: int
    lost_until: int
    ended: int | None = None
    since: int | None = None
    """Start of the catch-up of what fell due; None: nothing is caught up."""

    @property
    def doubtful_until(self) -> int:
        """Until when something may have happened in what was lost."""
        return self.lost_until if self.ended is None else min(self.lost_until, self.ended)

    def skips(self, at: int) -> bool:
        """Whether an instant is of it, and doesn't run afterwards."""
        if self.ended is None or not self.began < at <= self.ended:
            return False
        return self.since is None or at < self.since


@dataclass(frozen=True, slots=True)
class Cluster:
    """The row that all look at: the newest mark, and every hold there was."""

    mark: int = 0
    switched: int = 0
    """How often it was paused or resumed."""
    holds: tuple[Hold, ...] = ()

    @property
    def paused(self) -> bool:
        return bool(self.holds) and self.holds[-1].ended is None

    @property
    def doubtful_until(self) -> int:
        """A dispatch by then may have been repeated in what was lost."""
        return max((hold.doubtful_until for hold in self.holds), default=-1)
