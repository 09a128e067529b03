"""The results that a worker keeps until a member has answered them."""

from __future__ import annotations

from schedproto.v1 import worker_service_pb2 as pb
from workerd.delivery.result_sender import ResultSender
from workerd.delivery.success_batch import SuccessBatch


def results_of(sender: ResultSender) -> list[pb.Result]:
    """Return each result as its own message."""
    found: list[pb.Result] = []
    for batch in sender._batches:
        content = sender._left_of(batch)
        found += content.results("w1") if isinstance(content, SuccessBatch) else [content]
    return found
