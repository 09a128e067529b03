"""What the page of the workers says of each."""

from __future__ import annotations

from datetime import UTC, datetime

from schedd.web import templating
from schedd.web.pages.workers import row_of
from schedproto.v1 import cluster_service_pb2 as cluster_pb

NOW = datetime(2026, 3, 4, 12, 0, 5, tzinfo=UTC)


def workers_page(*workers: cluster_pb.Worker) -> str:
    return templating.render(
        "workers_body.html",
        seen=[row_of(worker) for worker in workers],
        now=NOW,
        link=templating.linker(""),
        may=lambda *_: False,
    )


def test_a_worker_that_works_for_some_namespaces_says_for_which() -> None:
    live = cluster_pb.Worker.STATE_LIVE
    for namespaces, told in (
        (["billing"], "for namespace billing alone"),
        (["billing", "etl"], "for namespaces billing, etl alone"),
    ):
        assert told in workers_page(cluster_pb.Worker(name="w7", state=live, namespaces=namespaces))
    assert "alone" not in workers_page(cluster_pb.Worker(name="w1", state=live))
