"""The page of workers: state, slots, executors, age of the lease; actions drain and undrain."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from schedd.web.pages.forms import taking
from schedd.web.pages.page import Action, Done, Page, PageRequest, Shown
from schedd.web.pages.rows import moment
from schedproto.v1 import cluster_service_pb2 as cluster_pb

KEPT_WITHIN: Final = 10
"""Seconds: more than a few heartbeats."""


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker as a row.

    Args:
        busy: slots in use; None: no member receives its heartbeats.
        namespaces: the namespaces that it serves; empty: all.
        drained: by whom and why it was drained; empty: it isn't.
        unstored_results: results that only the worker has, and that would be lost if it was killed.
    """

    name: str
    state: str
    slots: int
    busy: int | None
    labels: tuple[str, ...]
    executors: tuple[str, ...]
    handlers: tuple[str, ...]
    namespaces: tuple[str, ...]
    version: str
    host: str
    started: datetime | None
    lease: str
    refusal_reason: str
    drained: str
    unstored_results: str
    lost: datetime | None = None
    """When it was recorded as lost."""

    @property
    def share(self) -> float:
        """Return the share of its slots in use, 0 to 1."""
        return min(1.0, (self.busy or 0) / self.slots) if self.slots else 0.0

    @property
    def here(self) -> bool:
        """Return whether it is running."""
        return self.state not in ("lost", "stopped")


async def _read(asked: PageRequest) -> Shown:
    listed = await asked.call(
        "ClusterService.ListWorkers",
        cluster_pb.ListWorkersRequest(),
        cluster_pb.ListWorkersResponse,
    )
    return Shown("Workers", tuple(row_of(worker) for worker in listed.workers))


def row_of(worker: cluster_pb.Worker) -> WorkerRow:
    drained_at = moment(worker, "drained_at")
    drained = ""
    if drained_at is not None:
        drained = f"drained by {worker.drained_by}"
        drained += f": {worker.drain_reason}" if worker.drain_reason else ""
    return WorkerRow(
        name=worker.name,
        state=cluster_pb.Worker.State.Name(worker.state).removeprefix("STATE_").lower(),
        slots=worker.slots,
        busy=None if worker.heartbeats_missing else worker.running,
        labels=tuple(f"{key}:{value}" for key, value in sorted(worker.labels.items())),
        executors=tuple(worker.executors),
        handlers=tuple(worker.handlers),
        namespaces=tuple(worker.namespaces),
        version=worker.version,
        host=worker.host,
        started=moment(worker, "started_at"),
        lease=_lease(worker.lease_age.seconds),
        refusal_reason=worker.refusal_reason,
        drained=drained,
        unstored_results=_unstored(worker),
        lost=moment(worker, "lost_at"),
    )


def _lease(seconds: int) -> str:
    """Return the age of a lease, rounded so that heartbeats don't change the page."""
    return f"{seconds} s ago" if seconds >= KEPT_WITHIN else "just now"


def _unstored(worker: cluster_pb.Worker) -> str:
    leaves = worker.state == cluster_pb.Worker.STATE_DRAINING or worker.HasField("drained_at")
    if not worker.unstored_results or not (leaves or worker.refusal_reason):
        return ""
    results = (
        "1 result is"
        if worker.unstored_results == 1
        else f"{worker.unstored_results:,} results are"
    )
    return f"{results} only on this worker, not stored yet"


@taking("reason")
async def _drain(asked: PageRequest) -> Done:
    name, reason = asked.variables["worker"], asked.fields.get("reason", "")
    request = cluster_pb.DrainWorkerRequest(worker=name, reason=reason)
    await asked.call("ClusterService.DrainWorker", request, cluster_pb.Worker)
    message = f"{name} is draining: it takes no new runs and finishes those in progress."
    return Done(message, asked.link("workers"))


@taking()
async def _undrain(asked: PageRequest) -> Done:
    name = asked.variables["worker"]
    request = cluster_pb.UndrainWorkerRequest(worker=name)
    await asked.call("ClusterService.UndrainWorker", request, cluster_pb.Worker)
    return Done(f"{name} was undrained: it takes new runs.", asked.link("workers"))


PAGE: Final = Page(
    "/workers",
    "Workers",
    "workers",
    _read,
    actions=(
        Action("/workers/{worker}/drain", _drain),
        Action("/workers/{worker}/undrain", _undrain),
    ),
)
