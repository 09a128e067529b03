"""Check work: lost members and workers, jobs without a worker, failing jobs, growing queues."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from schedd.core.checkup.facts import (
    Facts,
    FailedRead,
    FailingJob,
    FullWorkers,
    StuckJob,
    WorkFacts,
)
from schedd.core.checkup.finding import CheckSubject, CheckupFinding
from schedkit.records import replace

AREA: Final = "work"
_time_text: Final = "{:%Y-%m-%dT%H:%M:%SZ}".format
OLD: Final = timedelta(minutes=5)
"""The age from which a ready run is reported, as in the alert `ScheddQueueOld`."""
NAMED: Final = 10
"""The most jobs or workers per check with a finding of their own."""
FEW: Final = 3
UNKNOWN: Final = (
    "it may have returned since: the queried member's view of the cluster may be outdated"
)
UNKNOWN_REMEDY: Final = "correct the findings about etcd and the view, then run the doctor again"
RERUN: Final = (
    "start again on live workers that can run them; runs with delivery at_most_once have failed"
)


def examine(facts: Facts) -> Iterator[CheckupFinding]:
    found = facts.work
    if isinstance(found, FailedRead):
        yield CheckSubject(AREA, "work").warn(
            found.cause,
            "lost members and workers, stuck jobs and failing jobs are unknown",
            found.remedy or "correct the findings about PostgreSQL, then run the doctor again",
        )
        return
    yield from _members(facts, found)
    yield from _workers(facts, found)
    yield from _stuck(facts, found.stuck)
    if found.full and facts.pause is None:
        yield from (_full(facts, one) for one in found.full[:NAMED])
    else:
        yield _oldest(facts, found.oldest)
    yield from _failing(found.failing)
    yield from _growing(found)


def _members(facts: Facts, found: WorkFacts) -> Iterator[CheckupFinding]:
    lost = found.losses.members
    names = {one.name for one in lost}
    live = len({member.name for member in facts.view.members} - names)
    alive = f"{live} of {live + len(names)} members {'is' if live == 1 else 'are'} live"
    if not lost and not facts.outdated:
        returned = _none_lost("member", found.returned_members, found.kept)
        yield CheckSubject(AREA, "lost members").ok(returned)
    for one in lost:
        at = f" at {one.grpc}" if one.grpc else ""
        check, since = CheckSubject(AREA, "lost members", one.name), _time_text(one.lost_at)
        if facts.outdated:
            yield check.warn(
                f"the member was lost at {since}, as last known", UNKNOWN, UNKNOWN_REMEDY
            )
            continue
        yield check.bad(
            f"the member was lost at {since}; {alive}",
            "live members take over its shards; each further loss leaves less capacity",
            f"read the log of schedd{at}, and start schedd if it isn't running; a member that you"
            f" removed for good leaves this list {_span(found.kept)} after its loss",
        )


def _workers(facts: Facts, found: WorkFacts) -> Iterator[CheckupFinding]:
    lost, live = found.losses.workers, len(facts.view.workers)
    alive = "1 worker is live" if live == 1 else f"{live} workers are live"
    if not lost and not facts.outdated:
        returned = _none_lost("worker", found.returned_workers, found.kept)
        yield CheckSubject(AREA, "lost workers").ok(returned)
    for one in lost[:NAMED]:
        at = _time_text(one.lost_at) if one.lost_at is not None else "an unknown time"
        check = CheckSubject(AREA, "lost workers", one.worker)
        if facts.outdated:
            yield check.warn(f"the worker was lost at {at}, as last known", UNKNOWN, UNKNOWN_REMEDY)
            continue
        yield check.bad(
            f"the worker was lost at {at} on host {one.host}, with {one.slots} slots; {alive}",
            f"its runs {RERUN}",
            f"read the log of workerd on {one.host}, and start workerd again; if you removed the"
            f" worker for good: `schedctl worker drain {one.worker}`",
        )
    if (more := len(lost) - NAMED) > 0:
        yield CheckSubject(AREA, "lost workers").bad(
            "1 more worker is lost" if more == 1 else f"{more} more workers are lost",
            f"their runs {RERUN}",
            "`schedctl worker list` shows all of them",
        )


def _none_lost(kind: str, returned: int, kept: timedelta) -> str:
    if not returned:
        return f"no {kind} is lost now"
    names = f"1 {kind} was" if returned == 1 else f"{returned} {kind}s were"
    return f"no {kind} is lost now; {names} lost in the last {_span(kept)} and returned"


def _stuck(facts: Facts, stuck: Sequence[StuckJob]) -> Iterator[CheckupFinding]:
    check = "jobs without a worker"
    if stuck and not (facts.workers or facts.view.workers or facts.outdated):
        jobs = "1 job has" if len(stuck) == 1 else f"{len(stuck)} jobs have"
        since = _time_text(min(one.since for one in stuck))
        yield CheckSubject(AREA, check).bad(
            f"{jobs} waiting runs, the oldest since {since}; no worker is running",
            "these runs wait until a worker that can run them connects",
            "start a worker; the findings about attached and lost workers name candidates",
        )
        return
    if not stuck:
        yield CheckSubject(AREA, check).ok("every waiting run has a worker that can run it")
    for one in stuck[:NAMED]:
        runs = "1 run waits" if one.runs == 1 else f"{one.runs} runs or more wait"
        could = _could(one.draining, "draining") or _could(one.could, "lost")
        yield CheckSubject(AREA, check, one.name).bad(
            f"{runs} since {_time_text(one.since)}; no live worker takes {one.need}{could}",
            "these runs wait until a worker that can run them connects",
            _remedy(one),
        )
    if len(stuck) > NAMED:
        yield CheckSubject(AREA, check).bad(
            f"{_more_jobs(len(stuck), 'waits', 'wait')} for a worker",
            "their runs wait until a worker that can run them connects",
            "see `schedctl run list --state PENDING` and `schedctl run why RUN`",
        )


def _could(workers: Sequence[str], state: str) -> str:
    which = "it is" if len(workers) == 1 else "all are"
    return f"; {', '.join(workers)} could, but {which} {state}" if workers else ""


def _more_jobs(found: int, one: str, many: str) -> str:
    more = found - NAMED
    return f"1 more job {one}" if more == 1 else f"{more} more jobs {many}"


def _remedy(one: StuckJob) -> str:
    if one.draining:
        first = one.draining[0]
        return f"`schedctl worker undrain {first}`, or start another worker that can run them"
    if one.could:
        which = f"worker {one.could[0]}" if len(one.could) == 1 else "one of these workers"
        return f"start {which} again"
    if one.plugin:
        return (
            f"install the plug-in {one.plugin!r} in the environment of a worker and restart that"
            " worker (docs/executors.md), or edit the job; `schedctl worker list -o wide` shows the"
            " executors"
        )
    return (
        "start a worker that can run them (settings `labels`, `handlers` and `namespaces` of"
        " workerd), or edit the job; `schedctl worker list -o wide` shows the workers"
    )


def _oldest(facts: Facts, oldest: datetime | None) -> CheckupFinding:
    check = CheckSubject(AREA, "oldest ready run")
    if oldest is None:
        return check.ok("no run that a worker can take has waited for more than 10 s")
    waited = f"the run has waited for {_span(facts.now - oldest)}"
    return replace(check, healthy=waited).warn_if(
        facts.now - oldest >= OLD,
        f"{waited}, since {_time_text(oldest)}",
        "all slots are in use, a pool or an overlap limit is reached, or the workers take no new"
        " runs",
        "`schedctl run why RUN` shows the reason: add slots or workers, raise the limit of the"
        " pool, or correct the findings about workers",
    )


def _full(facts: Facts, one: FullWorkers) -> CheckupFinding:
    workers, jobs = _few(one.workers), _few([_job(*job) for job in one.jobs])
    what = (
        f"a run has waited for {_span(facts.now - one.since)}, since {_time_text(one.since)} (jobs:"
        f" {jobs}): {one.used} of {one.slots} slots of {workers} are in use"
    )
    check = CheckSubject(AREA, "oldest ready run")
    shown = f"`schedctl run list --state RUNNING --worker {one.workers[0]}` shows the runs there"
    if not one.stuck:
        return check.warn(
            what,
            "all workers that can run this run are full, so it starts late",
            f"add slots or workers; {shown}",
        )
    holders = [
        f"{holder.runs:,} runs of {_job(holder.namespace, holder.name)} since"
        f" {_time_text(holder.since)}"
        for holder in one.stuck
    ]
    first = one.stuck[0]
    timeout = f"lower the `timeout` of {_job(first.namespace, first.name)}"
    shown = shown.replace(one.workers[0], first.worker)
    return check.warn(
        f"{what}; the slots are held by older runs: {_few(holders)}",
        "runs that don't end keep their slots, and no other run can start there",
        f"{shown}; if these runs hang, end each with `schedctl run cancel RUN`, and {timeout}; if"
        " they are meant to run this long, add slots or workers",
    )


def _job(namespace: str, name: str) -> str:
    """Return `namespace/name`, without the default namespace."""
    if not name:
        return f"{namespace}/submitted work"
    return name if namespace == "default" else f"{namespace}/{name}"


def _few(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + more


def _failing(failing: Sequence[FailingJob]) -> Iterator[CheckupFinding]:
    check = "failing jobs"
    if not failing:
        yield CheckSubject(AREA, check).ok("no job failed 3 times or more in a row")
    for one in failing[:NAMED]:
        yield CheckSubject(AREA, check, one.name).warn(
            f"the last {one.times}{' or more' if one.more else ''} runs failed",
            "the work of the job isn't done",
            "`schedctl dlq list --job"
            f" {one.name.rpartition('/')[2]}` lists the failed runs, and `schedctl run logs RUN`"
            " shows the output of one; then correct the job",
        )
    if len(failing) > NAMED:
        yield CheckSubject(AREA, check).warn(
            f"{_more_jobs(len(failing), 'fails', 'fail')} repeatedly",
            "the work of these jobs isn't done",
            "`schedctl dlq list` lists the failed runs",
        )


def _growing(found: WorkFacts) -> Iterator[CheckupFinding]:
    check, growing = "growing queues", found.growing
    full = {_job(*job) for one in found.full for job in one.jobs}
    if not growing:
        yield CheckSubject(AREA, check).ok("no job has 100 waiting runs or more")
    for one in growing[:NAMED]:
        yield CheckSubject(AREA, check, one.name).warn(
            f"{one.runs:,} runs wait; in the last 10 minutes {one.made:,} were created and"
            f" {one.ended:,} ended",
            "the job's runs wait, because all slots of the workers that can run them are in use"
            if one.name in full
            else "runs are created faster than they end, so each run starts later than the one"
            " before",
            "correct the finding about the oldest ready run"
            if one.name in full
            else "run the job less often, allow more runs at a time, or use `overlap: skip`",
        )


def _span(length: timedelta) -> str:
    seconds = round(length.total_seconds())
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 7200:
        return f"{seconds // 60} min"
    return f"{seconds // 3600} h"
