"""The cluster at a glance: all that the overview shows, as one frozen value. Pure.

    Stored (reading.py) ─┐
    Cluster.view() ──────┴─glance──▶ Glance ──templates──▶ page

What the database said may be older than the view: while it is away the last reading stays, and
`away` says so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median_low
from typing import Final

from schedd.api import availability
from schedd.api.runs.waiting_runs import WaitSummary
from schedd.api.views import paused
from schedd.core.cluster.dependency import DependencyFailure
from schedd.core.cluster.membership import ClusterView
from schedd.core.ids import TenureId
from schedd.core.runs.records import Counts
from schedd.web import formatting
from schedd.web.formatting import StateStyle
from schedd.web.pages.cluster.overview_queries import Stored
from schedd.web.pages.rows import JobLine, RunLine, job_line, lateness, look_of, run_line
from schedproto.v1 import cluster_service_pb2 as cluster_pb
from schedproto.v1 import job_pb2, run_pb2

SHOWN_RUNS: Final = 20
SHOWN_JOBS: Final = 12
NAMED: Final = 3
"""Jobs that are named where more than these may be meant."""
OLD: Final = timedelta(minutes=5)
"""From when on it is told that something waits, as the alert `ScheddQueueOld` does."""
DECADES: Final = 4
"""The strip goes from 1 ms to 10 s."""
COLOURS: Final = 6
"""Members have so many colours; the seventh has the first's."""


@dataclass(frozen=True, slots=True)
class MemberLine:
    """A member, and its part of the shards."""

    name: str
    colour: int
    leads: bool
    here: bool
    draining: bool
    shards: int
    http: str
    version: str
    lost: bool = False


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """A worker, and how busy it is; None: no member hears it."""

    name: str
    slots: int
    busy: int | None
    draining: bool
    version: str
    lost: bool = False

    @property
    def share(self) -> float:
        """Of its slots that are taken, 0 to 1."""
        return min(1.0, (self.busy or 0) / self.slots) if self.slots else 0.0


@dataclass(frozen=True, slots=True)
class Bar:
    """A run in the strip: 0 to 1 high by the logarithm of its lateness."""

    look: StateStyle
    height: float
    title: str


@dataclass(frozen=True, slots=True)
class Glance:
    """All that the overview shows."""

    here: str
    leader: str
    term: int
    troubles: tuple[str, ...]
    """What keeps runs from being on time now."""
    concerns: tuple[str, ...]
    """What went wrong, or soon will, the worst first."""
    hints: tuple[str, ...]
    counts: Counts
    members: tuple[MemberLine, ...]
    workers: tuple[WorkerLine, ...]
    shards: tuple[tuple[int, str], ...]
    """Colour of an owner (-1: none) → an SVG path over its cells."""
    runs: tuple[RunLine, ...]
    strip: tuple[Bar, ...]
    jobs: tuple[JobLine, ...]
    more_jobs: int
    typical: timedelta | None
    worst: timedelta | None
    away: bool
    read: bool
    states: tuple[tuple[StateStyle, int], ...] = field(default=())

    @property
    def slots(self) -> int:
        """Of all workers that are heard."""
        return sum(worker.slots for worker in self.workers if worker.busy is not None)

    @property
    def busy(self) -> int:
        """Of these: that are taken."""
        return sum(worker.busy or 0 for worker in self.workers)


def glance(
    stored: Stored,
    view: ClusterView,
    me: TenureId | None,
    *,
    trusted: bool,
    away: bool,
    now: datetime,
    twin: str = "",
    failures: Sequence[DependencyFailure] = (),
) -> Glance:
    """Put together what was read. Pure."""
    members = _members(stored, view, me)
    latenesses = [late for run in stored.runs if (late := lateness(run)) is not None]
    leader = view.member(view.leader)
    own = view.member(me)
    by_state = Counter(run.state for run in stored.runs)
    looks = {state: look_of(state) for state in by_state}
    return Glance(
        here=own.name if own else "",
        leader=leader.name if leader else "",
        term=view.term,
        troubles=tuple(
            _troubles(stored, view, trusted=trusted, away=away, twin=twin, failures=failures)
        ),
        concerns=tuple(_concerns(stored, now)),
        hints=tuple(_hints(members)),
        counts=stored.counts,
        members=members,
        workers=tuple(_worker(worker) for worker in stored.workers),
        shards=_shards(stored.shards, {member.name: member.colour for member in members}),
        runs=tuple(run_line(run) for run in stored.runs[:SHOWN_RUNS]),
        strip=tuple(_bar(run) for run in reversed(stored.runs)),
        jobs=tuple(job_line(job) for job in _soonest(stored.jobs)[:SHOWN_JOBS]),
        more_jobs=max(0, stored.counts.jobs - min(SHOWN_JOBS, len(stored.jobs))),
        typical=median_low(latenesses) if latenesses else None,
        worst=max(latenesses, default=None),
        away=away,
        read=stored.read,
        states=tuple(sorted(((looks[s], n) for s, n in by_state.items()), key=lambda one: -one[1])),
    )


def _troubles(
    stored: Stored,
    view: ClusterView,
    *,
    trusted: bool,
    away: bool,
    twin: str,
    failures: Sequence[DependencyFailure],
) -> Iterable[str]:
    """What the page is red for: what any member tells as trouble, a pause, and an old page."""
    if away:
        told = "what is shown was read before" if stored.read else "nothing has been read of it yet"
        yield f"the database doesn't answer; {told}"
    if stored.pause is not None:
        yield f"the cluster is {paused(stored.pause)}"
    live = {member.name for member in view.members}
    owned = sum(shard.owner in live for shard in stored.shards)
    yield from availability.troubles(
        view,
        trusted=trusted,
        owned=owned if stored.read else None,
        workers=len(_live(stored)) if stored.read else None,
        twin=twin,
        failures=failures,
    )


