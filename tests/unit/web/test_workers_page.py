"""The figures of each worker on the page of the workers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from schedd.web import templating
from schedd.web.pages.cluster.workers import row_of
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


def test_a_worker_limited_to_namespaces_shows_them() -> None:
    live = cluster_pb.Worker.STATE_LIVE
    for namespaces, shown in (
        (["billing"], "only for namespace billing"),
        (["billing", "etl"], "only for namespaces billing, etl"),
    ):
        assert shown in workers_page(
            cluster_pb.Worker(name="w7", state=live, namespaces=namespaces)
        )
    assert "only for" not in workers_page(cluster_pb.Worker(name="w1", state=live))


def test_a_draining_worker_shows_the_number_of_its_unstored_results() -> None:
    """Its running runs don't show them, and a kill of the worker would run them again."""
    live, draining = cluster_pb.Worker.STATE_LIVE, cluster_pb.Worker.STATE_DRAINING
    full = "its disk is full"
    for worker, shown in (
        (
            cluster_pb.Worker(name="w1", state=draining, unstored_results=1),
            "1 result is only on this worker",
        ),
        (
            cluster_pb.Worker(name="w1", state=live, unstored_results=2000, refusal_reason=full),
            "2,000 results are",
        ),
    ):
        assert shown in workers_page(worker)
    on_its_way = cluster_pb.Worker(name="w1", state=live, unstored_results=3)
    assert "stored" not in workers_page(on_its_way)


def test_no_figure_is_shown_of_a_worker_without_heartbeats() -> None:
    """0 of 4 and "0 s ago" were read as: it is idle."""
    page = workers_page(
        cluster_pb.Worker(
            name="w1", state=cluster_pb.Worker.STATE_LIVE, slots=4, heartbeats_missing=True
        )
    )
    assert "no heartbeats received" in page
    for figure in ("0 of 4", "just now", "ago", "meter"):
        assert figure not in page
    received = workers_page(
        cluster_pb.Worker(name="w1", state=cluster_pb.Worker.STATE_LIVE, slots=4)
    )
    for figure in ("0 of 4", "just now", "meter"):
        assert figure in received


def test_the_age_of_a_lease_is_shown_once_it_isnt_kept_any_more() -> None:
    """While it is, nothing changes on the page, which is sent again whenever something does."""
    live = cluster_pb.Worker.STATE_LIVE

    def seen(seconds: float) -> str:
        worker = cluster_pb.Worker(name="w1", state=live, slots=4)
        worker.lease_age.FromTimedelta(timedelta(seconds=seconds))
        return workers_page(worker)

    assert seen(0.2) == seen(5.4)
    assert "12 s ago" in seen(12.3)
