"""Jobs that give the pages something to tell: some succeed, one is slow, one fails for good."""

from __future__ import annotations

from typing import Final

from support.cluster import DevCluster
from support.wait import wait_until

MANIFEST: Final = """
kind: job
name: clock
cron: "* * * * * *"
overlap: allow
priority: high
timeout: 10s
shell: {argv: ["date", "--utc", "+%FT%T.%3NZ"]}
---
kind: job
name: archive
every: 10s
priority: low
labels: {team: data, tier: slow}
timeout: 30s
shell:
  interpreter: ["sh", "-eu"]
  script: |
    for part in 1 2 3; do echo "packing part $part"; sleep 0.5; done
    echo "3 parts packed" >&2
---
kind: job
name: broken-import
every: 15s
retry: {max_attempts: 2, backoff: 500ms, jitter: 0}
timeout: 10s
shell:
  interpreter: ["sh"]
  script: |
    echo "warehouse.example: no route to host (attempt $SCHEDD_ATTEMPT)" >&2
    exit 1
---
kind: job
name: flaky
every: 5s
retry: {max_attempts: 1}
shell: {argv: ["sh", "-c", "test $(( $(date +%s) / 5 % 3 )) -ne 0"]}
---
kind: job
name: nightly-etl
cron: "H 2 * * *"
time_zone: Europe/Berlin
retry: {max_attempts: 4, backoff: 30s, max: 10m}
timeout: 2h
payload: {day: yesterday}
shell: {argv: ["sh", "-c", "echo nothing to extract here"]}
---
kind: job
name: weekly-report
cron: "30 9 * * MON"
time_zone: America/New_York
labels: {team: sales}
shell: {argv: ["true"]}
"""


LONG: Final = "unbroken" * 16
"""A name as long as names may be, without a place to break it."""

HARD_MANIFEST: Final = f"""
kind: job
name: {LONG}
every: 4s
labels: {{{"key" * 20}: {"value" * 12}}}
retry: {{max_attempts: 1}}
shell: {{argv: ["false"]}}
---
kind: job
name: picky
on_demand: true
require: {{disk: ssd}}
shell: {{argv: ["true"]}}
"""
"""Beside that one a job that no worker can do."""


def apply(cluster: DevCluster, manifest: str = MANIFEST) -> None:
    """Make them, and wait until something has succeeded and something is dead."""
    done = cluster.schedctl("apply", "--yes", "-f", "-", stdin=manifest)
    assert done.returncode == 0, done.stderr
    wait_until(lambda: states(cluster) >= {"SUCCEEDED", "FAILED"}, 60, "runs of each kind")


def states(cluster: DevCluster) -> set[str]:
    """Return the states of all runs so far."""
    return {run["state"] for run in cluster.json("run", "list", "--limit", "200")}
