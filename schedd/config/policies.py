"""Settings that all members share: lateness, lookahead, notifications, retention.
kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from schedd.core.cluster.cluster_events import LOST_FOR
from schedd.core.runs import retention
from schedd.core.timers import pre_dispatch
from schedd.core.timers.catch_up_limits import LateLimits
from schedkit.config import ConfigProblem


@dataclass(frozen=True, slots=True)
class CatchUpConfig:
    """What is late, beside what is due now. The same in all members: each keeps its part of it."""

    release_rate: int = 100
    """Late runs of jobs with `catch_up: all` that the whole cluster dispatches in a second."""
    reserved_percent: int = 20
    """Of the workers' slots: what such runs leave to what is due now."""

    def faults(self) -> Iterator[ConfigProblem]:
        """What is wrong, by key."""
        if not 1 <= self.release_rate <= 1_000_000:
            yield ConfigProblem("release_rate", "must be from 1 to 1000000")
        if not 0 <= self.reserved_percent <= 99:
            yield ConfigProblem("reserved_percent", "must be from 0 to 99")

    def limits(self) -> LateLimits:
        """As decisions take them."""
        return LateLimits(float(self.release_rate), self.reserved_percent / 100)


@dataclass(frozen=True, slots=True)
class LookaheadConfig:
    """How long before it is due a schedule's run is prepared; 0s: not before."""

    fire: timedelta = timedelta(seconds=2.5)
    """It is made: its row is there, PENDING."""
    arm: timedelta = timedelta(seconds=1.5)
    """It takes a worker's free slot, and starts by the worker's own timer. At most `fire`."""

    def faults(self) -> Iterator[ConfigProblem]:
        """What is wrong."""
        try:
            self.kept()
        except ValueError as error:
            yield ConfigProblem("", str(error))

    def kept(self) -> pre_dispatch.Lookahead:
        """As decisions take it."""
        return pre_dispatch.Lookahead(self.fire, self.arm)


@dataclass(frozen=True, slots=True)
class NotificationConfig:
    """Limits of jobs' notifications. The same in all members: any of them may send them."""

    signing_key: Path | None = None
    """A file of keys (`whsec_…` a line) that webhooks are signed with; without it they aren't."""
    commands: tuple[str, ...] = ()
    """Programs, by their absolute paths, that jobs may have members run."""

    def faults(self) -> Iterator[ConfigProblem]:
        """What is wrong, by key."""
        for program in self.commands:
            if not Path(program).is_absolute():
                yield ConfigProblem("commands", f"{program!r} isn't an absolute path")


@dataclass(frozen=True, slots=True)
class RetentionConfig:
    """Retention of ended work. The same in all members; a job's own has priority over it."""

    runs: timedelta = timedelta(days=30)
    """Runs, with all that belongs to them."""
    logs: timedelta = timedelta(days=7)
    """What runs wrote."""
    dead_letters: timedelta | None = None
    """Dead letters that wait; for ever if not given."""
    lost: timedelta = LOST_FOR
    """Lost members and workers in lists."""

    def faults(self) -> Iterator[ConfigProblem]:
        """What is wrong, by key."""
        for key in ("runs", "logs", "dead_letters", "lost"):
            length = getattr(self, key)
            if length is not None and not retention.LEAST <= length <= retention.MOST:
                yield ConfigProblem(key, "must be from 1s to 36500d")

    def kept(self) -> retention.Retention:
        """As decisions take it."""
        return retention.Retention(self.runs, self.logs, self.dead_letters)
