"""`schedctl job explain --at`: why did it run, or not, then, on a cluster that did it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from schedclient import Run, SyncClient
from support.cluster import DevCluster
from support.wait import WAIT_TIMEOUT, wait_until


def test_explain_covers_runs_overlaps_pauses_and_times_without_a_record(
    quiet_cluster: DevCluster, quiet_client: SyncClient
) -> None:
    quiet_client.jobs.create(
        "asked", cron="* * * * * *", shell={"argv": ["sleep", "1.2"]}, overlap="skip"
    )

    def one(state: str) -> Run | None:
        runs = quiet_client.runs.list(job="asked")
        return next((run for run in runs if run.state == state), None)

    skipped = wait_until(lambda: one("SKIPPED"), WAIT_TIMEOUT, "a skipped run")
    ran = wait_until(lambda: one("SUCCEEDED"), WAIT_TIMEOUT, "a run that ended")
    quiet_client.jobs.pause("asked", "disk is full")
    held = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)
    wait_until(lambda: datetime.now(UTC) > held, WAIT_TIMEOUT, "an instant of the pause")

    def asked(at: datetime | None) -> str:
        assert at is not None
        done = quiet_cluster.schedctl("job", "explain", "asked", "--at", at.isoformat())
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert asked(ran.scheduled_at).startswith("The job ran ")
    assert f"Read from run {ran.run_id}." in asked(ran.scheduled_at)
    overlapped = asked(skipped.scheduled_at)
    assert overlapped.startswith(
        "The run was skipped (OVERLAP): another run of the job hadn't ended"
    )
    assert skipped.run_id in overlapped
    way = str(skipped.excluded_by)
    assert f": {way}. Read from run " in overlapped
    assert quiet_client.runs.get(way.removeprefix("run ")).started_at is not None
    assert asked(held).startswith("The job didn't run: it is paused by ")
    assert ": disk is full." in asked(held)

    quiet_cluster.sql("DELETE FROM runs WHERE run_id = %s RETURNING 1", ran.run_id)
    assert asked(ran.scheduled_at).startswith("There is no record")
    quiet_client.jobs.delete("asked")
