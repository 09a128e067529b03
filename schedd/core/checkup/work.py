"""Check work: lost members and workers, jobs without a worker, failing jobs, growing queues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from schedd.core.checkup.facts import (
    Facts,
    FailedRead,
    FailingJob,
    GrowingQueue,
    StuckJob,
    WorkFacts,
)
from schedd.core.checkup.finding import CheckSubject, CheckupFinding

AREA: Final = "work"
OLD: Final = timedelta(minutes=5)
"""The age from which a ready run is reported, as in the alert `ScheddQueueOld`."""
NAMED: Final = 10
"""The most jobs or workers per check with a finding of their own."""
RERUN: Final = (
    "start again on live workers that can run them; with delivery at_most_once they failed"
)


def examine(facts: Facts) -> Iterator[CheckupFinding]:
    found = facts.work
    if isinstance(found, FailedRead):
        yield CheckSubject(AREA, "work").warn(
            found.cause,
            "lost members and workers, stuck jobs and failing jobs are unknown",
            found.remedy
            or "see the findings about PostgreSQL; if all are ok, run the doctor again",
        )
        return
    yield from _members(facts, found)
    yield from _workers(facts, found)
    yield from _stuck(found.stuck)
    yield _oldest(facts, found.oldest)
    yield from _failing(found.failing)
    yield from _growing(found.growing)


def _members(facts: Facts, found: WorkFacts) -> Iterator[CheckupFinding]:
    lost, live = found.losses.members, len(facts.view.members)
    alive = f"{live} of {live + len(lost)} members {'is' if live == 1 else 'are'} live"
    if facts.outdated:
        alive = "the number of live members is unknown"
    if not lost:
        yield CheckSubject(AREA, "lost members").ok(f"none in the last {_span(found.kept)}")
    for one in lost:
        at = f" at {one.grpc}" if one.grpc else ""
        yield CheckSubject(AREA, "lost members", one.name).bad(
            f"lost at {_time_text(one.lost_at)}; {alive}",
            "a live member takes over its shards; each further loss leaves less capacity",
            f"see the log of schedd{at}, and start it if it isn't running; a member that you"
            f" removed for good leaves this list {_span(found.kept)} after the loss",
        )


def _workers(facts: Facts, found: WorkFacts) -> Iterator[CheckupFinding]:
    lost, live = found.losses.workers, len(facts.view.workers)
    alive = "1 worker is live" if live == 1 else f"{live} workers are live"
    if facts.outdated:
        alive = "the number of live workers is unknown"
    if not lost:
        yield CheckSubject(AREA, "lost workers").ok(f"none in the last {_span(found.kept)}")
    for one in lost[:NAMED]:
        at = _time_text(one.lost_at) if one.lost_at is not None else "an unknown time"
        yield CheckSubject(AREA, "lost workers", one.worker).bad(
            f"lost at {at} on host {one.host}, with {one.slots} slots; {alive}",
            f"its runs {RERUN}",
            f"see the log of workerd on {one.host} and start it again; if you removed it for good:"
            f" `schedctl worker drain {one.worker}`",
        )
    if (more := len(lost) - NAMED) > 0:
        yield CheckSubject(AREA, "lost workers").bad(
            "1 more is lost" if more == 1 else f"{more} more are lost",
            f"their runs {RERUN}",
            "`schedctl worker list` shows all of them",
        )


def _stuck(stuck: Sequence[StuckJob]) -> Iterator[CheckupFinding]:
    check = "jobs without a worker"
    if not stuck:
        yield CheckSubject(AREA, check).ok("every waiting run has a worker that can run it")
    for one in stuck[:NAMED]:
        runs = "1 run waits" if one.runs == 1 else f"{one.runs} runs or more wait"
        could = _could(one.draining, "draining") or _could(one.could, "lost")
        yield CheckSubject(AREA, check, one.name).bad(
            f"{runs} since {_time_text(one.since)}; no live worker takes {one.need}{could}",
            "these runs never start",
            _remedy(one),
        )
    if len(stuck) > NAMED:
        yield CheckSubject(AREA, check).bad(
            f"{_more_jobs(len(stuck), 'waits', 'wait')} for a worker",
            "their runs never start",
            "see `schedctl run list --state PENDING` and `schedctl run why RUN`",
        )


def _could(workers: Sequence[str], state: str) -> str:
    if not workers:
        return ""
    return (
        f"; {', '.join(workers)} could, but {'it is' if len(workers) == 1 else 'all are'} {state}"
    )


def _more_jobs(found: int, one: str, many: str) -> str:
    more = found - NAMED
    return f"1 more job {one}" if more == 1 else f"{more} more jobs {many}"


def _remedy(one: StuckJob) -> str:
    if one.draining:
        return f"`schedctl worker undrain {one.draining[0]}`, or start another worker with it"
    if one.could:
        which = f"worker {one.could[0]}" if len(one.could) == 1 else "one of these workers"
        return f"start {which} again"
    return (
        "start a worker that has it (workerd's `labels`, `handlers`, `namespaces`), or edit the"
        " job; `schedctl worker list -o wide` shows the workers"
    )


def _oldest(facts: Facts, oldest: datetime | None) -> CheckupFinding:
    check = CheckSubject(AREA, "oldest ready run")
    if oldest is None:
        return check.ok("no run that a worker can take has waited for more than 10 s")
    age = facts.now - oldest
    if age < OLD:
        return check.ok(f"has waited for {_span(age)}")
    return check.warn(
        f"has waited for {_span(age)}, since {_time_text(oldest)}",
        "slots, a pool or an overlap limit are exhausted, or its workers take no new runs",
        "`schedctl run why RUN` says which: add slots or workers, raise the limit of the pool, or"
        " see the findings about workers",
    )


def _failing(failing: Sequence[FailingJob]) -> Iterator[CheckupFinding]:
    check = "failing jobs"
    if not failing:
        yield CheckSubject(AREA, check).ok("no job failed 3 times or more in a row")
    for one in failing[:NAMED]:
        yield CheckSubject(AREA, check, one.name).warn(
            f"the last {one.times}{' or more' if one.more else ''} runs failed",
            "the job doesn't do its work",
            f"`schedctl run logs {one.name.rpartition('/')[2]}`, then fix the job;"
            " `schedctl dlq list` has the failed runs",
        )
    if len(failing) > NAMED:
        yield CheckSubject(AREA, check).warn(
            f"{_more_jobs(len(failing), 'fails', 'fail')} again and again",
            "these jobs don't do their work",
            "`schedctl dlq list` has the failed runs",
        )


def _growing(growing: Sequence[GrowingQueue]) -> Iterator[CheckupFinding]:
    check = "growing queues"
    if not growing:
        yield CheckSubject(AREA, check).ok("no job has 100 waiting runs or more")
    for one in growing[:NAMED]:
        yield CheckSubject(AREA, check, one.name).warn(
            f"{one.runs:,} runs wait; in the last 10 minutes {one.made:,} were created and"
            f" {one.ended:,} ended",
            "runs are created faster than they end, so each run starts later than the one before",
            "run the job less often, allow more runs at a time, or use `overlap: skip`",
        )


def _time_text(instant: datetime) -> str:
    return f"{instant:%Y-%m-%dT%H:%M:%SZ}"


def _span(length: timedelta) -> str:
    seconds = round(length.total_seconds())
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 7200:
        return f"{seconds // 60} min"
    return f"{seconds // 3600} h"
