"""The values of the overview page. Pure.

    Stored (overview_queries.py) ─┐
    Cluster.view() ───────────────┴─glance──▶ Glance ──templates──▶ page

Stored data may be older than the view: while the database is unavailable (`away`), the last data
stays. Then concerns are those of the time of that data.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import field
from datetime import datetime, timedelta
from statistics import median_low
from typing import Final

from schedd.api import availability
from schedd.api.runs.waiting_runs import WaitSummary
from schedd.api.views import paused
from schedd.core.checkup.facts import FullWorkers
from schedd.core.cluster.dependency import DependencyFailure
from schedd.core.cluster.membership import ClusterView
from schedd.core.ids import TenureId
from schedd.core.runs.records import Counts
from schedd.web import formatting
from schedd.web.formatting import StateStyle, lateness, look_of
from schedd.web.pages.cluster.overview_queries import Stored
from schedd.web.pages.cluster.workers import WorkerRow, row_of
from schedkit.records import dataclass
from schedproto.v1 import cluster_service_pb2 as cluster_pb
from schedproto.v1 import job_pb2, run_pb2

SHOWN_RUNS: Final = 20
SHOWN_JOBS: Final = 12
UNREAD: Final = "no data has been read yet"
NAMED: Final = 3
"""Names in a list; the others are counted."""
OLD: Final = timedelta(minutes=5)
"""A longer wait is reported, as by the alert `ScheddQueueOld`."""
DECADES: Final = 4
"""The strip goes from 1 ms to 10 s."""
COLOURS: Final = 6
"""Colors of members; the seventh member has the first color."""


@dataclass(frozen=True, slots=True)
class MemberLine:
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
class Bar:
    """A run in the strip: height 0 to 1, by the logarithm of its lateness."""

    look: StateStyle
    height: float
    title: str


@dataclass(frozen=True, slots=True)
class Glance:
    here: str
    leader: str
    term: int
    problems: tuple[str, ...]
    """Why runs aren't on time now."""
    concerns: tuple[str, ...]
    """Problems that don't delay runs now, the most severe first."""
    hints: tuple[str, ...]
    counts: Counts
    members: tuple[MemberLine, ...]
    workers: tuple[WorkerRow, ...]
    shards: tuple[tuple[int, str], ...]
    """Color of an owner (-1: none) → an SVG path over its cells."""
    runs: tuple[run_pb2.Run, ...]
    strip: tuple[Bar, ...]
    jobs: tuple[job_pb2.Job, ...]
    more_jobs: int
    typical: timedelta | None
    worst: timedelta | None
    away: bool
    read: bool
    states: tuple[tuple[StateStyle, int], ...] = field(default=())

    @property
    def slots(self) -> int:
        """Return the slots of all workers whose heartbeats are received."""
        return sum(one.worker.slots for one in self.workers if one.busy is not None)

    @property
    def busy(self) -> int:
        return sum(worker.busy or 0 for worker in self.workers)


def glance(
    stored: Stored,
    view: ClusterView,
    me: TenureId | None,
    *,
    trusted: bool,
    away: bool,
    now: datetime,
    duplicate: str = "",
    failures: Sequence[DependencyFailure] = (),
) -> Glance:
    """Combine the values that were read. Pure."""
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
        problems=tuple(
            _troubles(
                stored,
                view,
                now,
                trusted=trusted,
                away=away,
                duplicate=duplicate,
                failures=failures,
            )
        ),
        concerns=tuple(_concerns(stored, now) if not away else _old_concerns(stored, now)),
        hints=tuple(_hints(members)),
        counts=stored.counts,
        members=members,
        workers=tuple(row_of(worker) for worker in stored.workers),
        shards=_shards(stored.shards, {member.name: member.colour for member in members}),
        runs=tuple(stored.runs[:SHOWN_RUNS]),
        strip=tuple(_bar(run) for run in reversed(stored.runs)),
        jobs=tuple(_soonest(stored.jobs)[:SHOWN_JOBS]),
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
    now: datetime,
    *,
    trusted: bool,
    away: bool,
    duplicate: str,
    failures: Sequence[DependencyFailure],
) -> Iterable[str]:
    """Yield why the page is red: unavailable database, cluster pause, problems of availability."""
    if away:
        at = stored.read_at
        shown = f"the page shows data from {formatting.data_age(at, now)}" if at else UNREAD
        yield f"PostgreSQL is unavailable; {shown}"
    if stored.pause is not None:
        yield f"the cluster is {paused(stored.pause)}"
    live = {member.name for member in view.members}
    owned = sum(shard.owner in live for shard in stored.shards)
    yield from availability.problems(
        view,
        trusted=trusted,
        owned=owned if stored.read else None,
        workers=len(_live(stored)) if stored.read else None,
        duplicate=duplicate,
        failures=failures,
    )


def _live(stored: Stored) -> list[cluster_pb.Worker]:
    away = (cluster_pb.Worker.STATE_LOST, cluster_pb.Worker.STATE_STOPPED)
    return [one for one in stored.workers if one.state not in away]


def _old_concerns(stored: Stored, now: datetime) -> Iterable[str]:
    """Yield the problems at the time of the data: each may have ended since."""
    if (at := stored.read_at) is not None:
        for concern in _concerns(stored, at):
            yield f"at {formatting.clock(at, now)} UTC: {concern}"


