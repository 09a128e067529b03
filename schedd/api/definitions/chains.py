"""What a job runs after, between the wire and the store: judged, refused, and told."""

from collections.abc import Iterator

from schedd.api.errors import CallError, FailedPrecondition, InvalidArgument, Violation
from schedd.api.services import Services
from schedd.core.ids import JobId
from schedd.core.jobs.chains import MOST_PARENTS, Join
from schedd.core.runs.records import ChainRefused
from schedproto.v1 import job_pb2


def violations(job: job_pb2.Job) -> Iterator[Violation]:
    """What is wrong with it, whatever jobs there are."""
    named = list(job.after.jobs)
    if not named:
        yield Violation("after.jobs", "is empty: name the jobs that it runs after")
    elif len(named) > MOST_PARENTS:
        yield Violation("after.jobs", f"{len(named):,} of them, at most {MOST_PARENTS} are allowed")
    for name in dict.fromkeys(named):
        if named.count(name) > 1:
            yield Violation("after.jobs", f"{name[:140]!r} stands there twice")
    if job.after.with_output and (job.payload.json or job.payload.raw):
        yield Violation(
            "payload", "after.with_output gives what the parents gave back in its place"
        )


async def check(services: Services, job_id: JobId | None, namespace: str, job: job_pb2.Job) -> None:
    """Raise what would be refused if it were stored now."""
    if job.name in job.after.jobs:
        raise refusal(ChainRefused("cycle", f"{job.name} → {job.name}"), job.name)
    if job.after.jobs:
        found = await services.chains.fault(job_id, namespace, job.name, [*job.after.jobs])
        if found is not None:
            raise refusal(found, job.name)


def refusal(refused: ChainRefused, name: str) -> CallError:
    """Of a job that can't run after others, or is run after."""
    if refused.what == "child":
        return FailedPrecondition(
            f"job {name!r} is run after by {refused.names}",
            reason="JOB_HAS_CHILDREN",
            remedy="delete those first, or have them run after others: schedctl job patch JOB"
            " --after …",
        )
    if refused.what == "cycle":
        problem, reason = f"closes a cycle: {refused.names}", "CHAIN_CYCLE"
        remedy = "take one of these out of the `after` of the next; nothing was stored"
    elif refused.what == "parent":
        problem, reason = f"there is no job {refused.names}", "NO_SUCH_PARENT"
        remedy = "make those first; they are of the same namespace, and named, not by id"
    else:
        problem, reason = f"there are more than {refused.names} jobs above it", "CHAIN_TOO_LONG"
        remedy = "divide the chain: one of its jobs may trigger the next part"
    return InvalidArgument(
        f"after.jobs: {problem}",
        reason=reason,
        remedy=remedy,
        violations=[Violation("after.jobs", problem)],
    )


def waits_told(join: Join, parents: tuple[str, ...]) -> str:
    """What a cycle waits for, in words."""
    ended = {one.job: one for one in join.arrived.values()}
    there = [f"{one.job} is {one.state} (run {one.run_id})" for one in ended.values()]
    missing = [name for name in parents if name not in ended]
    if not missing:
        return f"All that it runs after has ended: {', '.join(there)}. It is judged in a moment."
    return f"It waits for {', '.join(missing)}; {', '.join(there)}."
