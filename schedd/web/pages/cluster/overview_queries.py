"""Read the overview from the database: one set of queries, through the common calls."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from schedd.api import paging
from schedd.api.cluster.cluster import lost_now
from schedd.api.runs.waiting_runs import NO_WAITS, WaitSummary, read_wait_summary
from schedd.api.services import DEFAULT_NAMESPACE
from schedd.core.cluster.cluster_events import NO_LOSSES, Losses
from schedd.core.runs.records import Counts
from schedd.core.timers.cluster_pauses import Pause
from schedd.web import formatting
from schedd.web.pages.page import PageRequest
from schedkit.clock import utcnow
from schedkit.records import dataclass
from schedproto.v1 import cluster_service_pb2 as cluster_pb
from schedproto.v1 import common_pb2, job_pb2, job_service_pb2, run_pb2, run_service_pb2
from schedproto.v1 import run_service_pb2 as wire

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
        listed = await asked.call(request, wire.ListRunsResponse)
        return MissedRuns(tuple(_recorded_at(listed.runs)), paging.reached(listed.next_page_token))

    request = wire.ListRunsRequest(
        namespace=asked.namespace, states=[common_pb2.RUN_STATE_MISSED], page_size=MOST_MISSED
    )
    return await asked.recent.get_or_read(("missed", asked.namespace), MISSED_GOOD_FOR, look)


def _recorded_at(runs: Iterable[run_pb2.Run]) -> Iterable[datetime]:
    for run in runs:
        yield formatting.moment(run, "finished_at") or formatting.instant(run.due_at)


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
        """Return whether anything has been read."""
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
