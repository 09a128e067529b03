"""The overview page: the state of the cluster, problems first.

    run_queries ─▶ Stored ───┐
    Cluster.view() ──────────┴─glance──▶ Glance ──templates──▶ page

While the database is unavailable (`away`), the page shows the last data, and the problems that the
member itself knows. Concerns are those of the time of that data.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import field
from datetime import datetime, timedelta
from statistics import median_low
from typing import Final

from schedd.api import paging
from schedd.api.cluster import cluster as cluster_calls
from schedd.api.cluster.cluster import lost_now
from schedd.api.runs.waiting_runs import NO_WAITS, WaitSummary, read_wait_summary
from schedd.api.services import DEFAULT_NAMESPACE
from schedd.api.views import paused
from schedd.core.checkup.facts import FullWorkers
from schedd.core.cluster.cluster_events import NO_LOSSES, Losses
from schedd.core.cluster.dependency import DependencyFailure
from schedd.core.cluster.membership import ClusterView
from schedd.core.ids import TenureId
from schedd.core.runs.records import Counts
from schedd.core.timers.cluster_pauses import Pause
from schedd.web import formatting
from schedd.web.formatting import StateStyle, lateness, look_of
from schedd.web.pages.cluster.workers import WorkerRow, row_of
from schedd.web.pages.page import Page, PageRequest, Shown
from schedkit.clock import utcnow
from schedkit.records import dataclass
from schedproto.v1 import cluster_service_pb2 as cluster_pb
from schedproto.v1 import common_pb2, job_pb2, job_service_pb2, run_pb2, run_service_pb2

# Count the runs that were missed in the last day.
#
#    the newest runs, as many as one list reads ──▶ MISSED ──▶ recorded within LATELY ──▶ MissedRuns
#
# Missed runs have no index (docs/decisions, "Dashboard"). If a day has more runs than one list
# reads, the text says how far back the search went.

MISSED_WITHIN: Final = timedelta(days=1)
"""How long a missed run is reported."""
MOST_MISSED: Final = 100
"""The greatest count; with more, it is a lower bound."""
MISSED_GOOD_FOR: Final = 10.0
"""Seconds that a result is cached: it is the most expensive read of the overview."""


@dataclass(frozen=True, slots=True)
class MissedRuns:
    """When runs were recorded as missed, MOST at most; `reached`: end of the search, None: all
    runs.
    """

    runs: tuple[datetime, ...] = ()
    reached: datetime | None = None

    def summary(self, now: datetime) -> str:
        """Return the count in words; empty if none is known. Pure."""
        lately = sum(at > now - MISSED_WITHIN for at in self.runs)
        if not lately:
            return ""
        number = "a run was" if lately == 1 else f"{lately} runs were"
        if lately >= MOST_MISSED:
            return f"{lately} runs or more were missed in the last day"
        if self.reached is None or self.reached <= now - MISSED_WITHIN:
            return f"{number} missed in the last day"
        since = formatting.clock(self.reached, now)
        return f"{number} missed since {since}; older runs weren't searched"


NONE_MISSED: Final = MissedRuns()


async def missed(asked: PageRequest) -> MissedRuns:
    """Return the missed runs of the namespace, cached for MISSED_GOOD_FOR. Raises Unavailable."""

    async def look() -> MissedRuns:
        listed = await asked.call(request, run_service_pb2.ListRunsResponse)
        recorded = [
            formatting.moment(run, "finished_at") or formatting.instant(run.due_at)
            for run in listed.runs
        ]
        return MissedRuns(tuple(recorded), paging.reached(listed.next_page_token))

    request = run_service_pb2.ListRunsRequest(
        namespace=asked.namespace, states=[common_pb2.RUN_STATE_MISSED], page_size=MOST_MISSED
    )
    return await asked.recent.get_or_read(("missed", asked.namespace), MISSED_GOOD_FOR, look)


RECENT: Final = 100
"""Runs in the figures and the strip."""

JOBS_READ: Final = 100
"""Newest jobs that are searched for the next runs."""

GOOD_FOR: Final = 5.0
"""Seconds that the summary of waiting runs is cached."""

NOTHING: Final = Counts(jobs=0, pending=0, running=0, retrying=0, dead_letters=0)


@dataclass(frozen=True, slots=True)
class Stored:
    counts: Counts = NOTHING
    shards: Sequence[cluster_pb.Shard] = ()
    workers: Sequence[cluster_pb.Worker] = ()
    runs: Sequence[run_pb2.Run] = ()
    jobs: Sequence[job_pb2.Job] = ()
    pause: Pause | None = None
    waits: WaitSummary = NO_WAITS
    missed: MissedRuns = NONE_MISSED
    lost: Losses = NO_LOSSES
    read_at: datetime | None = None
    """None: nothing has been read yet."""

    @property
    def read(self) -> bool:
        return self.read_at is not None


async def waiting_now(asked: PageRequest) -> WaitSummary:
    """Return the summary of waiting runs in all namespaces, cached for GOOD_FOR. It names only jobs
    of the page's namespace.
    """
    found = await asked.recent.get_or_read(
        "waits", GOOD_FOR, lambda: asked.read(read_wait_summary, asked.services)
    )
    return found.visible_in(asked.namespace or DEFAULT_NAMESPACE)


async def run_queries(asked: PageRequest) -> Stored:
    """Run the queries. Raises Unavailable, or MemberUnavailableError if PostgreSQL is silent."""
    namespace, services = asked.namespace, asked.services
    async with asked.at_once() as all_:
        runs = all_.call(
            run_service_pb2.ListRunsRequest(namespace=namespace, page_size=RECENT),
            run_service_pb2.ListRunsResponse,
        )
        jobs = all_.call(
            job_service_pb2.ListJobsRequest(namespace=namespace, page_size=JOBS_READ),
            job_service_pb2.ListJobsResponse,
        )
        shards = all_.call(cluster_pb.ListShardsRequest(), cluster_pb.ListShardsResponse)
        workers = all_.call(cluster_pb.ListWorkersRequest(), cluster_pb.ListWorkersResponse)
        losses = all_.read("losses", asked.read(lost_now, services))
        counts = all_.read("counts", asked.read(services.store.counts))
        lost = all_.read("what was missed", missed(asked))
        waiting = all_.read("waits", waiting_now(asked))
        pause = all_.read("the pause", asked.read(services.pauses.present))
    return Stored(
        counts=counts.result(),
        shards=tuple(shards.result().shards),
        workers=tuple(workers.result().workers),
        runs=tuple(runs.result().runs),
        jobs=tuple(jobs.result().jobs),
        pause=pause.result(),
        waits=waiting.result(),
        missed=lost.result(),
        lost=losses.result(),
        read_at=utcnow(),
    )


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
    http: str
    colour: int
    shards: int
    leads: bool = False
    here: bool = False
    draining: bool = False
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
    live = {member.name for member in view.members}
    unavailable = cluster_calls.problems(
        view,
        trusted=trusted,
        owned=sum(shard.owner in live for shard in stored.shards) if stored.read else None,
        workers=len(_live(stored)) if stored.read else None,
        duplicate=duplicate,
        failures=failures,
    )
    looks = {state: look_of(state) for state in by_state}
    return Glance(
        here=own.name if own else "",
        leader=leader.name if leader else "",
        term=view.term,
        problems=(*_troubles(stored, now, away=away), *unavailable),
        concerns=tuple(_concerns(stored, now) if not away else _old_concerns(stored, now)),
        hints=tuple(f"{member.name} is draining" for member in members if member.draining),
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


def _troubles(stored: Stored, now: datetime, *, away: bool) -> Iterable[str]:
    """Yield that the database is unavailable, and that the cluster is paused."""
    if away:
        at = stored.read_at
        shown = f"the page shows data from {formatting.data_age(at, now)}" if at else UNREAD
        yield f"PostgreSQL is unavailable; {shown}"
    if stored.pause is not None:
        yield f"the cluster is {paused(stored.pause)}"


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
    if members := stored.lost.members:
        yield _lost("member", [(one.name, one.lost_at) for one in members])
    if workers := stored.lost.workers:
        yield _lost("worker", [(one.worker, one.lost_at) for one in workers])
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


def _lost(what: str, lost: Sequence[tuple[str, datetime | None]]) -> str:
    """Return the newest losses by name, and the time of the newest."""
    at = next((at for _, at in lost if at is not None), None)
    since = f", since {at:%H:%M:%S} UTC" if at is not None else ""
    subject, verb = (what, "is") if len(lost) == 1 else (f"{what}s", "are")
    return f"{subject} {_listed(_first([name for name, _ in lost]))} {verb} lost{since}"


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
    waiting = _listed(_first(jobs)) or "jobs of other namespaces"
    text = (
        f"runs of {waiting} have waited {formatting.span(now - found.since)}: {found.used} of"
        f" {found.slots} slots of {_listed(_first(found.workers))} are in use"
    )
    if not (stuck := found.stuck):
        return text
    first = stuck[0]
    of, since = first.name or "submitted work", f"{first.since:%H:%M:%S} UTC"
    if first.runs == 1:
        return f"{text}; 1 run of {of} has run there since {since}"
    return f"{text}; {first.runs:,} runs of {of} run there, the first since {since}"


def _first(names: Sequence[str]) -> list[str]:
    more = len(names) - NAMED
    return [*names[:NAMED], *([f"{more} more"] if more > 0 else [])]


def _waiting(found: WaitSummary, what: str) -> str:
    runs, named = found.unrunnable, _first([name for _, name in found.jobs])
    if found.elsewhere:
        named.append("jobs of other namespaces")
    many = "1 run waits" if runs == 1 else f"at least {runs:,} runs wait"
    return f"{many} {what}: {_listed(named)}"


def _listed(names: Sequence[str]) -> str:
    *first, last = names or [""]
    return f"{', '.join(first)} and {last}" if first else last


def _members(stored: Stored, view: ClusterView, me: TenureId | None) -> tuple[MemberLine, ...]:
    """Return the members by name, then those that are lost."""
    owned = Counter(shard.owner for shard in stored.shards)
    live = sorted(view.members, key=lambda member: member.name)
    names = {member.name for member in live}

    def line(at: int, name: str, http: str, **flags: bool) -> MemberLine:
        return MemberLine(name, http, colour=at % COLOURS, shards=owned[name], **flags)

    running = [
        line(
            at,
            one.name,
            one.http,
            leads=one.tenure == view.leader,
            here=one.tenure == me,
            draining=one.draining,
        )
        for at, one in enumerate(live)
    ]
    lost = [
        line(at, one.name, one.http, lost=True)
        for at, one in enumerate(stored.lost.members, len(live))
        if one.name not in names
    ]
    return *running, *lost


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
    return sorted(
        jobs,
        key=lambda job: (
            not job.HasField("next_run_at"),
            job.next_run_at.seconds,
            job.next_run_at.nanos,
            job.name,
        ),
    )


EVERY: Final = 0.5
"""Seconds between two reads, for any number of readers."""


async def _read(asked: PageRequest) -> Shown:
    return _shown(asked, await run_queries(asked), away=False)


def _without(asked: PageRequest, kept: object) -> Shown:
    return _shown(asked, kept if isinstance(kept, Stored) else Stored(), away=True)


def _shown(asked: PageRequest, stored: Stored, *, away: bool) -> Shown:
    cluster = asked.services.cluster
    seen = glance(
        stored,
        cluster.view(),
        cluster.tenure,
        trusted=cluster.trusted(),
        duplicate=cluster.duplicate,
        failures=asked.services.failures(),
        away=away,
        now=utcnow(),
    )
    return Shown(f"Overview of {seen.here}" if seen.here else "Overview", seen, kept=stored)


PAGE: Final = Page(
    "/", "Overview", "overview", _read, every=EVERY, without=_without, tells_troubles=True
)
