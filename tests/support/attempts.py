"""Attempts as executors receive them, without a worker."""

from datetime import datetime

from schedproto.v1 import worker_service_pb2 as pb
from workerd.batches import AssignedBatch
from workerd.core.outcome import MAX_RESULT
from workerd.executors.base import AttemptStart, StartedBatch


def attempt_start(
    assignment: pb.Assignment, worker: str, deadline: datetime, *, most_result: int = MAX_RESULT
) -> AttemptStart:
    """Return an attempt without followers of its output, whose end nothing waits for."""
    batch = StartedBatch(AssignedBatch.of_one(assignment), worker, lambda *_: None, most_result)
    batch.deadlines[0] = deadline
    return batch.attempt(0)
