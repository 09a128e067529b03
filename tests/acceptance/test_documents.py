"""The requests of the user's own documents, by curl, on a cluster that does what they ask for."""

from __future__ import annotations

import json
import shlex
import subprocess
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.cluster import DevCluster, dev_cluster, importing
from support.wait import WAIT_TIMEOUT, wait_until

MODULE = """
import json, os
from schedclient import Context, handler

@handler
async def sendEmail(payload, ctx: Context):
    with open(os.environ["SENT"], "a") as file:
        file.write(json.dumps(payload) + "\\n")
"""


class Curl:
    """`curl` against one member; keeps what was typed and what came back."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.transcript: list[str] = []

    def __call__(self, verb: str, path: str, body: Any = None) -> tuple[int, Any]:
        argv = ["curl", "-sS", "-X", verb, f"http://{self._address}{path}"]
        if body is not None:
            argv += ["-H", "content-type: application/json", "-d", json.dumps(body)]
        done = subprocess.run(
            [*argv, "-w", "\n%{http_code}"], capture_output=True, text=True, timeout=30, check=True
        )
        text, _, status = done.stdout.rpartition("\n")
        typed = shlex.join(argv).replace(self._address, "member:7421")
        self.transcript.append(f"{typed}\n{status} {text}")
        return int(status), json.loads(text)


@pytest.fixture(scope="module")
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DevCluster]:
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "mails.py").write_text(MODULE)
    env = {**importing(folder), "SENT": str(folder / "sent")}
    options = {"members": 2, "workers": 1, "overrides": ['workerd.handlers=["mails"]']}
    with dev_cluster(request.session, env=env, **options) as made:
        yield made


@pytest.fixture
def curl(cluster: DevCluster, figure: Callable[[str], None]) -> Iterator[Curl]:
    made = Curl(cluster.record["members"][0]["http"])
    yield made
    figure("\n".join(made.transcript))


@pytest.fixture
def called() -> Iterator[tuple[str, list[Any]]]:
    """The callback's URL, and the bodies that were posted to it."""
    bodies: list[Any] = []

    class Callback(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            bodies.append(json.loads(self.rfile.read(length)))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Callback)
    thread = threading.Thread(target=server.serve_forever, name="callback")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/callback", bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_job_calls_back_reports_its_status_and_is_deleted(
    curl: Curl, called: tuple[str, list[Any]]
) -> None:
    url, bodies = called
    asked = {
        "name": "daily-report",
        "cron": "* * * * * *",
        "callback_url": url,
        "priority": "HIGH",
        "payload": {"report": "daily"},
    }
    code, made = curl("POST", "/api/v1/jobs", asked)
    assert (code, made.keys()) == (201, {"job_id", "next_fire_time"})
    assert datetime.fromisoformat(made["next_fire_time"]).tzinfo is not None
    wait_until(lambda: len(bodies) >= 2, WAIT_TIMEOUT, "the callback to be called each second")
    assert bodies[0] == {"report": "daily"}

    code, status = curl("GET", f"/api/v1/jobs/{made['job_id']}/status")
    assert code == 200
    assert status.keys() == {"job_id", "status", "last_run", "next_run", "retry_count"}
    assert status["job_id"] == made["job_id"]
    assert status["status"] in ("SUCCEEDED", "RUNNING", "PENDING")
    assert status["last_run"] < status["next_run"]
    assert status["retry_count"] == 0

    assert curl("DELETE", f"/api/v1/jobs/{made['job_id']}") == (200, {"deleted": True})
    code, problem = curl("GET", f"/api/v1/jobs/{made['job_id']}/status")
    assert (code, problem["reason"]) == (404, "NO_SUCH_JOB")


def test_a_failed_job_reports_its_number_of_retries(curl: Curl) -> None:
    asked = {
        "name": "refused",
        "cron": "* * * * * *",
        "callback_url": "http://127.0.0.1:9/closed",
        "retry": {"maxAttempts": 3, "backoff": "0.2s"},
    }
    _, made = curl("POST", "/api/v1/jobs", asked)
    path = f"/api/v1/jobs/{made['job_id']}/status"
    answers = wait_until(
        lambda: [s for s in [curl("GET", path)[1]] if s["retry_count"] == 2],
        WAIT_TIMEOUT,
        "the third try",
    )
    assert answers[0]["status"] in ("FAILED", "RUNNING", "RETRYING")
    assert answers[0]["last_run"] is not None
    curl("DELETE", f"/api/v1/jobs/{made['job_id']}")
    del curl.transcript[1:-2]


def test_a_run_that_waits_for_a_retry_shows_its_time(curl: Curl) -> None:
    asked = {
        "name": "tried-again",
        "onDemand": True,
        "callback_url": "http://127.0.0.1:9/closed",
        "retry": {"maxAttempts": 2, "backoff": "1h"},
    }
    _, made = curl("POST", "/api/v1/jobs", asked)
    _, run = curl("POST", f"/api/v1/jobs/{made['job_id']}:trigger", {})
    path = f"/api/v1/jobs/{made['job_id']}/status"
    wait_until(
        lambda: curl("GET", path)[1]["status"] == "RETRYING", WAIT_TIMEOUT, "its first failure"
    )
    _, run = curl("GET", f"/api/v1/runs/{run['runId']}")
    assert run["retryAt"] is not None
    assert curl("GET", path)[1]["next_run"] == run["retryAt"]
    curl("DELETE", f"/api/v1/jobs/{made['job_id']}")
    curl.transcript.clear()


def test_a_task_runs_once_after_its_delay_however_often_it_is_sent(
    curl: Curl, cluster: DevCluster
) -> None:
    sent = Path(cluster.env["SENT"])
    task = {
        "taskName": "sendEmail",
        "payload": {"to": "user@example.com"},
        "delayMs": 500,
        "priority": 1,
        "customJobId": "welcome-42",
    }
    code, taken = curl("POST", "/api/tasks", task)
    assert (code, taken.keys()) == (202, {"job_id", "run_id"})
    assert curl("POST", "/api/tasks", task) == (202, taken)

    path = f"/api/v1/jobs/{taken['job_id']}/status"
    wait_until(lambda: curl("GET", path)[1]["status"] == "SUCCEEDED", WAIT_TIMEOUT, "its end")
    assert [json.loads(line) for line in sent.read_text().splitlines()] == [task["payload"]]
    run = cluster.json("run", "get", taken["run_id"])
    assert 0 <= run["latenessMs"] < WAIT_TIMEOUT * 1000
    assert (run["priority"], run["attempt"]) == ("HIGH", 1)

    code, problem = curl("POST", "/api/tasks", {"taskName": "sendEmail", "delayMs": -5})
    assert (code, problem["violations"][0]["field"]) == (400, "delayMs")
    del curl.transcript[2:-2]