def _concerns(stored: Stored, now: datetime) -> Iterable[str]:
    """Yield problems of a working cluster: lost work, then work that can't start."""
    yield from _losses(stored)
    for worker in [one for one in _live(stored) if one.refusal_reason][:NAMED]:
        yield f"worker {worker.name} takes no new runs: {worker.refusal_reason}"
    if text := stored.missed.summary(now):
        yield text
    if dead := stored.counts.dead_letters:
        yield "1 dead letter is open" if dead == 1 else f"{dead:,} dead letters are open"
    live = _live(stored)
    takes = (worker.state != cluster_pb.Worker.STATE_DRAINING for worker in live)
    if (waiting := stored.counts.pending) and live and not any(takes):
        yield f"{waiting:,} runs wait, but every worker is draining"
    elif live and stored.pause is None:
        yield from _waiting_concerns(stored.waits, now)


def _losses(stored: Stored) -> Iterable[str]:
    if members := stored.lost.members:
        yield _lost("member", [(one.name, one.lost_at) for one in members])
    if workers := stored.lost.workers:
        yield _lost("worker", [(one.worker, one.lost_at) for one in workers])


def _lost(what: str, lost: Sequence[tuple[str, datetime | None]]) -> str:
    """Return the newest losses by name, and the time of the newest."""
    named = [name for name, _ in lost[:NAMED]]
    if more := len(lost) - len(named):
        named.append(f"{more} more")
    at = next((at for _, at in lost if at is not None), None)
    since = f", since {at:%H:%M:%S} UTC" if at is not None else ""
    plural = "is" if len(lost) == 1 else "are"
    return f"{what}{'s' if len(lost) > 1 else ''} {_listed(named)} {plural} lost{since}"


def _waiting_concerns(found: WaitSummary, now: datetime) -> Iterable[str]:
    if found.unrunnable:
        yield _waiting(found, "without a matching worker")
    if found.held_up is not None:
        yield _waiting(found.held_up, "for workers that take no new runs now")
    for full in found.full[:NAMED]:
        yield _full(full, now)
    known = {full.since for full in found.full}
    if found.since is not None and found.since not in known and (long := now - found.since) > OLD:
        yield f"a run has waited {formatting.span(long)} for a slot, its pool or higher priorities"


def _full(found: FullWorkers, now: datetime) -> str:
    """Describe workers without a free slot, by the runs that have used their slots for longest."""
    jobs = [name or "submitted work" for _, name in found.jobs]
    waiting = _named(jobs, "jobs of other namespaces")
    text = (
        f"runs of {waiting} have waited {formatting.span(now - found.since)}: {found.used} of"
        f" {found.slots} slots of {_named(found.workers, '')} are in use"
    )
    if not (stuck := found.stuck):
        return text
    first = stuck[0]
    of, since = first.name or "submitted work", f"{first.since:%H:%M:%S} UTC"
    if first.runs == 1:
        return f"{text}; 1 run of {of} has run there since {since}"
    return f"{text}; {first.runs:,} runs of {of} run there, the first since {since}"


def _named(names: Sequence[str], otherwise: str) -> str:
    """Return the first names and the number of the others."""
    named = [*names[:NAMED]]
    if more := len(names) - len(named):
        named.append(f"{more} more")
    return _listed(named) if named else otherwise


def _waiting(found: WaitSummary, what: str) -> str:
    runs, named = found.unrunnable, [name for _, name in found.jobs[:NAMED]]
    if more := len(found.jobs[NAMED:]):
        named.append(f"{more} more")
    if found.elsewhere:
        named.append("jobs of other namespaces")
    many = "1 run waits" if runs == 1 else f"at least {runs:,} runs wait"
    return f"{many} {what}: {_listed(named)}"


def _listed(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _hints(members: Iterable[MemberLine]) -> Iterable[str]:
    """Yield hints that aren't urgent."""
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


def _shards(
    shards: Sequence[cluster_pb.Shard], colours: dict[str, int]
) -> tuple[tuple[int, str], ...]:
    """Return the cells of each owner in a grid of 32 columns, as one path of unit squares."""
    paths: dict[int, list[str]] = {}
    for shard in shards:
        row, column = divmod(shard.shard, 32)
        cell = f"M{column} {row}h.84v.84h-.84z"
        paths.setdefault(colours.get(shard.owner, -1), []).append(cell)
    return tuple((colour, "".join(cells)) for colour, cells in sorted(paths.items()))


def _bar(run: run_pb2.Run) -> Bar:
    look = look_of(run.state)
    title = f"{run.job or 'submitted'}: {look.word}"
    late = lateness(run)
    if late is None:
        return Bar(look, 0.0, title)
    height = math.log10(max(1.0, late.total_seconds() * 1000)) / DECADES
    return Bar(look, round(min(1.0, height), 3), f"{title}, {formatting.span(late)} late")


def _soonest(jobs: Iterable[job_pb2.Job]) -> list[job_pb2.Job]:
    """Return jobs by their next run; those without one last."""
    return sorted(
        jobs,
        key=lambda job: (
            not job.HasField("next_run_at"),
            job.next_run_at.seconds,
            job.next_run_at.nanos,
            job.name,
        ),
    )
