"""The page of workers: state, slots, executors, age of the lease; actions drain and undrain."""

from typing import Final

from schedd.web.pages.page import Action, Done, Page, PageRequest, Shown, taking
from schedkit.records import dataclass
from schedproto.v1 import cluster_service_pb2 as cluster_pb

KEPT_WITHIN: Final = 10
"""Seconds: more than a few heartbeats."""


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker, without what changes with each heartbeat. `drained`: by whom and why; empty: it
    isn't. `unstored_results`: those that only the worker has, and that would be lost with it.
    """

    worker: cluster_pb.Worker
    state: str
    lease: str
    drained: str
    unstored_results: str

    @property
    def busy(self) -> int | None:
        """Return the slots in use; None: no member receives its heartbeats."""
        return None if self.worker.heartbeats_missing else self.worker.running

    @property
    def share(self) -> float:
        slots = self.worker.slots
        return min(1.0, (self.busy or 0) / slots) if slots else 0.0

    @property
    def here(self) -> bool:
        return self.state not in ("lost", "stopped")


async def _read(asked: PageRequest) -> Shown:
    listed = await asked.call(cluster_pb.ListWorkersRequest(), cluster_pb.ListWorkersResponse)
    return Shown("Workers", tuple(row_of(worker) for worker in listed.workers))


def row_of(worker: cluster_pb.Worker) -> WorkerRow:
    drained = ""
    if worker.HasField("drained_at"):
        drained = f"drained by {worker.drained_by}"
        drained += f": {worker.drain_reason}" if worker.drain_reason else ""
    steady = cluster_pb.Worker()
    steady.CopyFrom(worker)
    for field in ("lease_age", "free", "unstored_results"):
        steady.ClearField(field)
    return WorkerRow(
        steady,
        state=cluster_pb.Worker.State.Name(worker.state).removeprefix("STATE_").lower(),
        lease=_lease(worker.lease_age.seconds),
        drained=drained,
        unstored_results=_unstored(worker),
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
    await asked.call(request, cluster_pb.Worker)
    message = f"{name} is draining: it takes no new runs and finishes those in progress."
    return Done(message, asked.link("workers"))


@taking()
async def _undrain(asked: PageRequest) -> Done:
    name = asked.variables["worker"]
    request = cluster_pb.UndrainWorkerRequest(worker=name)
    await asked.call(request, cluster_pb.Worker)
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
