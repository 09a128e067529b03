"""Options that select dead letters: run ids, an error fingerprint, a job, both, or all that wait.

`--of` narrows a fingerprint and a job name to one group, which is one row of `dlq groups`.
"""

from collections.abc import Callable
from datetime import datetime
from functools import update_wrapper
from typing import Any, TypeVar

import click

from schedclient import DeadLetterGroup
from schedclient.values.reading import value_of
from schedctl.failure import CommandFailure
from schedctl.options.global_options import flag, option
from schedctl.options.types import GUARD, PAST
from schedkit.records import dataclass
from schedproto.v1 import run_pb2

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Chosen:
    """The selected dead letters: `run_ids`, or a filter. A fingerprint and a job narrow each other;
    `of` ("job" or "submitted") selects one group.
    """

    run_ids: tuple[str, ...] = ()
    fingerprint: str = ""
    job: str = ""
    all: bool = False
    of: str = ""
    until: datetime | None = None
    at_most: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names to show in the confirmation."""
        return self.run_ids or (self.fingerprint or self.job or "all jobs",)

    @property
    def whose(self) -> str:
        """Return the words of the confirmation before the name; empty if the name is enough."""
        if self.of == "job":
            return f" job {self.job} with the fingerprint"
        if self.of:
            named = f"named {self.job}" if self.job else "without a name"
            return f" submitted runs {named} with the fingerprint"
        return f" {self.job} with the fingerprint" if self.job and self.fingerprint else ""

    @property
    def asked(self) -> dict[str, Any]:
        """Return the filter as arguments of the SDK calls."""
        bounds = {"until": self.until, "at_most": self.at_most}
        if not self.of:
            which = {"job": self.job, "fingerprint": self.fingerprint, "all": self.all}
            return which | bounds
        group = run_pb2.DeadLetterGroup(
            job=self.job, fingerprint=self.fingerprint, submitted=self.of == "submitted"
        )
        return {"group": value_of(DeadLetterGroup, group)} | bounds


def choosing(command: Callable[..., R]) -> Callable[..., R]:
    """Pass the selection options to a command as one valid `chosen`."""

    def called(
        *args: Any,
        run_ids: tuple[str, ...],
        fingerprint: str | None,
        job: str | None,
        every: bool,
        of: str | None,
        until: datetime | None,
        at_most: int | None,
        **more: Any,
    ) -> R:
        of, bounds = of or "", (until, at_most or 0)
        chosen = Chosen(run_ids, fingerprint or "", job or "", every, of, *bounds)
        _check(chosen)
        return command(*args, chosen=chosen, **more)

    wrapped = update_wrapper(called, command)
    for decorate in (
        option(
            "--at-most N",
            "Highest number of dead letters to process; if more match, none is"
            " changed.  [default: no limit]",
            type=click.IntRange(min=1),
        ),
        option(
            "--until TIME|10m",
            "Select only runs that failed for good at or before this time, for example the"
            " time in column LAST of `dlq groups`; 10m is 10 minutes ago.  [default: now]",
            type=PAST,
        ),
        option(
            "--of",
            "Select only dead letters of jobs, or only those of submitted runs (column OF of"
            " `dlq groups`); needs --group.  [default: both]",
            type=click.Choice(["job", "submitted"]),
        ),
        flag("--all", "Select all unresolved dead letters.", "every"),
        option(
            "--job JOB",
            "Job of the dead letters to select: id or name.  [default: all jobs]",
            type=GUARD,
        ),
        option(
            "--group FINGERPRINT",
            "Select only dead letters with this fingerprint, a hash of the error that `dlq"
            " groups` shows.  [default: all fingerprints]",
            "fingerprint",
            type=GUARD,
        ),
        click.argument("run_ids", nargs=-1, metavar="[RUN…]"),
    ):
        wrapped = decorate(wrapped)
    return wrapped


def _check(chosen: Chosen) -> None:
    """Reject options that contradict each other, and an empty selection: it doesn't mean all."""
    filtered = bool(chosen.fingerprint or chosen.job)
    if chosen.run_ids and (filtered or chosen.all):
        problem = "RUN can't be combined with --group, --job or --all"
    elif chosen.run_ids and (chosen.of or chosen.until or chosen.at_most):
        problem = "RUN can't be combined with --of, --until or --at-most"
    elif filtered and chosen.all:
        problem = "--all can't be combined with --group or --job"
    elif chosen.of and not chosen.fingerprint:
        problem = "--of needs --group: together they select one row of schedctl dlq groups"
    elif chosen.of == "job" and not chosen.job:
        problem = "--of job needs --job NAME"
    elif not (chosen.run_ids or filtered or chosen.all):
        problem = "no dead letters are selected"
    else:
        return
    raise CommandFailure(
        problem,
        remedy="give RUN…, --group FINGERPRINT, --job JOB or --all; schedctl dlq groups lists them",
    )
