"""Reading along what a run writes, through each member."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from statistics import median

import pytest

from schedclient import SyncClient
from support.cluster import DevCluster
from support.wait import WAIT_TIMEOUT, wait_until

SOON = 0.3
"""Seconds from a write to its reader, for each owner of the run and at any time of its life."""
LOADED = 0.5
"""Seconds more for the slowest line, where other tests take the processors."""
LINES = 20
TICKS = f"for n in $(seq {LINES}); do date +%s.%N; sleep 0.1; done"


def test_output_of_a_run_is_read_at_once_through_any_member(
    quiet_cluster: DevCluster, figure: Callable[[str], None]
) -> None:
    for endpoint in quiet_cluster.endpoints:
        with SyncClient([endpoint]) as client:
            run = client.submit(shell={"argv": ["sh", "-c", f"{TICKS}; echo end >&2"]})
            lags, ends = [], []
            for piece in client.runs.logs(run.run_id, follow=True):
                now = time.time()
                if piece.stream == "STDERR":
                    ends.append(piece.data)
                else:
                    lags += [now - float(line) for line in piece.data.split()]
            assert client.runs.get(run.run_id).succeeded, "the stream ends when the run has"
        assert len(lags) == LINES
        assert ends == [b"end\n"]
        figure(f"run logs -f at {endpoint}: {median(lags) * 1e3:.0f} ms, {max(lags) * 1e3:.0f} max")
        assert median(lags) < SOON
        assert max(lags) < SOON + LOADED


def test_a_run_is_followed_from_before_its_start_through_its_attempts(
    quiet_cluster: DevCluster, quiet_client: SyncClient, tmp_path: Path
) -> None:
    tried = tmp_path / "tried"
    script = f"echo attempt $SCHEDD_ATTEMPT; [ -e {tried} ] || {{ touch {tried}; exit 1; }}"
    run = quiet_client.submit(
        shell={"argv": ["sh", "-c", script]}, retry={"backoff": "1s", "max_attempts": 2}, delay="1s"
    )
    pieces = [*quiet_client.runs.logs(run.run_id, follow=True)]
    assert b"".join(piece.data for piece in pieces) == b"attempt 1\nattempt 2\n"
    assert pieces[0].fencing_token < pieces[-1].fencing_token
    only = [*quiet_client.runs.logs(run.run_id, fencing_token=pieces[0].fencing_token, follow=True)]
    assert b"".join(piece.data for piece in only) == b"attempt 1\n"
    for more in ([], ["-f"]):
        for token in (5, pieces[-1].fencing_token + 1):
            refused = quiet_cluster.schedctl("run", "logs", run.run_id, f"--token={token}", *more)
            assert (refused.returncode, refused.stdout) == (3, "")
            assert (
                f"attempt with fencing token {token} of run {run.run_id} not found"
                in refused.stderr
            )


def test_a_growing_log_over_rest_continues_at_the_next_member(
    quiet_cluster: DevCluster, quiet_client: SyncClient
) -> None:
    run = quiet_client.submit(shell={"argv": ["sh", "-c", f"{TICKS}; echo end"]})
    whole, last, status = b"", "", 200
    while status == 200:
        for member in quiet_cluster.record["members"]:
            status, pieces = read_along(member["http"], run.run_id, last, most=3)
            whole += b"".join(base64.b64decode(data) for _, data in pieces)
            last = pieces[-1][0] if pieces else last
    assert status == 204, "a browser asks no more"
    lines = whole.decode().splitlines()
    assert (len(lines), lines[-1]) == (LINES + 1, "end"), "none is lost and none comes twice"
    assert lines[:-1] == sorted(lines[:-1])


def read_along(http: str, run_id: str, last: str, most: int) -> tuple[int, list[tuple[str, str]]]:
    """The status, and a log's next pieces by id, as a browser asks that leaves soon."""
    place, port = http.rsplit(":", 1)
    found: list[tuple[str, str]] = []
    with closing(HTTPConnection(place, int(port), timeout=WAIT_TIMEOUT)) as reader:
        headers = {"Last-Event-ID": last} if last else {}
        reader.request("GET", f"/api/v1/runs/{run_id}/logs?follow=true", headers=headers)
        answer = reader.getresponse()
        id_ = ""
        while len(found) < most and (line := answer.readline().decode()):
            name, _, value = line.strip().partition(": ")
            if name == "id":
                id_ = value
            elif name == "data" and value != "{}":
                found.append((id_, json.loads(value)["data"]))
        return answer.status, found


def test_the_command_follows_until_the_end_and_leaves_the_run_alone_at_ctrl_c(
    quiet_cluster: DevCluster, quiet_client: SyncClient
) -> None:
    run = quiet_client.submit(shell={"argv": ["sh", "-c", "echo begin; sleep 3; echo end"]})
    command = [sys.executable, "-m", "schedctl", "run", "logs", "-f", run.run_id]
    env = {**quiet_cluster.env, "SCHEDCTL_ENDPOINTS": ",".join(quiet_cluster.endpoints)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env, text=True) as left:
        assert left.stdout is not None
        assert left.stdout.readline() == "begin\n"
        left.send_signal(2)
        assert left.wait(WAIT_TIMEOUT) == 130
    followed = subprocess.run(command, capture_output=True, env=env, text=True, check=True)
    assert followed.stdout == "begin\nend\n"
    assert quiet_client.runs.get(run.run_id).succeeded


@pytest.mark.slow
def test_ten_readers_of_a_large_log_delay_no_submit(quiet_client: SyncClient) -> None:
    flood = "import sys\nfor _ in range(512): sys.stdout.write('x' * 65536)"
    run = quiet_client.submit(shell={"argv": [sys.executable, "-c", flood]})
    first = [*quiet_client.runs.logs(run.run_id, follow=True)]
    assert quiet_client.runs.wait(run, timeout=60).succeeded
    assert sum(len(piece.data) + piece.omitted for piece in first) == 512 * 65536
    wait_until(lambda: quiet_client.submit(shell={"argv": ["true"]}), WAIT_TIMEOUT, "a new submit")


def test_a_log_has_the_time_and_the_order_of_its_lines(
    quiet_cluster: DevCluster, quiet_client: SyncClient
) -> None:
    script = "date +%s.%N; sleep 1; date +%s.%N >&2; sleep 1; date +%s.%N"
    run = quiet_client.submit(shell={"script": script})
    quiet_client.runs.wait(run)
    pieces = [*quiet_client.runs.logs(run.run_id)]
    assert [piece.stream for piece in pieces] == ["STDOUT", "STDERR", "STDOUT"]
    for piece in pieces:
        assert piece.at is not None
        assert abs(piece.at.timestamp() - float(piece.data)) < LOADED
    command = [sys.executable, "-m", "schedctl", "run", "logs", run.run_id, "--timestamps"]
    env = {**quiet_cluster.env, "SCHEDCTL_ENDPOINTS": ",".join(quiet_cluster.endpoints)}
    lines = subprocess.check_output(command, env=env, text=True).splitlines()
    assert [line.partition(" ")[2] for line in lines] == [
        piece.data.decode().strip() for piece in pieces if piece.stream == "STDOUT"
    ]
