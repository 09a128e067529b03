"""REST does what its OpenAPI document says: schemathesis sends valid and invalid requests."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.cluster import DevCluster, dev_cluster

SECONDS = int(os.environ.get("OPENAPI_SECONDS", "8"))
STREAMS = "/events|:watch|/logs|/result/content"
SCHEMA_ALONE = "positive_data_acceptance"
"""A value that a schema allows may have no meaning: an invalid cron, a job that was deleted."""
MEANT = """
[parameters]
"query.pageToken" = ""
"query.filter" = ""
"query.expression" = "0 9 * * MON-FRI"
"query.timeZone" = "Europe/Riga"
"query.after" = "2026-11-28T00:00:00Z"
"query.at" = "2026-11-28T00:00:00Z"
"query.scheduledAfter" = "1970-01-01T00:00:00Z"
"query.scheduledBefore" = "2199-12-31T23:59:59Z"

[generation]
allow-x00 = false
"""
"""Limits that no schema of a reading call can express: texts with a grammar, texts that a response
returned before, the years of a time; and no text holds a NUL."""


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[DevCluster]:
    """Without a worker: nothing that is made here runs."""
    with dev_cluster(request.session, members=1, workers=0) as made:
        yield made


def fuzz(cluster: DevCluster, place: Path, seconds: int, *options: str) -> tuple[int, str]:
    """Send requests by the document, without a finding. Return their number and a summary."""
    seed = 7 if os.environ.get("CI") else random.randrange(10**6)
    member = cluster.record["members"][0]["http"]
    config = place / "schemathesis.toml"
    argv = [str(Path(sys.executable).with_name("st"))]
    argv += ["--config-file", str(config)] if config.exists() else []
    argv += ["run", f"http://{member}/api/v1/openapi.json", "--exclude-path-regex", STREAMS]
    argv += ["--phases", "coverage,fuzzing", "--no-color", "--continue-on-failure", *options]
    argv += ["--max-time", str(seconds), "--seed", str(seed)]
    done = subprocess.run(argv, cwd=place, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}\n{done.stdout[-8000:]}{done.stderr[-2000:]}"
    [count] = re.findall(r"^ *(\d+) generated", done.stdout, re.MULTILINE)
    return int(count), f"schemathesis, seed {seed}: {count} requests, {seconds} s, nothing found"


@pytest.mark.timeout(300)
def test_requests_by_the_openapi_document_meet_no_bug_and_no_undocumented_response(
    cluster: DevCluster, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    count, summary = fuzz(cluster, tmp_path, SECONDS, "--exclude-checks", SCHEMA_ALONE)
    figure(summary)
    assert count > 500 * SECONDS // 60


@pytest.mark.timeout(300)
def test_reading_calls_accept_each_value_that_the_document_allows(
    cluster: DevCluster, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    (tmp_path / "schemathesis.toml").write_text(MEANT)
    only = ["--include-method", "GET", "--mode", "positive", "--checks", SCHEMA_ALONE]
    count, summary = fuzz(cluster, tmp_path, SECONDS, *only)
    figure(summary)
    assert count > 4 * SECONDS
