"""A job whose calendar excludes instants, on a cluster that went by it, and by the next version."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from schedclient import SyncClient
from support.cluster import DevCluster
from support.wait import WAIT_TIMEOUT, wait_until


def test_excluded_times_are_skipped_and_explained_and_the_next_version_applies_automatically(
    quiet_cluster: DevCluster, quiet_client: SyncClient
) -> None:
    """All but every fifth second is excluded; then nothing is."""
    series = uuid4().hex[:6]
    off, job = f"off-{series}", f"fives-{series}"
    seconds = ",".join(str(second) for second in range(60) if second % 5)
    applied = quiet_cluster.schedctl("calendar", "apply", off, "--cron", f"{seconds} * * * * *")
    assert applied.returncode == 0, applied.stderr
    quiet_client.jobs.create(
        job, cron="* * * * * *", exclude={"calendars": [off]}, shell={"argv": ["true"]}
    )

    def ran() -> list[datetime]:
        runs = (run for run in quiet_client.runs.list(job=job) if run.state == "SUCCEEDED")
        return sorted(run.scheduled_at for run in runs if run.scheduled_at)

    first, *_ = wait_until(lambda: ran()[1:] and ran(), WAIT_TIMEOUT, "two runs")
    assert all(not at.second % 5 for at in ran())
    said = quiet_cluster.schedctl(
        "job", "explain", job, "--at", (first + timedelta(seconds=1)).isoformat()
    )
    skipped = f"The run was skipped by calendar {off} v1."
    assert said.stdout.startswith(skipped), said
    refused = quiet_cluster.schedctl("calendar", "delete", off, "--yes")
    assert refused.returncode != 0
    assert job in refused.stderr

    now = datetime.now(UTC)
    quiet_cluster.schedctl("calendar", "apply", off, "--date", "2020-01-01")
    wait_until(
        lambda: any(at > now and at.second % 5 for at in ran()), WAIT_TIMEOUT, "a run between"
    )
    quiet_client.jobs.delete(job)
    assert quiet_cluster.schedctl("calendar", "delete", off, "--yes").returncode == 0
