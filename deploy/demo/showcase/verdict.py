"""Check a job: every scheduled time that was due, compared with its runs. Pure.

    due (from the schedule) ──┬─ exactly one run each ─┬─ started on time ─┬─ ended as it should
    runs (from the cluster) ──┘  none missing, none    │  never early,     │  success, or all
                                 twice, none besides   │  at most 1 s late │  attempts, then dead

A job is correct if it has no faults. Every fault is a sentence that names the scheduled time.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from operator import itemgetter
from statistics import median

from schedclient import Attempt, Run

ON_TIME = timedelta(seconds=1)
NOT_FIRED = frozenset({"SKIPPED", "MISSED", "COALESCED"})


@dataclass(frozen=True, slots=True)
class Expected:
    """The runs that a job's definition requires in a span of time."""

    job: str
    due: tuple[datetime, ...]
    """The job's scheduled times in that span."""
    dies: bool = False
    """Whether each run must fail for good."""
    max_attempts: int = 4


@dataclass(frozen=True, slots=True)
class Seen:
    """A run as the cluster reports it. `dead`: whether it is a dead letter."""

    run: Run
    tries: Sequence[Run | Attempt]
    """Its starts, oldest first: the run itself if it was assigned once."""
    dead: bool

    @property
    def lateness(self) -> timedelta | None:
        """The time from due to the start of the first attempt; None: it never started."""
        started, due = (self.tries[0].started_at if self.tries else None), self.run.due_at
        return started - due if started and due else None


@dataclass(frozen=True, slots=True)
class Row:
    """A job's line in the summary. Lateness in ms, None if no run started."""

    job: str
    due: int
    fired: int
    late_p50: int | None
    late_max: int | None
    succeeded: int
    retried: int
    dead: int
    faults: tuple[str, ...]


def judge(expected: Expected, runs: Sequence[Seen]) -> Row:
    """Compare due times with runs, in the same span of time."""
    started = [seen.lateness for seen in runs if seen.lateness is not None]
    late = [lateness / timedelta(milliseconds=1) for lateness in started]
    return Row(
        job=expected.job,
        due=len(expected.due),
        fired=sum(seen.run.state not in NOT_FIRED for seen in runs),
        late_p50=round(median(late)) if late else None,
        late_max=round(max(late)) if late else None,
        succeeded=sum(seen.run.state == "SUCCEEDED" for seen in runs),
        retried=sum(max(0, seen.run.attempt - 1) for seen in runs),
        dead=sum(seen.dead for seen in runs),
        faults=tuple(_faults(expected, runs)),
    )


def _faults(expected: Expected, runs: Sequence[Seen]) -> Iterator[str]:
    by_time = [(at, seen) for seen in runs if (at := seen.run.scheduled_at) is not None]
    by_time.sort(key=itemgetter(0))
    rows = Counter(at for at, _ in by_time)
    for instant in expected.due:
        if rows[instant] == 0:
            yield f"{_clock(instant)} was due, but has no run"
        elif rows[instant] > 1:
            yield f"{_clock(instant)} has {rows[instant]} runs"
    for instant in sorted(rows.keys() - set(expected.due)):
        yield f"{_clock(instant)} ran, but wasn't due"
    for at, seen in by_time:
        yield from (f"{_clock(at)} {fault}" for fault in _of_run(expected, seen))


def _of_run(expected: Expected, seen: Seen) -> Iterator[str]:
    run, lateness = seen.run, seen.lateness
    if lateness is not None and lateness < timedelta(0):
        yield f"started {-_ms(lateness):,} ms early"
    if lateness is not None and lateness > ON_TIME:
        yield f"started {_ms(lateness):,} ms late"
    if not run.ended:
        yield f"hasn't ended: {_state(run)}"
    elif not seen.tries:
        yield f"never started: {_state(run)}"
    elif expected.dies:
        yield from _of_death(expected, seen)
    elif run.state != "SUCCEEDED":
        yield f"ended as {_state(run)}"


def _of_death(expected: Expected, seen: Seen) -> Iterator[str]:
    run = seen.run
    if run.state != "FAILED":
        yield f"should have failed, but ended as {_state(run)}"
        return
    if run.attempt != expected.max_attempts:
        yield f"had {run.attempt} attempts, expected {expected.max_attempts}"
    if not seen.dead:
        yield "failed, but isn't a dead letter"
    waits = [
        after.started_at - before.finished_at
        for before, after in pairwise(seen.tries)
        if after.started_at and before.finished_at
    ]
    if any(later <= earlier for earlier, later in pairwise(waits)):
        yield f"was retried after {', '.join(f'{_ms(w):,} ms' for w in waits)}: the wait must grow"


def _clock(instant: datetime) -> str:
    return f"{instant:%H:%M:%S}" + (
        f".{instant.microsecond // 1000:03}" if instant.microsecond else ""
    )


def _ms(span: timedelta) -> int:
    return round(span / timedelta(milliseconds=1))


def _state(run: Run) -> str:
    return f"{run.state} ({run.reason})" if run.reason else run.state
