"""Whole logs and large results, through a real cluster: there, away for a while, and too old."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support.cluster import DevCluster, dev_cluster
from support.wait import WAIT_TIMEOUT, wait_until

MIB = 1 << 20
PRINTED = random.Random(5).randbytes(5 * MIB)
"""Most of it isn't UTF-8."""
PRINT = "import random,sys; sys.stdout.buffer.write(random.Random(5).randbytes(5 << 20))"
ANSWER = random.Random(1).randbytes(MIB)

OLDER = """
UPDATE runs SET scheduled_at = scheduled_at - interval '1 day',
    finished_at = finished_at - interval '1 day' WHERE run_id = %(run)s;
UPDATE outputs SET scheduled_at = scheduled_at - interval '1 day' WHERE run_id = %(run)s;
UPDATE dead_letters SET scheduled_at = scheduled_at - interval '1 day' WHERE run_id = %(run)s;
SELECT 1
"""


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[DevCluster]:
    """Runs are kept for as short as may be; nothing goes within two minutes of its instant."""
    overrides = ["schedd.retention.runs=20s"]
    with dev_cluster(request.session, members=1, workers=1, overrides=overrides) as made:
        yield made


def schedctl(cluster: DevCluster, *args: str) -> subprocess.CompletedProcess[bytes]:
    """As a person's shell sees it: bytes."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "schedctl", *args],
        env=cluster.env | {"SCHEDCTL_ENDPOINTS": ",".join(cluster.endpoints)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
    )


def submitted(cluster: DevCluster, *argv: str) -> str:
    submission = schedctl(cluster, "submit", "-o", "json", "--max-attempts", "1", "--", *argv)
    assert submission.returncode == 0, submission.stderr
    return str(json.loads(submission.stdout)["runId"])


def ended(cluster: DevCluster, run: str) -> str:
    wait_until(
        lambda: cluster.json("run", "get", run)["finishedAt"],
        3 * WAIT_TIMEOUT,
        "its end",
        every=0.3,
    )
    return str(cluster.json("run", "get", run)["state"])


def results_of(cluster: DevCluster, run: str) -> Path:
    return cluster.directory / "results" / "default" / run


def test_a_whole_log_is_returned_byte_for_byte(cluster: DevCluster) -> None:
    run = submitted(cluster, sys.executable, "-c", PRINT)
    assert ended(cluster, run) == "SUCCEEDED"
    done = schedctl(cluster, "run", "logs", run)
    assert (done.returncode, done.stderr) == (0, b"")
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(PRINTED).digest()


def test_a_follower_receives_the_whole_log_too(cluster: DevCluster) -> None:
    run = submitted(cluster, sys.executable, "-c", PRINT)
    done = schedctl(cluster, "run", "logs", "-f", run)
    assert done.returncode == 0
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(PRINTED).digest()


def test_a_log_that_the_store_lost_is_shown_by_its_two_ends(
    cluster: DevCluster,
) -> None:
    run = submitted(cluster, sys.executable, "-c", PRINT)
    assert ended(cluster, run) == "SUCCEEDED"
    [log] = results_of(cluster, run).glob("*/log")
    log.unlink()
    done = schedctl(cluster, "run", "logs", run)
    assert done.stdout == PRINTED[:65536] + PRINTED[-65536:]
    assert b"the whole log can't be read" in done.stderr
    assert b"bytes omitted" in done.stderr


def test_a_store_that_is_unavailable_for_a_while_costs_no_run(cluster: DevCluster) -> None:
    root, aside = cluster.directory / "results", cluster.directory / "aside"
    root.mkdir(exist_ok=True)
    root.rename(aside)
    root.write_bytes(b"no folder")
    try:
        run = submitted(cluster, sys.executable, "-c", PRINT)
        spool = cluster.directory / "w1"
        wait_until(lambda: [*spool.glob("*.results")], WAIT_TIMEOUT, "its end to be held back")
    finally:
        root.unlink()
        aside.rename(root)
    assert ended(cluster, run) == "SUCCEEDED"
    assert schedctl(cluster, "run", "logs", run).stdout == PRINTED


def test_a_large_result_is_returned_and_matches_its_digest(cluster: DevCluster) -> None:
    with served() as url:
        run = str(cluster.json("submit", "--http", url, "--method", "GET")["runId"])
        assert ended(cluster, run) == "SUCCEEDED"
    done = schedctl(cluster, "run", "result", run)
    assert (done.returncode, done.stdout) == (0, ANSWER)
    facts = json.loads(cluster.get("m1", f"/api/v1/runs/{run}/result").body)
    assert (facts["size"], facts["stored"], facts["problem"]) == (MIB, True, None)
    assert facts["sha256"] == hashlib.sha256(ANSWER).hexdigest()
    [result] = results_of(cluster, run).glob("*/result")
    result.write_bytes(ANSWER[:-1] + b"!")
    done = schedctl(cluster, "run", "result", run)
    assert done.returncode == 5
    assert b"SHA-256" in done.stderr


def test_expired_runs_are_deleted_with_their_objects_and_dead_letters_stay(
    cluster: DevCluster,
) -> None:
    old = submitted(cluster, sys.executable, "-c", PRINT)
    dead = submitted(cluster, sys.executable, "-c", f"{PRINT}; sys.exit(3)")
    young = submitted(cluster, sys.executable, "-c", PRINT)
    states = [ended(cluster, run) for run in (old, dead, young)]
    assert states == ["SUCCEEDED", "FAILED", "SUCCEEDED"]
    for run in (old, dead):
        assert results_of(cluster, run).is_dir()
        cluster.sql(OLDER.replace("%(run)s", f"'{run}'"))
    wait_until(
        lambda: schedctl(cluster, "run", "get", old).returncode == 3, 3 * WAIT_TIMEOUT, "it to go"
    )
    wait_until(lambda: not results_of(cluster, old).exists(), WAIT_TIMEOUT, "its objects to go")
    assert dead in [one["run"]["runId"] for one in cluster.json("dlq", "list")]
    assert schedctl(cluster, "run", "logs", dead).stdout == PRINTED
    assert schedctl(cluster, "run", "logs", young).stdout == PRINTED


class served:  # noqa: N801 - used as a function is
    """A service whose answer has 1 MiB; its URL."""

    def __enter__(self) -> str:
        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(ANSWER)))
                self.end_headers()
                self.wfile.write(ANSWER)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_address[1]}/"

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
