"""Watch one object: a worker, a redrive or a backfill."""

from collections.abc import AsyncGenerator
from typing import TypeVar

from google.protobuf.message import Message

from schedd.api.cluster import cluster
from schedd.api.dead_letters import redrives
from schedd.api.jobs import backfills
from schedd.api.services import Caller, Services
from schedd.core.runs.lifecycle import LIVE
from schedproto.v1 import cluster_service_pb2, job_service_pb2, run_pb2, run_service_pb2

M = TypeVar("M", bound=Message)


def watch_worker(
    services: Services, caller: Caller, request: cluster_service_pb2.WatchWorkerRequest
) -> AsyncGenerator[cluster_service_pb2.Worker, None]:
    """Watch a running or drained worker without end. All streams share a snapshot of all workers;
    its cost is mostly that of other members.
    """
    del caller
    return services.snapshots.changes(
        ("workers", ""),
        lambda: cluster.workers_by_name(services),
        lambda workers: cluster.picked(workers, request.worker),
        _ageless,
        lambda _: False,
        rests=False,
    )


def watch_redrive(
    services: Services, caller: Caller, request: run_service_pb2.WatchRedriveRequest
) -> AsyncGenerator[run_pb2.Redrive, None]:
    """Watch a redrive until it is stopped, or all its runs have ended."""
    asked = run_service_pb2.GetRedriveRequest(redrive_id=request.redrive_id)
    return services.snapshots.changes(
        ("redrive", request.redrive_id),
        lambda: redrives.get_redrive(services, caller, asked),
        _itself,
        _itself,
        _made_and_ended,
    )


def watch_backfill(
    services: Services, caller: Caller, request: job_service_pb2.WatchBackfillRequest
) -> AsyncGenerator[job_service_pb2.Backfill, None]:
    """Watch a backfill until all its runs have ended."""
    asked = job_service_pb2.GetBackfillRequest(backfill_id=request.backfill_id)
    return services.snapshots.changes(
        ("backfill", request.backfill_id),
        lambda: backfills.get_backfill(services, caller, asked),
        _itself,
        _itself,
        _over,
    )


def _itself(one: M) -> M:
    return one


def _ageless(worker: cluster_service_pb2.Worker) -> cluster_service_pb2.Worker:
    """Return the worker without its lease age, which isn't a change."""
    facts = cluster_service_pb2.Worker()
    facts.CopyFrom(worker)
    facts.ClearField("lease_age")
    return facts


def _made_and_ended(one: run_pb2.Redrive) -> bool:
    if one.state == run_pb2.Redrive.STATE_DONE:
        return not any(one.runs.get(state.value) for state in LIVE)
    return one.state == run_pb2.Redrive.STATE_STOPPED


def _over(one: job_service_pb2.Backfill) -> bool:
    there = one.waiting + one.running + one.retrying
    return one.state != job_service_pb2.Backfill.STATE_ACTIVE and not there
