"""Jobs that end, pause and resume automatically, by their definition, on a real cluster."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from schedclient import Job, SyncClient
from schedclient.errors import InvalidArgument
from support.cluster import DevCluster
from support.wait import WAIT_TIMEOUT, wait_until

SOON = "* * * * * *"


def named(what: str) -> str:
    return f"{what}-{uuid4().hex[:6]}"


def states(client: SyncClient, job: str) -> Counter[str]:
    return Counter(str(run.state) for run in client.runs.list(job=job))


def test_a_schedule_ends_with_its_last_run_and_continues_with_a_higher_max_runs(
    quiet_cluster: DevCluster, quiet_client: SyncClient
) -> None:
    name = named("thrice")
    quiet_client.jobs.create(name, cron=SOON, max_runs=3, shell={"argv": ["true"]})

    def ended() -> Job | None:
        job = quiet_client.jobs.get(name)
        return job if job.next_run_at is None else None

    assert wait_until(ended, WAIT_TIMEOUT, "the schedule to end").runs_created == 3
    assert quiet_client.jobs.next(name) == ()

    def succeeded() -> int:
        return states(quiet_client, name)["SUCCEEDED"]

    wait_until(lambda: succeeded() == 3, WAIT_TIMEOUT, "three runs")
    quiet_client.jobs.trigger(name)
    wait_until(lambda: succeeded() == 4, WAIT_TIMEOUT, "a fourth, that a person asked for")
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    shown = quiet_cluster.schedctl("job", "explain", name, "--at", later.isoformat())
    assert shown.stdout.startswith("The job won't run: all 3 runs of max_runs have been created")

    quiet_client.jobs.update(name, max_runs=5)
    wait_until(lambda: ended() is not None, WAIT_TIMEOUT, "the schedule to end once more")
    wait_until(lambda: succeeded() == 6, WAIT_TIMEOUT, "two runs more")
    quiet_client.jobs.delete(name)


def test_a_skipped_run_doesnt_count_for_max_runs(
    quiet_client: SyncClient,
) -> None:
    name = named("twice")
    quiet_client.jobs.create(
        name, cron=SOON, max_runs=2, overlap="skip", shell={"argv": ["sleep", "2.5"]}
    )

    def done() -> bool:
        return states(quiet_client, name)["SUCCEEDED"] == 2

    wait_until(done, WAIT_TIMEOUT, "two runs that ended well")
    found = states(quiet_client, name)
    assert found["SKIPPED"] >= 1
    assert set(found) <= {"SUCCEEDED", "SKIPPED", "COALESCED"}, "the last on a busy machine"
    job = quiet_client.jobs.get(name)
    assert (job.next_run_at, job.runs_created) == (None, 2)
    quiet_client.jobs.delete(name)


def test_a_job_that_is_paused_until_a_time_resumes_automatically(
    quiet_cluster: DevCluster, quiet_client: SyncClient
) -> None:
    name = named("later")
    quiet_client.jobs.create(name, cron=SOON, shell={"argv": ["true"]})
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=4)

    paused = quiet_client.jobs.pause(name, "stocktaking", until=until)
    assert (paused.paused, paused.paused_until) == (True, until)
    wait_until(lambda: not quiet_client.jobs.get(name).paused, WAIT_TIMEOUT, "the pause to end")

    def after() -> bool:
        return any(
            run.scheduled_at > until and run.state == "SUCCEEDED"
            for run in quiet_client.runs.list(job=name)
            if run.scheduled_at
        )

    wait_until(after, WAIT_TIMEOUT, "a run after the pause")
    shown = quiet_cluster.schedctl(
        "job", "explain", name, "--at", (until - timedelta(seconds=1)).isoformat()
    )
    assert shown.stdout.startswith("The run was skipped by a pause by ")
    assert "stocktaking" in shown.stdout
    quiet_client.jobs.delete(name)


def test_a_job_that_is_created_paused_fires_nothing_until_it_resumes_automatically(
    quiet_cluster: DevCluster, quiet_client: SyncClient
) -> None:
    name = named("not-yet")
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=4)
    made = quiet_client.jobs.create(
        name,
        cron=SOON,
        shell={"argv": ["true"]},
        paused=True,
        pause_note="not before the release",
        paused_until=until,
    )
    assert (made.paused, made.pause_note, made.paused_until) == (
        True,
        "not before the release",
        until,
    )

    def succeeded() -> list[datetime]:
        runs = quiet_client.runs.list(job=name)
        return [r.scheduled_at for r in runs if r.scheduled_at and r.state == "SUCCEEDED"]

    wait_until(succeeded, WAIT_TIMEOUT, "a run after the pause")
    assert min(succeeded()) > until
    quiet_client.jobs.delete(name)


def test_a_manifest_pauses_its_paused_jobs_and_resumes_none(
    quiet_cluster: DevCluster, quiet_client: SyncClient, tmp_path: Path
) -> None:
    name = named("declared")
    manifest = tmp_path / "job.yaml"
    plain = f"name: {name}\ncron: '0 0 1 1 *'\nshell: {{argv: ['true']}}\n"

    def applied(text: str) -> str:
        manifest.write_text(text)
        done = quiet_cluster.schedctl("apply", "-f", str(manifest))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert applied(plain) == f"job {name} created"
    assert applied(plain + "paused: true\npause_note: moved\n") == f"job {name} updated"
    job = quiet_client.jobs.get(name)
    assert (job.paused, job.pause_note) == (True, "moved")
    assert applied(plain + "paused: true\npause_note: moved\n") == f"job {name} unchanged"
    assert applied(plain) == f"job {name} unchanged"
    assert quiet_client.jobs.get(name).paused
    quiet_client.jobs.delete(name)


def test_a_job_that_fails_repeatedly_is_paused_automatically_and_says_so(
    quiet_cluster: DevCluster, quiet_client: SyncClient
) -> None:
    name = named("broken")
    quiet_client.jobs.create(
        name,
        cron=SOON,
        pause_after_failures=3,
        retry={"max_attempts": 1},
        shell={"argv": ["false"]},
    )

    def paused() -> Job | None:
        job = quiet_client.jobs.get(name)
        return job if job.paused else None

    job = wait_until(paused, WAIT_TIMEOUT, "the job to pause itself")
    assert job.pause_note is not None
    assert job.pause_note.endswith("runs in a row failed (pause_after_failures: 3)")
    shown = quiet_cluster.schedctl("job", "get", name, "-o", "json")
    assert '"pausedBy": "schedd"' in shown.stdout
    assert states(quiet_client, name)["FAILED"] in {3, 4}, "one may have been under way"

    quiet_client.jobs.resume(name)
    assert wait_until(paused, WAIT_TIMEOUT, "three more failures") is not None
    quiet_client.jobs.delete(name)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"cron": SOON, "max_runs": -1}, "max_runs"),
        ({"on_demand": True, "max_runs": 3}, "max_runs"),
        ({"cron": SOON, "pause_after_failures": -1}, "pause_after_failures"),
        ({"cron": SOON, "paused_until": "2020-01-01T00:00:00Z", "paused": True}, "paused_until"),
        ({"cron": SOON, "paused_until": "2100-01-01T00:00:00Z"}, "paused_until"),
    ],
)
def test_a_meaningless_value_is_rejected_by_the_name_of_its_field(
    quiet_client: SyncClient, fields: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidArgument, match=field):
        quiet_client.jobs.create(named("wrong"), shell={"argv": ["true"]}, **fields)
