"""Which dead letters a command means: runs by their ids, or a kind of error, a job, both, or all
that wait. `--of` makes of a kind and a name the one group that a row of `dlq groups` tells of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import update_wrapper
from typing import Any, TypeVar

import click

from schedclient import DeadLetterGroup
from schedclient.values.reading import value_of
from schedctl.failure import CommandFailure
from schedctl.session import Guard, Past
from schedproto.v1 import run_pb2

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Chosen:
    """What was named: `run_ids`, or what the others choose. A kind of error and a job narrow each
    other; `of` ("job" or "submitted") takes the one group alone.
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
        """What to ask for before they are destroyed."""
        return self.run_ids or (self.fingerprint or self.job or "all jobs",)

    @property
    def whose(self) -> str:
        """In words that the name follows; empty where that says all."""
        if self.of == "job":
            return f" job {self.job} with the fingerprint"
        if self.of:
            named = f"named {self.job}" if self.job else "without a name"
            return f" submitted runs {named} with the fingerprint"
        return f" {self.job} with the fingerprint" if self.job and self.fingerprint else ""

    @property
    def asked(self) -> dict[str, Any]:
        """What calls that choose take."""
        bounds = {"until": self.until, "at_most": self.at_most}
        if not self.of:
            which = {"job": self.job, "fingerprint": self.fingerprint, "all": self.all}
            return which | bounds
        group = run_pb2.DeadLetterGroup(
            job=self.job, fingerprint=self.fingerprint, submitted=self.of == "submitted"
        )
        return {"group": value_of(DeadLetterGroup, group)} | bounds


def choosing(command: Callable[..., R]) -> Callable[..., R]:
    """Give a command its runs and flags that choose, as one `chosen`, if they go together."""

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
        click.option(
            "--at-most",
            type=click.IntRange(min=1),
            metavar="N",
            help="Nothing is done where more than N are chosen by now, such as a group's WAITING.",
        ),
        click.option(
            "--until",
            type=Past(),
            metavar="INSTANT|10m",
            help="Of these the ones that died at or before it, such as a group's LAST.",
        ),
        click.option(
            "--of",
            type=click.Choice(["job", "submitted"]),
            help="With --group: one row of `dlq groups` alone, by its OF; JOB is its name, if any.",
        ),
        click.option("--all", "every", is_flag=True, help="All that wait."),
        click.option("--job", type=Guard(), metavar="JOB", help="Those of this job (id or name)."),
        click.option(
            "--group",
            "fingerprint",
            type=Guard(),
            metavar="FINGERPRINT",
            help="Those with this kind of error.",
        ),
        click.argument("run_ids", nargs=-1, metavar="[RUN…]"),
    ):
        wrapped = decorate(wrapped)
    return wrapped


def _check(chosen: Chosen) -> None:
    """Nobody means all of them by saying nothing."""
    filtered = bool(chosen.fingerprint or chosen.job)
    if chosen.run_ids and (filtered or chosen.all):
        problem = "a RUN goes with neither --group, --job nor --all"
    elif chosen.run_ids and (chosen.of or chosen.until or chosen.at_most):
        problem = "a RUN goes with neither --of, --until nor --at-most"
    elif filtered and chosen.all:
        problem = "--all goes with neither --group nor --job"
    elif chosen.of and not chosen.fingerprint:
        problem = "--of goes with --group alone: it takes one row of schedctl dlq groups"
    elif chosen.of == "job" and not chosen.job:
        problem = "--of job takes --job: the name of one"
    elif not (chosen.run_ids or filtered or chosen.all):
        problem = "no dead letters are named"
    else:
        return
    raise CommandFailure(
        problem,
        remedy="give RUN…, --group FINGERPRINT, --job JOB or --all; schedctl dlq groups shows them",
    )
