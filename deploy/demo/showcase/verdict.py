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
from statistics import median

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
class Try:
    """A start of a run."""

    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class Seen:
    """A run as the cluster reports it. `tries` are its starts, oldest first."""

    scheduled_at: datetime
    due_at: datetime
    state: str
    reason: str | None
    ended: bool
    dead: bool
    """Whether it is a dead letter."""
    attempt: int
    """Tries that count against the limit."""
    tries: tuple[Try, ...]

    @property
    def lateness(self) -> timedelta | None:
        """The time from due to the start of the first attempt; None: it never started."""
        started = self.tries[0].started_at if self.tries else None
        return None if started is None else started - self.due_at


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
    started = [run.lateness for run in runs if run.lateness is not None]
    late = [lateness / timedelta(milliseconds=1) for lateness in started]
    return Row(
        job=expected.job,
        due=len(expected.due),
        fired=sum(run.state not in NOT_FIRED for run in runs),
        late_p50=round(median(late)) if late else None,
        late_max=round(max(late)) if late else None,
        succeeded=sum(run.state == "SUCCEEDED" for run in runs),
        retried=sum(max(0, run.attempt - 1) for run in runs),
        dead=sum(run.dead for run in runs),
        faults=tuple(_faults(expected, runs)),
    )


def _faults(expected: Expected, runs: Sequence[Seen]) -> Iterator[str]:
    rows = Counter(run.scheduled_at for run in runs)
    for instant in expected.due:
        if rows[instant] == 0:
            yield f"{_clock(instant)} was due, but has no run"
        elif rows[instant] > 1:
            yield f"{_clock(instant)} has {rows[instant]} runs"
    for instant in sorted(rows.keys() - set(expected.due)):
        yield f"{_clock(instant)} ran, but wasn't due"
    for run in sorted(runs, key=lambda run: run.scheduled_at):
        yield from (f"{_clock(run.scheduled_at)} {fault}" for fault in _of_run(expected, run))


def _of_run(expected: Expected, run: Seen) -> Iterator[str]:
    lateness = run.lateness
    if lateness is not None and lateness < timedelta(0):
        yield f"started {-_ms(lateness):,} ms early"
    if lateness is not None and lateness > ON_TIME:
        yield f"started {_ms(lateness):,} ms late"
    if not run.ended:
        yield f"hasn't ended: {_state(run)}"
    elif not run.tries:
        yield f"never started: {_state(run)}"
    elif expected.dies:
        yield from _of_death(expected, run)
    elif run.state != "SUCCEEDED":
        yield f"ended as {_state(run)}"


def _of_death(expected: Expected, run: Seen) -> Iterator[str]:
    if run.state != "FAILED":
        yield f"should have failed, but ended as {_state(run)}"
        return
    if run.attempt != expected.max_attempts:
        yield f"had {run.attempt} attempts, expected {expected.max_attempts}"
    if not run.dead:
        yield "failed, but isn't a dead letter"
    waits = _waits(run)
    if any(later <= earlier for earlier, later in pairwise(waits)):
        yield f"was retried after {', '.join(f'{_ms(w):,} ms' for w in waits)}: the wait must grow"


def _waits(run: Seen) -> list[timedelta]:
    """Return the waits from the end of each attempt to the start of the next."""
    return [
        after.started_at - before.finished_at
        for before, after in pairwise(run.tries)
        if after.started_at and before.finished_at
    ]


def _clock(instant: datetime) -> str:
    return f"{instant:%H:%M:%S}" + (
        f".{instant.microsecond // 1000:03}" if instant.microsecond else ""
    )


def _ms(span: timedelta) -> int:
    return round(span / timedelta(milliseconds=1))


def _state(run: Seen) -> str:
    return f"{run.state} ({run.reason})" if run.reason else run.state
