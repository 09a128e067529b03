"""With PostgreSQL stopped or frozen, every call answers within 3 s and names PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

import pytest

from schedclient import ApiError, Client, ClusterUnavailable
from schedctl.dev.servers import postgres
from support.cluster import DevCluster
from support.wait import WAIT_TIMEOUT, wait_until

WITHIN = 3.0
"""Seconds in which a call answers."""

STARTING = 3.0
"""Seconds that a process of schedctl may take beside its call, on a busy machine."""

Call = Callable[[Client], Awaitable[object]]

READS: dict[str, Call] = {
    "runs.get": lambda client: client.runs.get("00000000-0000-7000-8000-000000000000"),
    "jobs.get": lambda client: client.jobs.get("etl"),
    "pools.get": lambda client: client.pools.get("gpus"),
}
CHANGES: dict[str, Call] = {
    "submit": lambda client: client.submit(name="once", shell={"script": "true"}),
    "jobs.create": lambda client: client.jobs.create(
        "etl", cron="* * * * *", shell={"script": "true"}
    ),
    "jobs.trigger": lambda client: client.jobs.trigger("etl"),
    "jobs.pause": lambda client: client.jobs.pause("etl"),
    "jobs.delete": lambda client: client.jobs.delete("etl"),
}


@pytest.fixture(scope="module")
def cluster(pair: DevCluster) -> DevCluster:
    return pair


async def _answers(cluster: DevCluster, calls: dict[str, Call]) -> dict[str, str]:
    """Make every call and return those that don't answer in time or don't name PostgreSQL."""
    wrong = {}
    async with Client(cluster.record["members"][0]["grpc"]) as client:
        for name, call in calls.items():
            began = time.monotonic()
            try:
                await call(client)
            except ClusterUnavailable as error:
                took = time.monotonic() - began
                if took >= WITHIN or "PostgreSQL" not in str(error):
                    wrong[name] = f"{took:.1f} s: {error}"
            except ApiError as error:
                wrong[name] = f"{time.monotonic() - began:.1f} s: {error!r}"
            else:
                wrong[name] = "no error"
    return wrong


def test_a_frozen_postgresql_ends_every_read_within_3_s(cluster: DevCluster) -> None:
    sessions = "SELECT pid FROM pg_stat_activity WHERE usename = %s AND pid <> pg_backend_pid()"
    pids = [pid for (pid,) in cluster.sql(sessions, postgres.ROLE)]
    try:
        cluster.pause("postgres")
        _signal(pids, signal.SIGSTOP)
        wrong = asyncio.run(_answers(cluster, READS))
    finally:
        cluster.resume("postgres")
        _signal(pids, signal.SIGCONT)
    assert wrong == {}


def test_a_postgresql_that_denies_its_tables_ends_every_call_within_3_s(
    cluster: DevCluster,
) -> None:
    dsn = postgres.dsn(
        cluster.sql_port, database="schedd", role=postgres.ADMIN, password=cluster.password
    )
    with postgres.connect(dsn) as session, session.cursor() as cursor:
        cursor.execute("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM schedd")
        try:
            wrong = asyncio.run(_answers(cluster, READS | CHANGES))
        finally:
            cursor.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO schedd")
    assert wrong == {}


@pytest.mark.alone
def test_a_stopped_postgresql_ends_every_call_within_3_s(cluster: DevCluster) -> None:
    server = cluster.process("postgres")
    server.send(signal.SIGINT)  # PostgreSQL's fast shutdown
    wait_until(lambda: not server.alive(), WAIT_TIMEOUT, "the end of PostgreSQL")
    assert asyncio.run(_answers(cluster, READS | CHANGES)) == {}

    began = time.monotonic()
    done = cluster.schedctl("job", "list")
    assert time.monotonic() - began < WITHIN + STARTING
    assert done.returncode == 6, done.stdout + done.stderr
    assert "PostgreSQL is unavailable" in done.stderr
    assert "start PostgreSQL" in done.stderr

    began = time.monotonic()
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(
            f"http://{cluster.record['members'][0]['http']}/api/v1/jobs",
            timeout=10,
        )
    assert time.monotonic() - began < WITHIN
    assert caught.value.code == 503
    body = json.loads(caught.value.read())
    assert "PostgreSQL" in json.dumps(body)


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # a session may have ended
            os.kill(pid, number)
