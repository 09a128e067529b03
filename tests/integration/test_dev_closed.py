"""A development cluster's PostgreSQL, etcd and files are closed to other users of the host."""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from schedctl.dev.servers import etcd, postgres
from schedctl.dev.servers.etcd import HttpAnswer, fetch
from schedctl.dev.servers.processes import HOST
from schedd.etcd.client import connect
from support.cluster import DevCluster, dev_cluster

KEY = "c2NoZWRkL3g="


@pytest.fixture(scope="module")
def stores(request: pytest.FixtureRequest) -> Iterator[DevCluster]:
    with dev_cluster(request.session, members=0, workers=0, tls=True) as cluster:
        yield cluster


def without_user(cluster: DevCluster, call: str, **body: Any) -> HttpAnswer:
    answer = fetch(f"http://{cluster.record['etcd'][0]['endpoint']}/v3/{call}", body=body)
    assert answer is not None
    return answer


def open_to_others(root: Path) -> list[str]:
    """Return what another user of the host may use, if the folder itself were open."""
    return [
        path.name
        for path in (root, *root.iterdir())
        if not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) & 0o077
    ]


@pytest.mark.parametrize("role", [postgres.ROLE, postgres.ADMIN])
@pytest.mark.parametrize("password", [None, "wrong"])
def test_postgresql_refuses_a_connection_without_the_password(
    stores: DevCluster, role: str, password: str | None
) -> None:
    for host in (HOST, "localhost"):
        url = postgres.dsn(
            stores.sql_port, database="postgres", role=role, host=host, password=password
        )
        with pytest.raises(psycopg2.OperationalError, match="password"):
            psycopg2.connect(url, passfile="/dev/null").close()


def test_postgresql_stores_no_password_in_clear_and_trusts_no_host(stores: DevCluster) -> None:
    rules = (stores.directory / "postgres" / "pg_hba.conf").read_text()
    lines = [line.split() for line in rules.splitlines() if line and not line.startswith("#")]
    assert {line[-1] for line in lines} == {"scram-sha-256"}
    assert stores.password is not None
    assert stores.password not in (stores.directory / "postgres.log").read_text()
    assert stores.password not in (stores.directory / "etcd.log").read_text()


def test_etcd_refuses_reads_writes_and_administration_without_a_user(stores: DevCluster) -> None:
    calls: dict[str, dict[str, Any]] = {
        "kv/range": {"key": KEY},
        "kv/put": {"key": KEY, "value": KEY},
        "kv/deleterange": {"key": KEY},
        "auth/disable": {},
        "auth/user/changepw": {"name": "root", "password": "other"},
        "cluster/member/add": {"peerURLs": ["http://127.0.0.1:1"]},
    }
    for call, body in calls.items():
        refused = without_user(stores, call, **body)
        assert refused.status != 200, call
        assert re.search(rb"user name is empty|permission denied|Unauthorized", refused.body), call
    wrong = without_user(stores, "auth/authenticate", name="root", password="wrong")
    assert wrong.status != 200


async def test_the_user_of_etcd_in_the_record_reads_and_writes_but_manages_no_users(
    stores: DevCluster,
) -> None:
    async with connect(stores.etcd, deadline=5.0, root="any/") as client:
        await client.put("key", b"value")
        entry = await client.get("key")
    assert entry is not None
    assert entry.value == b"value"
    login = {"name": etcd.USER, "password": stores.password or ""}
    token = json.loads(without_user(stores, "auth/authenticate", **login).body)["token"]
    answer = await asyncio.to_thread(_as, stores, token, "auth/user/add", name="guest")
    assert answer == "permission denied"


def _as(cluster: DevCluster, token: str, call: str, **body: str) -> str:
    url = f"http://{cluster.record['etcd'][0]['endpoint']}/v3/{call}"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Authorization": token})
    try:
        with urllib.request.urlopen(request) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as refused:
        return str(json.loads(refused.read())["error"]).rpartition(": ")[2]


def test_etcd_has_no_port_for_peers(stores: DevCluster) -> None:
    state = json.loads((stores.directory / "state.json").read_text())
    peer = state["parts"]["etcd"]["ports"]["peer"]
    listening = re.findall(
        r"^ *\d+: \S+:(\w+) \S+ 0A", Path("/proc/net/tcp").read_text(), re.MULTILINE
    )
    assert stores.sql_port in [int(port, 16) for port in listening]
    assert peer not in [int(port, 16) for port in listening]


def test_files_are_the_owners_alone_even_in_a_folder_that_was_open() -> None:
    before = os.umask(0o022)
    try:
        with dev_cluster(members=1, workers=1, start=False, tls=True) as cluster:
            cluster.directory.chmod(0o755)
            cluster.up()
            assert open_to_others(cluster.directory) == []
    finally:
        os.umask(before)


def become_another_user() -> None:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


def refusal(dsn: str) -> str:
    """Connect; return why PostgreSQL refuses it."""
    with pytest.raises(psycopg2.OperationalError) as refused:
        psycopg2.connect(dsn, passfile="/dev/null")
    return str(refused.value)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_another_user_of_the_host_reads_no_file(stores: DevCluster) -> None:
    stores.directory.chmod(0o755)  # each file is closed, not its folder alone
    try:
        for path in stores.directory.iterdir():
            word = ["ls"] if path.is_dir() else ["cat"]
            done = subprocess.run(
                ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *word, str(path)],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode != 0, path
            assert "Permission denied" in done.stderr
        # forked: another user may be unable to read this Python
        with ProcessPoolExecutor(1, get_context("fork"), become_another_user) as another_user:
            refused = another_user.submit(refusal, postgres.dsn(stores.sql_port)).result()
        assert "no password supplied" in refused
    finally:
        stores.directory.chmod(0o700)
