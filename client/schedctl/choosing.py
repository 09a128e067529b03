"""Which dead letters a command means: runs by their ids, or a group, a job, or all that wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, TypeVar

import click

from schedctl.failure import Failure
from schedctl.session import Guard

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Chosen:
    """What was named: `run_ids`, or what the others choose. A group and a job narrow each other."""

    run_ids: tuple[str, ...] = ()
    fingerprint: str = ""
    job: str = ""
    all: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """What to ask for before they are destroyed."""
        return self.run_ids or (self.fingerprint or self.job or "all jobs",)


def choosing(command: Callable[..., R]) -> Callable[..., R]:
    """Give a command its runs and flags that choose, as one `chosen`, if they go together."""

    def called(
        *args: Any,
        run_ids: tuple[str, ...],
        fingerprint: str | None,
        job: str | None,
        every: bool,
        **more: Any,
    ) -> R:
        chosen = Chosen(run_ids, fingerprint or "", job or "", every)
        _check(chosen)
        return command(*args, chosen=chosen, **more)

    wrapped = update_wrapper(called, command)
    for decorate in (
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
    elif filtered and chosen.all:
        problem = "--all goes with neither --group nor --job"
    elif not (chosen.run_ids or filtered or chosen.all):
        problem = "no dead letters are named"
    else:
        return
    raise Failure(
        problem,
        remedy="give RUN…, --group FINGERPRINT, --job JOB or --all; schedctl dlq groups shows them",
    )