def _live(stored: Stored) -> list[cluster_pb.Worker]:
    return [one for one in stored.workers if one.state != cluster_pb.Worker.STATE_LOST]


def _concerns(stored: Stored, now: datetime) -> Iterable[str]:
    """What isn't well though the cluster is: work that was lost, then work that waits in vain."""
    yield from _losses(stored)
    if told := stored.missed.told(now):
        yield told
    if dead := stored.counts.dead_letters:
        yield "a dead letter waits for a person" if dead == 1 else f"{dead:,} dead letters wait"
    live = _live(stored)
    takes = (worker.state != cluster_pb.Worker.STATE_DRAINING for worker in live)
    if (waiting := stored.counts.pending) and live and not any(takes):
        yield f"{waiting:,} waiting, and every worker is draining: nobody is to run what waits"
    elif live and stored.pause is None:
        yield from _waits(stored.waits, now)


def _losses(stored: Stored) -> Iterable[str]:
    if members := stored.lost.members:
        yield _lost("member", [(one.name, one.lost_at) for one in members])
    if workers := stored.lost.workers:
        yield _lost("worker", [(one.worker, one.lost_at) for one in workers])


def _lost(what: str, lost: Sequence[tuple[str, datetime | None]]) -> str:
    """The newest losses by name, and when the newest of them happened."""
    named = [name for name, _ in lost[:NAMED]]
    if more := len(lost) - len(named):
        named.append(f"{more} more")
    at = next((at for _, at in lost if at is not None), None)
    since = f", since {at:%H:%M:%S} UTC" if at is not None else ""
    plural = "is" if len(lost) == 1 else "are"
    return f"{what}{'s' if len(lost) > 1 else ''} {_listed(named)} {plural} lost{since}"


def _waits(found: WaitSummary, now: datetime) -> Iterable[str]:
    if runs := found.in_vain:
        named = [name for _, name in found.jobs[:NAMED]]
        if more := len(found.jobs[NAMED:]):
            named.append(f"{more} more")
        if found.elsewhere:
            named.append("jobs of other namespaces")
        told = "a run waits" if runs == 1 else f"{runs:,} runs or more wait"
        yield f"{told} that no worker that takes work can do: {_listed(named)}"
    if found.since is not None and (long := now - found.since) > OLD:
        yield f"a run has waited for {formatting.span(long)}: for a slot, its pool, or its turn"


def _listed(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _hints(members: Iterable[MemberLine]) -> Iterable[str]:
    """What somebody may want to look at, in good time."""
    for member in members:
        if member.draining:
            yield f"{member.name} is draining"


def _members(stored: Stored, view: ClusterView, me: TenureId | None) -> tuple[MemberLine, ...]:
    owned = Counter(shard.owner for shard in stored.shards)
    ordered = sorted(view.members, key=lambda member: member.name)
    live = tuple(
        MemberLine(
            name=member.name,
            colour=at % COLOURS,
            leads=member.tenure == view.leader,
            here=member.tenure == me,
            draining=member.draining,
            shards=owned[member.name],
            http=member.http,
            version=member.version,
        )
        for at, member in enumerate(ordered)
    )
    names = {member.name for member in ordered}
    lost = tuple(
        MemberLine(
            name=one.name,
            colour=at % COLOURS,
            leads=False,
            here=False,
            draining=False,
            shards=owned[one.name],
            http=one.http,
            version=one.version,
            lost=True,
        )
        for at, one in enumerate(stored.lost.members, len(live))
        if one.name not in names
    )
    return live + lost


def _worker(worker: cluster_pb.Worker) -> WorkerLine:
    return WorkerLine(
        name=worker.name,
        slots=worker.slots,
        busy=None if worker.unheard else worker.running,
        draining=worker.state == cluster_pb.Worker.STATE_DRAINING,
        version=worker.version,
        lost=worker.state == cluster_pb.Worker.STATE_LOST,
    )


def _shards(
    shards: Sequence[cluster_pb.Shard], colours: dict[str, int]
) -> tuple[tuple[int, str], ...]:
    """The cells of each owner in a grid of 32 columns, as one path of unit squares."""
    paths: dict[int, list[str]] = {}
    for shard in shards:
        row, column = divmod(shard.shard, 32)
        cell = f"M{column} {row}h.84v.84h-.84z"
        paths.setdefault(colours.get(shard.owner, -1), []).append(cell)
    return tuple((colour, "".join(cells)) for colour, cells in sorted(paths.items()))


def _bar(run: run_pb2.Run) -> Bar:
    look = look_of(run.state)
    told = f"{run.job or 'submitted'}: {look.word}"
    late = lateness(run)
    if late is None:
        return Bar(look, 0.0, told)
    height = math.log10(max(1.0, late.total_seconds() * 1000)) / DECADES
    return Bar(look, round(min(1.0, height), 3), f"{told}, {formatting.span(late)} late")


def _soonest(jobs: Iterable[job_pb2.Job]) -> list[job_pb2.Job]:
    """By their next run; those without one last."""
    return sorted(
        jobs,
        key=lambda job: (
            not job.HasField("next_run_at"),
            job.next_run_at.seconds,
            job.next_run_at.nanos,
            job.name,
        ),
    )
