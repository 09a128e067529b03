"""Each panel asks a real Prometheus over a live cluster, and is answered."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable

import pytest

from faces.prometheus import Prometheus
from schedclient import SyncClient
from support.cluster import DevCluster
from support.dashboards import panels
from support.exported_metrics import named
from support.wait import wait_until

WITHIN = 60.0


@pytest.fixture
def busy(cluster: DevCluster) -> None:
    """Something of each kind happens: jobs that succeed and fail, in a pool and outside."""
    with SyncClient(cluster.endpoints) as client:
        client.pools.set("panels", limit=4)
        client.jobs.create("succeeds", cron="* * * * * *", pool="panels", shell={"argv": ["true"]})
        client.jobs.create(
            "fails-now-and-then",
            cron="* * * * * *",
            retry={"max_attempts": 2, "backoff": "1s"},
            shell={"argv": ["false"]},
        )


@pytest.mark.timeout(300)
def test_each_panel_shows_data_wherever_its_metrics_have_a_value(
    cluster: DevCluster, busy: None, prometheus: Prometheus, figure: Callable[[str], None]
) -> None:
    del busy
    wait_until(
        lambda: prometheus.answers("schedd_pool_running > -1"), WITHIN, "the pool to be surveyed"
    )
    wait_until(
        lambda: prometheus.answers("schedd_database_oldest_transaction_seconds"), WITHIN, "a look"
    )
    wait_until(
        lambda: prometheus.answers("rate(schedd_run_duration_seconds_count[1m]) > 0"),
        WITHIN,
        "attempts that end",
    )
    asked = [query.filled() for panel in panels() for query in panel.queries]
    for query in asked:
        wait_until(
            lambda q=query: _is_explained(prometheus, q), WITHIN, f"{query} to show something"
        )
    shown = {query for query in asked if prometheus.answers(query)}
    empty = [query for query in asked if query not in shown]
    there = _exported(cluster)
    assert {name for query in asked for name in named(query).metrics} <= there
    assert len(shown) > 0.8 * len(asked), empty
    figure(f"{len(shown)} of {len(asked)} queries of {len([*panels()])} panels show something")


def _is_explained(prometheus: Prometheus, query: str) -> bool:
    """Whether it shows something, or nothing that it asks for has a value: what is rare has one
    series by now and then, and a rate only once that was read twice.
    """
    if "ALERTS" in query or named(query).recorded or prometheus.answers(query):
        return True
    return any(not prometheus.answers(name) for name in named(query).metrics)


def _exported(cluster: DevCluster) -> set[str]:
    """Return the series of a live member or worker, also those without a value yet."""
    found: set[str] = set()
    for one in (*cluster.record["members"], *cluster.record["workers"]):
        with urllib.request.urlopen(f"http://{one['http']}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ")
                found |= (
                    {name, f"{name}_bucket", f"{name}_count"} if kind == "histogram" else {name}
                )
    return found
