"""Two clusters never mix: members refuse another's etcd prefix, and workers another's members."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from schedclient import Run, SyncClient
from schedctl.dev.servers.processes import address, reserve
from schedd.core.cluster.coordination import DeletePrefix
from schedd.etcd.client import connect
from support import fork_server
from support.cluster import DevCluster, dev_cluster
from support.ledger import covered, every_instant
from support.probe import DatabaseProbe
from support.wait import PROCESS_POLL, WAIT_TIMEOUT, wait_until

SHORT = ["schedd.member_ttl=3s", "schedd.worker_ttl=3s"]
BESIDE = 6.0
"""Seconds for which two clusters use one database: two leases."""


@pytest.fixture(scope="module")
def home(request: pytest.FixtureRequest) -> Iterator[DevCluster]:
    with dev_cluster(request.session, members=1, workers=1, overrides=SHORT) as cluster:
        yield cluster


def renamed(dsn: str, database: str) -> str:
    return re.sub(r"/[^/?]+(\?|$)", rf"/{database}\1", dsn)


class ForeignMember:
    """A member whose database is another one, on the etcd prefix of `home`."""

    def __init__(self, home: DevCluster, database: str) -> None:
        self.dsn = renamed(home.dsn, database)
        self.log = home.directory / f"{database}.log"
        grpc, self.http = map(address, reserve(2))
        self._words = [
            *("--config", str(home.directory / "m1.toml"), "--name", "m9"),
            *("--listen-grpc", grpc, "--listen-http", self.http),
            *("--postgres-dsn", self.dsn),
        ]
        home.admin(f"CREATE DATABASE {database} OWNER schedd")
        assert self.run("migrate").returncode == 0, self.run("migrate").stderr

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return fork_server.run([sys.executable, "-m", "schedd", *command, *self._words])


def test_a_member_with_another_database_is_refused_at_start_by_name(home: DevCluster) -> None:
    before = home.json("cluster", "status")
    cluster_id = before["clusterId"]
    stranger = ForeignMember(home, "stranger")

    refused = stranger.run()

    assert refused.returncode == 2, refused.stderr
    assert f"belongs to cluster {cluster_id} (database" in refused.stderr
    assert "`schedd claim-prefix`" in refused.stderr
    assert [one["name"] for one in home.json("cluster", "members")] == ["m1"]
    after = home.json("cluster", "status")
    assert (after["leader"], after["term"]) == (before["leader"], before["term"])
    assert not after["recovering"]


def test_a_cluster_with_running_members_keeps_its_prefix(home: DevCluster) -> None:
    stranger = ForeignMember(home, "taker")

    refused = stranger.run("claim-prefix")

    assert refused.returncode == 2
    assert "while members use it (m1)" in refused.stderr


def test_a_worker_refuses_a_member_of_another_cluster_by_name(
    home: DevCluster, request: pytest.FixtureRequest
) -> None:
    home.terminate("w1")
    config = (home.directory / "w1.toml").read_text()
    with dev_cluster(request.session, members=1, workers=0, copied=False) as other:
        strange = home.directory / "w1-strange.toml"
        strange.write_text(re.sub(r"endpoints = .*", f"endpoints = {other.endpoints}", config))
        log = home.directory / "w1-strange.log"
        with log.open("w") as out:
            worker = subprocess.Popen(
                [sys.executable, "-m", "workerd", "--config", str(strange)], stderr=out
            )
        try:
            wait_until(
                lambda: "but this worker belongs to cluster" in log.read_text(),
                WAIT_TIMEOUT,
                "the refusal",
            )
            assert "belongs to cluster" in log.read_text()
            wait_until(
                lambda: all(one["free"] is None for one in other.json("worker", "list")),
                WAIT_TIMEOUT,
                "no worker attached to the other cluster",
            )
        finally:
            worker.terminate()
            worker.wait(WAIT_TIMEOUT)
    home.up()
    wait_until(
        lambda: any(one["state"] == "LIVE" for one in home.json("worker", "list")),
        WAIT_TIMEOUT,
        "w1",
        every=PROCESS_POLL,
    )


def test_a_running_member_is_not_ready_and_recovers_when_its_database_is_created_again(
    home: DevCluster,
) -> None:
    database = re.search(r"/([^/?]+)(\?|$)", home.dsn)
    assert database is not None
    name = database[1]
    pid = home.entry("m1")["pid"]

    def renamed(old: str, new: str) -> bool:
        home.admin(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            f" WHERE datname = '{old}' AND pid <> pg_backend_pid()"
        )
        with suppress(psycopg2.errors.ObjectInUse):  # sessions that end are there for a moment
            home.admin(f"ALTER DATABASE {old} RENAME TO {new}")
            return True
        return False

    def rename(*pairs: tuple[str, str]) -> None:
        home.pause("m1")  # no database of its name is there in between
        try:
            for old, new in pairs:
                wait_until(partial(renamed, old, new), WAIT_TIMEOUT, f"{old} to be renamed")
        finally:
            home.resume("m1")

    def ready() -> tuple[int, str]:
        answer = home.get("m1", "/readyz")
        return (answer.status, answer.body.decode()) if answer else (0, "")

    ForeignMember(home, "again")
    rename((name, "kept"), ("again", name))
    wait_until(
        lambda: ready()[0] == 503 and "the etcd prefix belongs to cluster" in ready()[1],
        WAIT_TIMEOUT,
        "the member to say why it isn't ready",
    )
    assert home.entry("m1")["pid"] == pid
    os.kill(pid, 0)
    rename((name, "again"), ("kept", name))
    wait_until(lambda: ready()[0] == 200, WAIT_TIMEOUT, "the member to be ready again")


def database_finding(home: DevCluster) -> dict[str, Any]:
    answer = home.schedctl("cluster", "doctor", "-o", "json")
    [found] = [
        one
        for one in json.loads(answer.stdout)
        if (one["area"], one["check"]) == ("cluster", "database")
    ]
    return found


def test_after_etcd_lost_its_keys_the_doctor_finds_no_other_cluster(home: DevCluster) -> None:
    def prefixes() -> list[Any]:
        return home.sql("SELECT prefix FROM tenures ORDER BY opened_at DESC, id LIMIT 1")

    before = prefixes()

    async def lose_keys() -> None:
        async with connect(home.etcd, deadline=WAIT_TIMEOUT, root="") as etcd:
            await etcd.txn([], [DeletePrefix("schedd/")])

    home.kill("m1")
    asyncio.run(lose_keys())
    home.up()
    wait_until(lambda: prefixes() != before, WAIT_TIMEOUT, "the member to join under a new claim")
    wait_until(lambda: home.leader() is not None, WAIT_TIMEOUT, "a leader")
    assert database_finding(home)["severity"] == "OK"


def test_the_doctor_says_that_another_prefix_uses_the_database(home: DevCluster) -> None:
    home.sql(
        "INSERT INTO tenures (id, member, opened_at, prefix)"
        " VALUES (gen_random_uuid(), 'm7', now(), gen_random_uuid())"
    )
    found = database_finding(home)
    assert found["severity"] == "BAD"
    assert "m7" in found["what"]
    assert found["remedy"]


def test_two_clusters_on_one_database_keep_at_most_once_and_the_doctor_names_the_other(
    home: DevCluster, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    probe = DatabaseProbe(tmp_path / "tick")
    options: dict[str, Any] = {"members": 2, "workers": 1, "overrides": SHORT}
    with SyncClient(home.endpoints) as client:
        client.jobs.create(
            "tick",
            cron="* * * * * *",
            overlap="allow",
            catch_up={"policy": "all"},
            delivery="at_most_once",
            shell=probe.shell(),
        )
        wait_until(probe.starts, WAIT_TIMEOUT, "the job to start")
        with dev_cluster(request.session, postgres=home.dsn, **options):
            wait_until(
                lambda: "m2" in other_members(home),
                WAIT_TIMEOUT,
                "the doctor to name m2",
                every=PROCESS_POLL,
            )
            began = time.time()
            wait_until(lambda: time.time() > began + BESIDE, BESIDE + 1, "both to run for a time")
        ended = time.time()
        wait_until(
            lambda: any(start.scheduled_at.timestamp() > ended for start in probe.starts()),
            WAIT_TIMEOUT,
            "the job to fire as before",
        )
        client.jobs.delete("tick")
        rows = wait_until(lambda: all_ended(client), WAIT_TIMEOUT, "the end of all runs")
    coverage = covered(rows)
    assert coverage == every_instant(min(coverage), max(coverage))
    assert probe.repeated() == []
    tokens = {row.run_id: row.fencing_token for row in rows if row.state == "SUCCEEDED"}
    assert tokens
    assert tokens.items() <= {start.run_id: start.token for start in probe.starts()}.items()


def other_members(home: DevCluster) -> str:
    """Return what the doctor says of another cluster on the database; empty: nothing."""
    answer = home.schedctl("cluster", "doctor", "-o", "json")
    found = json.loads(answer.stdout) if answer.stdout.startswith("[") else []
    said = [one for one in found if (one["area"], one["check"]) == ("cluster", "database")]
    return "".join(one["what"] for one in said if one["severity"] == "BAD")


def all_ended(client: SyncClient) -> list[Run]:
    rows = list(client.runs.list(job="tick"))
    return rows if all(row.ended for row in rows) else []
