"""The results that a worker keeps until a member has answered them."""

from __future__ import annotations

from collections.abc import Iterator

from schedproto.v1 import worker_service_pb2 as pb
from workerd import messages
from workerd.batches import SuccessBatch
from workerd.core.outcome import SUCCESS
from workerd.delivery.result_sender import ResultSender


def results_of(sender: ResultSender) -> list[pb.Result]:
    """Return each result as its own message."""
    found: list[pb.Result] = []
    for batch in sender._batches:
        content = sender._left_of(batch)
        found += _singly(content) if isinstance(content, SuccessBatch) else [content]
    return found


def _singly(batch: SuccessBatch) -> Iterator[pb.Result]:
    columns = zip(batch.keys, batch.scheduled, batch.started, batch.finished, strict=True)
    for key, scheduled, started, finished in columns:
        message = messages.key_message(key, scheduled)
        yield messages.result(key, message, batch.incarnation, "w1", SUCCESS, started, finished)
