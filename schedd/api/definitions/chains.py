"""Chains: check the `after` of a job, convert the store's rejections, describe waiting cycles."""

from collections.abc import Iterator

from schedd.api.errors import CallError, FailedPreconditionError, FieldViolation, wrong
from schedd.api.services import Services
from schedd.core.ids import JobId
from schedd.core.jobs.chains import MOST_PARENTS, ChainJoin
from schedd.core.runs.records import ChainRefused
from schedproto.v1 import job_pb2


def violations(job: job_pb2.Job) -> Iterator[FieldViolation]:
    """Return the violations that don't depend on other jobs."""
    named = list(job.after.jobs)
    if not named:
        yield FieldViolation("after.jobs", "is empty: name the parent jobs")
    elif len(named) > MOST_PARENTS:
        problem = f"has {len(named):,} jobs; at most {MOST_PARENTS} are allowed"
        yield FieldViolation("after.jobs", problem)
    for name in dict.fromkeys(named):
        if named.count(name) > 1:
            yield FieldViolation("after.jobs", f"{name[:140]!r} is given twice")
    if job.after.with_output and (job.payload.json or job.payload.raw):
        yield FieldViolation(
            "payload", "can't be combined with after.with_output, which sets the payload"
        )


async def check(services: Services, job_id: JobId | None, namespace: str, job: job_pb2.Job) -> None:
    """Raise the error with which the store would reject the job now."""
    if job.name in job.after.jobs:
        raise refusal(ChainRefused("cycle", f"{job.name} → {job.name}"), job.name)
    if job.after.jobs:
        found = await services.chains.fault(job_id, namespace, job.name, [*job.after.jobs])
        if found is not None:
            raise refusal(found, job.name)


def refusal(refused: ChainRefused, name: str) -> CallError:
    if refused.what == "child":
        return FailedPreconditionError(
            f"job {name!r} has child jobs: {refused.names}",
            reason="JOB_HAS_CHILDREN",
            remedy="delete the children first, or change their parents: schedctl job patch JOB"
            " --after …",
        )
    if refused.what == "cycle":
        problem, reason = f"closes a cycle: {refused.names}", "CHAIN_CYCLE"
        remedy = (
            "in one job of this cycle, remove the parent that is also in the cycle from after.jobs;"
            " nothing was stored"
        )
    elif refused.what == "parent":
        problem, reason = f"job {refused.names} not found", "NO_SUCH_PARENT"
        remedy = "create the parents first, in the same namespace, and give names, not ids"
    else:
        problem, reason = (
            f"the job has more than {refused.names} jobs above it in its chains",
            "CHAIN_TOO_LONG",
        )
        remedy = "split the chain: let one of its jobs trigger the next part"
    return wrong("after.jobs", problem, remedy, reason=reason)


def describe_wait(join: ChainJoin, parents: tuple[str, ...]) -> str:
    """Describe what a cycle waits for."""
    ended = {one.job: one for one in join.arrived.values()}
    there = [f"{one.job} is {one.state} (run {one.run_id})" for one in ended.values()]
    missing = [name for name in parents if name not in ended]
    if not missing:
        return f"All parents have ended: {', '.join(there)}. The run is created in a moment."
    return f"The cycle waits for {', '.join(missing)}; {', '.join(there)}."
