"""Read the overview from the database: one set of queries, through the common calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from schedd.api.cluster.cluster import lost_now
from schedd.api.runs.waiting_runs import NO_WAITS, WaitSummary, waits
from schedd.api.services import DEFAULT_NAMESPACE
from schedd.core.cluster.cluster_events import NO_LOSSES, Losses
from schedd.core.runs.records import Counts
from schedd.core.timers.cluster_pauses import Pause
from schedd.web.pages.cluster.missed_runs import NONE_MISSED, MissedRuns, missed
from schedd.web.pages.page import PageRequest
from schedproto.v1 import cluster_service_pb2 as cluster_pb
from schedproto.v1 import job_pb2, job_service_pb2, run_pb2, run_service_pb2

RECENT: Final = 100
"""Runs in the figures and the strip."""

JOBS_READ: Final = 100
"""Newest jobs that are searched for the next runs."""

GOOD_FOR: Final = 5.0
"""Seconds that the summary of waiting runs is cached."""

NOTHING: Final = Counts(jobs=0, pending=0, running=0, retrying=0, dead_letters=0)


@dataclass(frozen=True, slots=True)
class Stored:
    """The data of the database."""

    counts: Counts = NOTHING
    shards: Sequence[cluster_pb.Shard] = ()
    workers: Sequence[cluster_pb.Worker] = ()
    runs: Sequence[run_pb2.Run] = ()
    jobs: Sequence[job_pb2.Job] = ()
    pause: Pause | None = None
    waits: WaitSummary = NO_WAITS
    missed: MissedRuns = NONE_MISSED
    lost: Losses = NO_LOSSES
    read: bool = False
    """False: nothing has been read yet."""


async def waiting_now(asked: PageRequest) -> WaitSummary:
    """Return the summary of waiting runs in all namespaces, cached for GOOD_FOR. It names only jobs
    of the page's namespace.
    """
    found = await asked.recent.of("waits", GOOD_FOR, lambda: asked.read(waits, asked.services))
    return found.visible_in(asked.namespace or DEFAULT_NAMESPACE)


async def read(asked: PageRequest) -> Stored:
    """Run the queries. Raises Unavailable, or MemberUnavailableError if PostgreSQL doesn't answer."""
    namespace, services = asked.namespace, asked.services
    async with asked.at_once() as all_:
        runs = all_.call(
            "RunService.ListRuns",
            run_service_pb2.ListRunsRequest(namespace=namespace, page_size=RECENT),
            run_service_pb2.ListRunsResponse,
        )
        jobs = all_.call(
            "JobService.ListJobs",
            job_service_pb2.ListJobsRequest(namespace=namespace, page_size=JOBS_READ),
            job_service_pb2.ListJobsResponse,
        )
        shards = all_.call(
            "ClusterService.ListShards",
            cluster_pb.ListShardsRequest(),
            cluster_pb.ListShardsResponse,
        )
        workers = all_.call(
            "ClusterService.ListWorkers",
            cluster_pb.ListWorkersRequest(),
            cluster_pb.ListWorkersResponse,
        )
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
        read=True,
    )
