"""Each notification of a job arrives once and signed, whatever process is killed meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from standardwebhooks import Webhook

from acceptance.conftest import SECRET
from schedclient import InvalidArgument, SyncClient
from schedd.core.cluster.partition import shard_of
from schedd.core.ids import Id, JobId
from support.cluster import DevCluster
from support.wait import WAIT_TIMEOUT, wait_until

ONCE = {"max_attempts": 1}


class Receiver:
    """Verifies what comes and keeps it. `answers` are the statuses of the first ones; 200 then."""

    def __init__(self) -> None:
        self.came: list[dict[str, Any]] = []
        self.answers: list[int | threading.Event] = []
        kept = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                notification = Webhook(SECRET).verify(body, dict(self.headers.items()))
                answer = kept.answers.pop(0) if kept.answers else 200
                kept.came.append(notification)
                if isinstance(answer, threading.Event):
                    answer.wait(WAIT_TIMEOUT)
                    answer = 500
                self.send_response(answer)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"

    def kinds(self) -> list[str]:
        return [one["type"] for one in self.came]

    def wait_for(self, count: int) -> None:
        wait_until(lambda: len(self.came) >= count, WAIT_TIMEOUT, f"{count} notifications")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def test_a_job_notifies_of_failures_from_the_threshold_on_and_of_its_recovery(
    quiet_cluster: DevCluster, quiet_client: SyncClient, receiver: Receiver, tmp_path: Any
) -> None:
    fine = tmp_path / "fine"
    receiver.answers = [500]
    hook = {"webhook": receiver.url}
    made = quiet_client.jobs.create(
        "etl",
        on_demand=True,
        shell={"argv": ["/bin/sh", "-c", f"test -e {fine} || (echo no >&2; exit 3)"]},
        retry=ONCE,
        on_failure=hook | {"threshold": 2},
        on_recovery=hook,
    )
    try:
        runs = []
        for step in range(4):
            if step == 2:
                receiver.wait_for(2)  # the first was answered by 500
                fine.touch()
            runs.append(
                quiet_client.runs.wait(quiet_client.jobs.trigger("etl"), timeout=WAIT_TIMEOUT)
            )
        receiver.wait_for(3)
        assert receiver.kinds() == ["run.failed", "run.failed", "run.recovered"]
        first, second, recovered = (one["data"] for one in receiver.came)
        assert first == second, "it is the same one, and says so"
        assert (first["run_id"], first["reason"], first["exit_code"], first["error"]) == (
            (runs[1].run_id, "EXIT_CODE", 3, first["error"])
        )
        assert (first["failures_in_a_row"], first["namespace"], first["job"]) == (
            2,
            "default",
            "etl",
        )
        assert (recovered["run_id"], recovered["state"]) == (runs[2].run_id, "SUCCEEDED")
        described = quiet_cluster.schedctl("job", "describe", "etl").stdout
        assert receiver.url in described
        left = "SELECT count(*) FROM notifications WHERE job_id = %s"
        wait_until(
            lambda: quiet_cluster.sql(left, made.job_id) == [(0,)], WAIT_TIMEOUT, "an empty outbox"
        )
    finally:
        quiet_client.jobs.delete("etl")


def test_a_waiting_run_notifies_once_that_it_is_late_and_again_of_its_end(
    quiet_client: SyncClient, receiver: Receiver
) -> None:
    hook = {"webhook": receiver.url}
    submitted = quiet_client.submit(
        shell={"argv": ["true"]},
        require={"gpu": "a100"},
        run_timeout="4s",
        on_late=hook | {"after": "1s"},
        on_dead_letter=hook,
    )
    receiver.wait_for(2)
    run = quiet_client.runs.wait(submitted, timeout=WAIT_TIMEOUT)
    assert (run.state, run.reason) == ("FAILED", "RUN_TIMEOUT")
    assert receiver.kinds() == ["run.late", "run.dead_lettered"]
    late = receiver.came[0]["data"]
    assert (late["run_id"], late["state"], late["started_at"]) == (run.run_id, "PENDING", None)


def test_programs_and_mail_that_no_configuration_allows_are_rejected_when_a_job_is_created(
    quiet_client: SyncClient,
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        quiet_client.jobs.create(
            "etl",
            on_demand=True,
            shell={"argv": ["true"]},
            on_failure={"command": ["/bin/sh", "-c", "id"], "email": "ops@example.com"},
        )
    fields = [one.field for one in refused.value.violations]
    assert fields == ["on_failure.command", "on_failure.email"]


def test_the_next_owner_sends_the_notification_of_a_killed_owner(
    fault_cluster: DevCluster, client: SyncClient, receiver: Receiver
) -> None:
    held = threading.Event()
    receiver.answers = [held]
    made = client.jobs.create(
        "nightly",
        on_demand=True,
        shell={"argv": ["false"]},
        retry=ONCE,
        on_failure={"webhook": receiver.url},
    )
    try:
        run = client.runs.wait(client.jobs.trigger("nightly"), timeout=WAIT_TIMEOUT)
        receiver.wait_for(1)
        shard = shard_of(JobId(Id.parse(made.job_id)))
        query = "SELECT t.member FROM shards s JOIN tenures t ON t.id = s.owner WHERE s.id = %s"
        [(owner,)] = fault_cluster.sql(query, shard)
        fault_cluster.kill(owner)
        held.set()
        receiver.wait_for(2)
        first, second = (one["data"] for one in receiver.came)
        assert first == second
        assert first["run_id"] == run.run_id
        left = "SELECT count(*) FROM notifications WHERE job_id = %s"
        wait_until(
            lambda: fault_cluster.sql(left, made.job_id) == [(0,)], WAIT_TIMEOUT, "an empty outbox"
        )
    finally:
        held.set()
        client.jobs.delete("nightly")
