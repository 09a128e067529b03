"""What REST says of itself holds: schemathesis asks by the document, well and badly."""

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

SECONDS = 60
STREAMS = "/events|:watch|/logs|/result/content"
SCHEMA_ALONE = "positive_data_acceptance"
"""What a schema allows may be wrong for what it means: a cron that is none, a job that is gone."""


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[DevCluster]:
    """Without a worker: nothing that is made here runs."""
    with dev_cluster(request.session, members=1, workers=0) as made:
        yield made


@pytest.mark.timeout(300)
def test_whoever_asks_by_the_openapi_document_meets_no_bug_and_no_other_answer(
    cluster: DevCluster, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    seed = 7 if os.environ.get("CI") else random.randrange(10**6)
    member = cluster.record["members"][0]["http"]
    argv = [str(Path(sys.executable).with_name("st")), "run"]
    argv += [f"http://{member}/api/v1/openapi.json", "--exclude-path-regex", STREAMS]
    argv += ["--phases", "coverage,fuzzing", "--exclude-checks", SCHEMA_ALONE, "--no-color"]
    argv += ["--continue-on-failure", "--max-time", str(SECONDS), "--seed", str(seed)]
    done = subprocess.run(
        argv, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, f"{' '.join(argv)}\n{done.stdout[-8000:]}{done.stderr[-2000:]}"
    [count] = re.findall(r"^ *(\d+) generated", done.stdout, re.MULTILINE)
    assert int(count) > 500
    figure(f"schemathesis, seed {seed}: {count} requests, {SECONDS} s, nothing found")
