"""Check what a job refers to: its parents (`after`), its calendars (`exclude`) and its pool."""

from collections.abc import Iterator, Sequence
from typing import Final

from schedd.api.errors import (
    CallError,
    FailedPreconditionError,
    FieldViolation,
    InvalidArgumentError,
    cut,
    too_many,
    wrong,
)
from schedd.api.services import Services
from schedd.core.ids import JobId
from schedd.core.jobs.chains import MOST_PARENTS, ChainJoin
from schedd.core.runs.records import ChainRefused, PinnedCalendar
from schedd.core.schedule.calendars.rules import check_expression
from schedd.core.schedule.cron import CronError
from schedproto.v1 import job_pb2

MOST_CALENDARS: Final = 20
"""Calendars of one job."""
MOST_EXPRESSIONS: Final = 100


def parent_violations(job: job_pb2.Job) -> Iterator[FieldViolation]:
    """Return the violations of `after` that don't depend on other jobs."""
    named = [*job.after.jobs]
    if not named:
        yield FieldViolation("after.jobs", "is empty: name the parent jobs")
    yield from too_many("after.jobs", len(named), "jobs", MOST_PARENTS)
    yield from _twice("after.jobs", named)
    if job.after.with_output and (job.payload.json or job.payload.raw):
        yield FieldViolation(
            "payload", "can't be combined with after.with_output, which sets the payload"
        )


def exclusion_violations(
    exclude: job_pb2.Exclude, calendars: Sequence[PinnedCalendar]
) -> Iterator[FieldViolation]:
    """Return the violations of `exclude`, given the calendars that exist."""
    named, there = [*exclude.calendars], {one.name for one in calendars}
    if len(named) > MOST_CALENDARS:
        yield from too_many("exclude.calendars", len(named), "calendars", MOST_CALENDARS)
        return
    for name in dict.fromkeys(named):
        yield from _twice("exclude.calendars", [one for one in named if one == name])
        if name not in there:
            yield FieldViolation("exclude.calendars", f"calendar {name[:140]!r} not found")
    if len(exclude.cron) > MOST_EXPRESSIONS:
        yield from too_many("exclude.cron", len(exclude.cron), "expressions", MOST_EXPRESSIONS)
        return
    for expression in exclude.cron:
        try:
            check_expression(expression)
        except CronError as error:
            problem = error.problem + (f" ({error.hint})" if error.hint else "")
            yield FieldViolation("exclude.cron", problem)


def _twice(field: str, names: Sequence[str]) -> Iterator[FieldViolation]:
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield FieldViolation(field, f"{name[:140]!r} is given twice")


async def calendars_of(
    services: Services, namespace: str, job: job_pb2.Job
) -> tuple[PinnedCalendar, ...]:
    """Return the newest versions of the calendars that a job names and that exist."""
    names = sorted({*job.exclude.calendars})[:MOST_CALENDARS]
    return await services.calendars.current(namespace, names) if names else ()


async def check_pool(services: Services, namespace: str, name: str) -> None:
    """Raise InvalidArgumentError if a job's pool doesn't exist. The store checks it again."""
    if name and not await services.pools.there(namespace, name):
        raise missing_pool(name)


async def check_parents(
    services: Services, job_id: JobId | None, namespace: str, job: job_pb2.Job
) -> None:
    """Raise the error with which the store would reject the parents of a job now."""
    if job.name in job.after.jobs:
        raise chain_refusal(ChainRefused("cycle", f"{job.name} → {job.name}"), job.name)
    if job.after.jobs:
        found = await services.chains.fault(job_id, namespace, job.name, [*job.after.jobs])
        if found is not None:
            raise chain_refusal(found, job.name)


def missing_pool(name: str) -> InvalidArgumentError:
    """Return the error for a job whose pool doesn't exist."""
    remedy = "create the pool first: schedctl pool set NAME --limit N"
    return wrong("pool", f"{cut(name)!r} not found", remedy, reason="NO_SUCH_POOL")


def chain_refusal(refused: ChainRefused, name: str) -> CallError:
    """Return the error for a job that the store rejects because of its parents or children."""
    if refused.what == "child":
        return FailedPreconditionError(
            f"job {name!r} has child jobs: {refused.names}",
            reason="JOB_HAS_CHILDREN",
            remedy="delete the children first, or change their parents: schedctl job patch JOB"
            " --after …",
        )
    if refused.what == "cycle":
        return wrong(
            "after.jobs",
            f"closes a cycle: {refused.names}",
            "in one job of this cycle, remove the parent that is also in the cycle from after.jobs;"
            " nothing was stored",
            reason="CHAIN_CYCLE",
        )
    if refused.what == "parent":
        remedy = "create the parents first, in the same namespace, and give names, not ids"
        problem = f"job {refused.names} not found"
        return wrong("after.jobs", problem, remedy, reason="NO_SUCH_PARENT")
    problem = f"the job has more than {refused.names} jobs above it in its chains"
    remedy = "split the chain: let one of its jobs trigger the next part"
    return wrong("after.jobs", problem, remedy, reason="CHAIN_TOO_LONG")


def describe_wait(join: ChainJoin, parents: tuple[str, ...]) -> str:
    """Describe what a cycle waits for."""
    ended = {one.job: one for one in join.arrived.values()}
    there = [f"{one.job} is {one.state} (run {one.run_id})" for one in ended.values()]
    missing = [name for name in parents if name not in ended]
    if not missing:
        return f"All parents have ended: {', '.join(there)}. The run is created in a moment."
    return f"The cycle waits for {', '.join(missing)}; {', '.join(there)}."
